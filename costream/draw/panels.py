"""Panels below the pictures of an annotated video: labels, timelines, costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from costream.core.formatting import budget_text, clean, share_of_dense, share_text, tokens_text
from costream.core.records import Compute, Gap, Head, Header, Objects, Prediction, Record, Scored
from costream.draw.axis import PixelAxis
from costream.draw.canvas import DARK, GREY, WHITE, Canvas, fill
from costream.draw.lettering import fit_text, line_height, text_width, write
from costream.draw.palette import BACKGROUND, Color, Paint, Palette

PANEL = 176  # height of a panel, pixels
_EDGE = 16  # left and right of text
_TEXT, _SMALL = 17, 15  # sizes of letters
_TOP = 12
_ROWS = 3  # best labels
_ROW = 25  # height of each
_STRIP_TOP = 98  # of the timeline
_STRIP = 36  # height of the timeline
_LEGEND_TOP = 144
_TRACK: Color = (48, 50, 57)  # below bars, curves and timelines
_CURVE_TOP = 48  # of the cost
_CURVE = 86  # height of the curve
_CURVE_COLOR: Color = (86, 180, 233)


class Panel(Protocol):
    """Receiver of the records of a run that draws the current state on [PANEL, W, 3]."""

    def write(self, record: Record) -> None: ...  # noqa: D102

    def draw(self, panel: Canvas, time_s: float, length_s: float, tokens: int | None) -> None:
        """Draw the state at ``time_s``, which lasts ``length_s``; ``tokens``: of a frame."""


class HeadPanel:
    """Panel with the best labels of a head, the time, the timeline so far and its legend.

    Of several persons it has the best label of each of the first three, after the person's number,
    and in the timeline a lane for each. ``name``: ``model`` of the head's records.
    """

    def __init__(self, header: Header, head: Head, name: str | None, palette: Palette) -> None:
        self._name, self._head, self._paint_of = name, head, palette.paint
        self._axis = PixelAxis(header.duration_s)
        self._tops: dict[int | None, tuple[Scored, ...]] = {}  # of each person at a step
        self._step = -1
        self._painted_s: float | None = None  # the timeline is painted up to here
        self._strip = np.zeros((_STRIP, 0, 3), np.uint8)
        self._seen: dict[str, None] = {}  # labels of the timeline, in order of appearance
        longest = max((text_width(clean(label), _TEXT) for label in head.labels), default=0)
        self._names = min(longest, 260)  # width of the column

    def write(self, record: Record) -> None:
        """Store the newest scores; a gap interrupts the timeline."""
        if isinstance(record, Prediction) and record.model == self._name:
            if record.i != self._step:
                self._tops.clear()
            self._tops[record.person], self._step = record.top, record.i
        elif isinstance(record, Gap):
            self._tops.clear()
            self._painted_s = None

    def draw(self, panel: Canvas, time_s: float, length_s: float, tokens: int | None) -> None:
        """Draw the best labels, the clock, the timeline and the legend."""
        width = panel.shape[1]
        if not self._axis.began:
            self._axis.begin(time_s, width)
            self._strip = np.full((_STRIP, width, 3), _TRACK, np.uint8)
        active = {person: self._active(top) for person, top in self._tops.items()}
        self._extend(time_s, length_s, tuple(active.values()))
        right = write_clock(panel, self._axis.clock(time_s)) - _EDGE
        if self._name is not None:
            name = fit_text(clean(self._name), 160, _SMALL)
            left = width - _EDGE - text_width(name, _SMALL)
            write(panel, left, _TOP + _ROW, name, GREY, _SMALL)
            right = min(right, left - _EDGE)
        wide = self._names + (text_width("00 ", _TEXT) if len(active) > 1 else 0)
        for k, (person, label, score) in enumerate(self._best(active)[:_ROWS]):
            ink = WHITE if label == active[person] else GREY
            names = min(wide, right // 3)
            title = clean(label if len(active) == 1 else f"{person} {label}")
            write(panel, _EDGE, _TOP + k * _ROW, fit_text(title, names, _TEXT), ink, _TEXT)
            bar = _EDGE + names + 12, right
            self._draw_bar(panel[_TOP + k * _ROW :], label, score, bar, ink)
        panel[_STRIP_TOP : _STRIP_TOP + _STRIP] = self._strip
        fill(panel, self._axis.x(time_s) - 1, _STRIP_TOP - 4, 2, _STRIP + 8, WHITE)
        draw_legend(panel, ((clean(label), self._paint_of(label)) for label in self._seen))

    def _best(self, active: Mapping[int | None, str | None]) -> list[tuple[int | None, str, float]]:
        """Return the best labels of a single person, or what each of several does, or may do."""
        tops = self._tops.items()
        if len(tops) == 1:
            return [(person, *pair) for person, top in tops for pair in top]
        own = ((p, [x for x in top if x[0] == active[p]] or list(top)) for p, top in tops)
        return [(person, *pairs[0]) for person, pairs in own if pairs]

    def _active(self, top: Sequence[Scored]) -> str | None:
        """Return the label that is at or above its threshold, if any."""
        events = (pair for pair in top if pair[0] != self._head.background)
        label, score = next(events, (None, 0.0))
        return label if label is not None and score >= self._head.threshold_of(label) else None

    def _draw_bar(
        self, rows: Canvas, label: str, score: float, place: tuple[int, int], ink: Color
    ) -> None:
        """Draw bar and score of a label at the top of ``rows``; ``place``: from and to there."""
        paint, (begin, right) = self._paint_of(label), place
        end = right - text_width("0.00", _TEXT) - 10
        if end - begin >= 24:
            # The background is not an event, so its bar is thin.
            thick = 3 if paint == BACKGROUND else _ROW - 9
            top = (line_height(_TEXT) - thick) / 2
            fill(rows, begin, top, end - begin, thick, _TRACK)
            fill(rows, begin, top, max(0.0, min(1.0, score)) * (end - begin), thick, paint.rgb)
        write(rows, end + 10, 0, f"{score:.2f}", ink, _TEXT)

    def _extend(self, time_s: float, length_s: float, active: Sequence[str | None]) -> None:
        """Paint the timeline up to now, less the delay, with a lane for each person."""
        end_s = time_s + length_s
        over = self._axis.scroll(end_s)
        if over:
            self._strip = np.roll(self._strip, -over, axis=1)
            self._strip[:, -over:] = _TRACK
        end_s -= self._head.delay_s
        begin_s = end_s - length_s if self._painted_s is None else self._painted_s
        x, end, lane = self._axis.x(begin_s), self._axis.x(end_s), _STRIP / max(len(active), 1)
        for k, label in enumerate(active):
            if label is not None:
                self._seen.setdefault(label)
                fill(self._strip, x, k * lane, end - x, lane, self._paint_of(label).rgb)
        self._painted_s = end_s


class CostPanel:
    """Panel of tokens, share of the full cost, budget and time, with that share as a curve.

    The curve's full height is the cost of computing everything. A column is the mean of its
    steps. The legend has the objects seen so far, and how many there are now.
    """

    def __init__(self, header: Header, palette: Palette) -> None:
        self._axis = PixelAxis(header.duration_s)
        self._paint_of = palette.paint
        self._compute: Compute | None = None
        self._counts: dict[str, int] = {}  # objects now, of all labels seen so far
        self._painted_s: float | None = None  # the curve is painted up to here
        self._totals = np.zeros((2, 0))  # of each column: sum of the shares, number of steps

    def write(self, record: Record) -> None:
        """Store the newest cost and objects; a gap interrupts the curve."""
        if isinstance(record, Compute):
            self._compute = record
        elif isinstance(record, Objects):
            self._counts = dict.fromkeys(self._counts, 0)
            for box in record.boxes:
                self._counts[box.label] = self._counts.get(box.label, 0) + 1
        elif isinstance(record, Gap):
            self._painted_s = None

    def draw(self, panel: Canvas, time_s: float, length_s: float, tokens: int | None) -> None:
        """Draw the text, the curve and the legend."""
        width = panel.shape[1]
        if not self._axis.began:
            self._axis.begin(time_s, width)
            self._totals = np.zeros((2, width))
        right = write_clock(panel, self._axis.clock(time_s))
        if self._compute is not None:
            self._add(share_of_dense(self._compute), time_s, length_s)
            self._write_cost(panel, self._compute, tokens, right - 2 * _EDGE)
        curve = panel[_CURVE_TOP : _CURVE_TOP + _CURVE]
        curve[:] = _TRACK
        curve[self._curve()] = _CURVE_COLOR
        fill(panel, self._axis.x(time_s) - 1, _CURVE_TOP - 4, 2, _CURVE + 8, WHITE)
        draw_legend(
            panel,
            (
                (f"{clean(label)} {count}" if count else clean(label), self._paint_of(label))
                for label, count in self._counts.items()
            ),
        )

    def _write_cost(self, panel: Canvas, compute: Compute, tokens: int | None, width: int) -> None:
        """Write as much text as fits into ``width``."""
        words = (share_text(compute), tokens_text(compute, tokens), budget_text(compute))
        shown = [word for word in words if word]
        while text_width(", ".join(shown), _TEXT) > width and len(shown) > 1:
            del shown[-1]
        write(panel, _EDGE, _TOP, fit_text(", ".join(shown), width, _TEXT), WHITE, _TEXT)

    def _add(self, share: float, time_s: float, length_s: float) -> None:
        """Add a step's share of the full cost to the columns that it covers."""
        end_s = time_s + length_s
        over = self._axis.scroll(end_s)
        if over:
            self._totals = np.roll(self._totals, -over, axis=1)
            self._totals[:, -over:] = 0
        begin_s = time_s if self._painted_s is None else self._painted_s
        self._painted_s = end_s
        first = max(0, int(self._axis.x(begin_s)))
        last = max(first + 1, int(self._axis.x(end_s)))
        self._totals[:, first:last] += np.array([[share], [1.0]])

    def _curve(self) -> npt.NDArray[np.bool_]:
        """Return which pixels [_CURVE, W] are below the curve."""
        shares, steps = self._totals
        heights = np.rint(_CURVE * (shares / np.maximum(steps, 1)).clip(0, 1))
        heights = np.maximum(heights, steps > 0)  # tiny costs stay visible
        below: npt.NDArray[np.bool_] = np.arange(_CURVE, 0, -1)[:, None] <= heights
        return below


def write_clock(panel: Canvas, clock: str) -> int:
    """Write the time at the upper right; return its left edge."""
    left = int(panel.shape[1]) - text_width(clock, _TEXT) - _EDGE
    write(panel, left, _TOP, clock, GREY, _TEXT)
    return left


def draw_legend(panel: Canvas, entries: Iterable[tuple[str, Paint]]) -> None:
    """Draw a square in the colour of each label and its name, as many as fit."""
    x, write_here = _EDGE, partial(write, panel, y=_LEGEND_TOP, size=_SMALL)
    square = _SMALL - 2
    top = _LEGEND_TOP + (line_height(_SMALL) - square) // 2
    for name, paint in entries:
        if x + square + 6 + text_width(name, _SMALL) > panel.shape[1] - 2 * _EDGE:
            write_here(x=x, text="…", color=GREY)
            return
        fill(panel, x, top, square, square, paint.rgb)
        write_here(x=x + square + 6, text=name, color=WHITE)
        x += square + 6 + text_width(name, _SMALL) + 20


def empty_page(width: int, height: int) -> Canvas:
    """Return a page without content."""
    return np.full((height, width, 3), DARK, np.uint8)
