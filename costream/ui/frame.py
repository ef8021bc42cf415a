"""The live view as lines of text that fit a given width and height."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.text import Text

from costream.sinks.figure import Figure
from costream.ui.groups import Groups, Look
from costream.ui.sound import spectrum_lines
from costream.ui.state import RunState
from costream.ui.stick import stick_lines
from costream.ui.text import clean

_MOST_WIDTH = 100  # longer bars say nothing more

# The view from top to bottom, and which lines come in while there is room, first to last. Every
# group has one line to begin with, except blanks, the spectrogram, finished segments and losses.
# Scores, now and timeline are there once a head.
_ORDER = (
    *("title", "progress", "level", "spectrum", "blank 1", "scores", "blank 2", "now", "before"),
    *("blank 3", "timeline", "blank 4", "speed", "cost", "lost"),
)
_FIRST = ("title", "progress", "level", "scores", "now", "timeline", "speed", "cost")
_WISHES = (
    *("lost", "spectrum", "spectrum", "timeline", "spectrum", "scores", "spectrum", "speed"),
    *("before", "scores", "before", "blank 3", "blank 1", "before", "blank 2", "blank 4"),
    *("spectrum", "spectrum", "scores", "before", "scores", "before"),
)
_OF_HEADS = ("scores", "now", "timeline")

# A small figure of the persons stands to the right of these, which come one after the other.
_BESIDE = ("blank 1", "scores", "blank 2", "now", "before", "blank 3")
_FIGURE_ROWS = 10
_FIGURE_WIDTH = 2 + 2 * _FIGURE_ROWS


def frame(state: RunState, name: str, look: Look, now_s: float) -> list[Text]:
    """Give the view of ``state``: at most ``look.height`` lines, none wider than ``look.width``."""
    look = replace(look, width=min(look.width, _MOST_WIDTH))
    groups = Groups(state, clean(name), look, now_s).make()
    figure = state.figure if _has_room(look) else None
    narrow = replace(look, width=look.width - _FIGURE_WIDTH)
    each = [key for key in _each(_BESIDE, state) if key in groups]
    if figure is not None:
        beside = Groups(state, clean(name), narrow, now_s).make()
        groups |= {key: beside[key] for key in each}
    count = dict.fromkeys(groups, 0) | {key: 1 for key in _each(_FIRST, state) if key in groups}
    for key in _each(_WISHES, state):
        if key in groups and count[key] < len(groups[key]) and sum(count.values()) < look.height:
            count[key] += 1
    if state.hearing is not None and count["spectrum"]:
        rows = count["spectrum"]
        groups["spectrum"] = spectrum_lines(state.hearing, look.width, rows, unicode=look.unicode)
    order = [key for key in _each(_ORDER, state) if key in groups]
    lines = {key: groups[key][: count[key]] for key in order}
    if figure is not None:
        _put_beside(lines, each, figure, narrow.width, look.height - sum(count.values()))
    shown = [line for key in order for line in lines[key]][: look.height]
    for line in shown:
        line.truncate(look.width, overflow="ellipsis" if look.unicode else "crop")
    return shown


def _each(keys: Sequence[str], state: RunState) -> list[str]:
    """Give the names of the groups, those of heads once a head."""
    heads = range(len(state.voices))
    return [
        name
        for key in keys
        for name in ([f"{key} {k}" for k in heads] if key in _OF_HEADS else [key])
    ]


def _has_room(look: Look) -> bool:
    return look.unicode and look.width >= 60 and look.height >= 16


def _put_beside(
    lines: dict[str, list[Text]], keys: Sequence[str], figure: Figure, width: int, spare: int
) -> None:
    """Append the figure to the lines of the groups ``keys``, which are ``width`` wide.

    ``spare``: lines that may be added to make room for it.
    """
    own = [line.copy() for key in keys for line in lines[key]]
    own += [Text("") for _ in range(min(spare, _FIGURE_ROWS - len(own)))]
    rows = min(len(own), _FIGURE_ROWS)
    for line, dots in zip(own, stick_lines(figure, rows), strict=False):
        line.truncate(width, pad=True)
        line.append("  ").append(dots, "cyan")
    for key in keys:
        lines[key] = []
    lines[keys[0]] = own
