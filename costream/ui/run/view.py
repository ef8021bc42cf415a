"""Live view: redrawn a few times a second on standard error, removed when the run ends."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from costream.core.formatting import clean
from costream.core.records import Fault, Header, Picture, Record, Summary
from costream.draw.audio_meter import AudioMeter
from costream.draw.skeleton import Figure
from costream.ui.run.glyphs import spectrum_lines, stick_lines
from costream.ui.run.object_sections import ObjectLineGroups
from costream.ui.run.sections import LineGroups
from costream.ui.run.state import RunState
from costream.ui.screen import Screen, Viewport

# A redraw takes about 2 ms; at this interval it uses 1 % of one core and still looks live.
REFRESH_S = 0.22


class LiveView:
    """Sink that shows the records of one run on ``console``.

    ``name``: name of the source. ``live``: it is a live source. Draws only from within ``open``,
    ``write`` and ``close``, so there is no thread and nothing to lock. Only one may be open at a
    time.
    """

    def __init__(self, console: Console, name: str, *, live: bool = False) -> None:
        self._name, self._live = name, live
        self._screen = Screen(console)
        self._state: RunState | None = None
        self._layout: LiveLayout | None = None
        self._drawn_s = 0.0

    def open(self, header: Header) -> None:
        """Show the view."""
        self._state = RunState(header, time.monotonic(), live=self._live)
        self._layout = LiveLayout(self._state, self._name)
        self._screen.open()
        self._draw()

    def write(self, record: Record) -> None:
        """Add a record; redraw if it is due."""
        if self._state is None:
            return
        self._state.add(record)
        # After the loss of a live source no more records may come for long.
        lost = self._state.lost and isinstance(record, Fault)
        if lost or time.monotonic() - self._drawn_s >= REFRESH_S:
            self._draw()

    def draw(self, picture: Picture) -> None:
        """Add the input of a step; it is shown with the next redraw."""
        if self._state is not None:
            self._state.add_input(picture)

    def close(self, summary: Summary) -> None:
        """Remove the view from the screen and restore the cursor."""
        self._screen.close()
        self._layout = None

    def _draw(self) -> None:
        if self._layout is not None:
            self._drawn_s = time.monotonic()
            self._screen.draw(self._layout.lines(self._screen.viewport, self._drawn_s))


_MOST_WIDTH = 100  # longer bars give no more information
# The spectrogram takes as long as everything else, so it is redrawn only twice a second.
_SPECTRUM_S = 0.4
# The groups from top to bottom, and the order in which more lines are added while there is room.
# Every group starts with one line, except blanks, the spectrogram, finished segments and losses.
# Scores, now and timeline exist once per head.
_ORDER = (
    *("title", "progress", "level", "spectrum", "blank 1", "scores", "blank 2", "now", "before"),
    *("blank 3", "timeline", "blank 4", "tokens", "share", "speed", "cost", "lost"),
)
_FIRST = ("title", "progress", "level", "scores", "now", "timeline", "tokens", "speed", "cost")
_WISHES = (
    *("share", "lost", "spectrum", "spectrum", "timeline", "spectrum", "scores", "timeline"),
    *("spectrum", "speed"),
    *("before", "scores", "before", "blank 3", "blank 1", "before", "blank 2", "blank 4"),
    *("spectrum", "spectrum", "scores", "before", "scores", "timeline", "before"),
    *("timeline", "timeline", "timeline"),
)
_OF_HEADS = ("scores", "now", "timeline")
# A small figure of the persons is shown to the right of these groups.
_BESIDE = ("blank 1", "scores", "blank 2", "now", "before", "blank 3")
_FIGURE_ROWS = 10
_FIGURE_WIDTH = 2 + 2 * _FIGURE_ROWS


class LiveLayout:
    """The live view of a run as lines of text; ``name``: name of its source."""

    def __init__(self, state: RunState, name: str) -> None:
        self._state = state
        self._groups = _groups(state, clean(name))
        self._narrow = _groups(state, clean(name))  # beside a figure
        self._spectrum: list[Text] = []
        self._spectrum_of: tuple[Viewport, int] | None = None  # viewport and rows of these lines
        self._spectrum_s = -math.inf  # time at which they were built

    def lines(self, viewport: Viewport, now_s: float) -> list[Text]:
        """Return at most ``viewport.height`` lines, none wider than ``viewport.width``."""
        state = self._state
        viewport = replace(viewport, width=min(viewport.width, _MOST_WIDTH))
        groups = self._groups.make(viewport, now_s)
        has_room = viewport.unicode and viewport.width >= 60 and viewport.height >= 16
        figure = state.figure if has_room else None
        narrow = replace(viewport, width=viewport.width - _FIGURE_WIDTH)
        each = [key for key in _each(_BESIDE, state) if key in groups]
        if figure is not None:
            beside = self._narrow.make(narrow, now_s)
            groups |= {key: beside[key] for key in each}
        count = self._count(groups, viewport.height)
        if state.audio_meter is not None and count["spectrum"]:
            self._paint(state.audio_meter, viewport, count["spectrum"], now_s)
            groups["spectrum"] = self._spectrum
        order = [key for key in _each(_ORDER, state) if key in groups]
        lines = {key: groups[key][: count[key]] for key in order}
        if figure is not None:
            _put_beside(lines, each, figure, narrow.width, viewport.height - sum(count.values()))
        shown = [line for key in order for line in lines[key]][: viewport.height]
        for line in shown:
            line.truncate(viewport.width, overflow="ellipsis" if viewport.unicode else "crop")
        return shown

    def _paint(self, meter: AudioMeter, viewport: Viewport, rows: int, now_s: float) -> None:
        """Rebuild the spectrogram, unless it is recent."""
        age_s = now_s - self._spectrum_s
        if self._spectrum_of != (viewport, rows) or not 0 <= age_s < _SPECTRUM_S:
            self._spectrum = spectrum_lines(meter, viewport.width, rows, unicode=viewport.unicode)
            self._spectrum_of, self._spectrum_s = (viewport, rows), now_s

    def _count(self, groups: Mapping[str, Sequence[Text]], height: int) -> dict[str, int]:
        """Return the number of lines of each group that fit."""
        count = dict.fromkeys(groups, 0)
        count |= {key: 1 for key in _each(_FIRST, self._state) if key in groups}
        left = height - sum(count.values())
        for key in _each(_WISHES, self._state):
            if left > 0 and key in groups and count[key] < len(groups[key]):
                count[key] += 1
                left -= 1
        return count


def _groups(state: RunState, name: str) -> LineGroups:
    if state.object_state is None:
        return LineGroups(state, name)
    return ObjectLineGroups(state, state.object_state, name)


def _each(keys: Sequence[str], state: RunState) -> list[str]:
    """Return the names of the groups; groups of heads once per head."""
    heads = range(len(state.head_states))
    return [
        name
        for key in keys
        for name in ([f"{key} {k}" for k in heads] if key in _OF_HEADS else [key])
    ]


def _put_beside(
    lines: dict[str, list[Text]], keys: Sequence[str], figure: Figure, width: int, spare: int
) -> None:
    """Append the figure to the lines of the groups ``keys``, which are ``width`` wide.

    ``spare``: lines that may be added to make room for it.
    """
    padded = [line.copy() for key in keys for line in lines[key]]
    padded += [Text("") for _ in range(min(spare, _FIGURE_ROWS - len(padded)))]
    rows = min(len(padded), _FIGURE_ROWS)
    for line, dots in zip(padded, stick_lines(figure, rows), strict=False):
        line.truncate(width, pad=True)
        line.append("  ").append(dots, "cyan")
    for key in keys:
        lines[key] = []
    lines[keys[0]] = padded
