"""Panels below the frames of an annotated video."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from costream.draw.axis import PixelAxis
from costream.draw.canvas import COLORS, GREY, WHITE, Canvas, Color, fill, write
from costream.records import Gap, Head, Header, Picture, Prediction, Record, Scored
from costream.sinks.font import text_width

PANEL = 76  # height of a panel, pixels
_STRIP = 22  # height of the timeline in it
_NOTHING = 60  # grey level of the timeline without an event


class Panel(Protocol):
    """Receiver of the records of a run that draws the current state on [PANEL, W, 3]."""

    def write(self, record: Record) -> None: ...  # noqa: D102

    def draw(self, panel: Canvas, picture: Picture) -> None: ...  # noqa: D102


class HeadPanel:
    """Panel with the label of a head, its score, the time, and the timeline so far.

    ``name``: ``model`` of the head's records. ``taken``: number of colours used by the panels
    before it.
    """

    def __init__(self, header: Header, head: Head, name: str | None, taken: int) -> None:
        self.events = [label for label in head.labels if label != head.background]
        self._name = name
        self._step_s, self._delay_s = 1 / header.rate_hz, head.delay_s
        self._threshold_of = head.threshold_of
        self._color = {label: COLORS[k % len(COLORS)] for k, label in enumerate(self.events, taken)}
        self._axis = PixelAxis(header.duration_s)
        self._best: Scored | None = None
        self._painted_s: float | None = None  # the timeline is painted up to here
        self._strip = np.zeros((_STRIP, 0, 3), np.uint8)

    def write(self, record: Record) -> None:
        """Store the newest scores; a gap interrupts the timeline."""
        if isinstance(record, Prediction) and record.model == self._name:
            self._best = next((pair for pair in record.top if pair[0] in self._color), None)
        elif isinstance(record, Gap):
            self._best = self._painted_s = None

    def draw(self, panel: Canvas, picture: Picture) -> None:
        """Draw label, clock and timeline."""
        width, time_s = panel.shape[1], picture.time_s
        if not self._axis.began:
            self._axis.begin(time_s, width)
            self._strip = np.full((_STRIP, width, 3), _NOTHING, np.uint8)
        color = self._paint(time_s)
        write_clock(panel, self._axis.clock(time_s), 17)
        if self._best is not None:
            label, score = self._best
            write(panel, 12, 14, f"{label} {score:.2f}", color or GREY, 3)
        panel[-_STRIP - 6 : -6] = self._strip
        fill(panel, self._axis.x(time_s) - 1, PANEL - _STRIP - 9, 2, _STRIP + 6, WHITE)

    def _paint(self, time_s: float) -> Color | None:
        """Paint the timeline up to now, less the delay; return the colour of the current event."""
        best = self._best
        sure = best is not None and best[1] >= self._threshold_of(best[0])
        color = self._color[best[0]] if best is not None and sure else None
        end_s = time_s + self._step_s
        over = self._axis.scroll(end_s)
        if over:
            self._strip = np.roll(self._strip, -over, axis=1)
            self._strip[:, -over:] = _NOTHING
        end_s -= self._delay_s
        begin_s = end_s - self._step_s if self._painted_s is None else self._painted_s
        if color is not None:
            x, end = self._axis.x(begin_s), self._axis.x(end_s)
            fill(self._strip, x, 0, end - x, _STRIP, color)
        self._painted_s = end_s
        return color


def write_clock(panel: Canvas, clock: str, y: int) -> None:
    """Write the time at the right."""
    write(panel, panel.shape[1] - text_width(clock, 2) - 12, y, clock, GREY)
