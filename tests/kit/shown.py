"""What views show, as text: consoles whose output can be read, and frames of the live view."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text

from costream.core.records import Header, Picture, Record
from costream.ui.run.state import RunState
from costream.ui.run.view import LiveLayout
from costream.ui.screen import Viewport

BEGAN_S = 100.0
SIZES = [(w, h) for w in (1, 5, 20, 39, 79, 130) for h in (1, 3, 7, 11, 14, 23, 39)]


def console(width: int = 80, **options: Any) -> Console:
    """Return a console that writes plain text into memory."""
    options = {"markup": False, "highlight": False, "emoji": False, **options}
    return Console(file=io.StringIO(), width=width, **options)


def written(target: Console) -> list[str]:
    """Return the lines of such a console, without spaces at their ends."""
    assert isinstance(target.file, io.StringIO)
    return [line.rstrip() for line in target.file.getvalue().split("\n")]


def state_of(header: Header, *contents: Record | Picture) -> RunState:
    """Return the state of a run that began at BEGAN_S, after these records and inputs."""
    state = RunState(header, BEGAN_S)
    for content in contents:
        (state.add_input if isinstance(content, Picture) else state.add)(content)  # type: ignore[arg-type]
    return state


def text_of(
    view: RunState | LiveLayout,
    width: int = 79,
    height: int = 23,
    now_s: float = BEGAN_S + 1,
    unicode: bool = True,
) -> str:
    """Return a frame of the live view, without spaces at the ends of lines."""
    layout = view if isinstance(view, LiveLayout) else LiveLayout(view, "clip.mp4")
    lines = layout.lines(Viewport(width, height, unicode), now_s)
    return "\n".join(line.plain.rstrip() for line in lines)


def check_fit(lines: Iterable[Text], width: int, height: int, *, ascii: bool) -> None:
    """Fail unless lines fit a terminal and hold nothing that it acts upon."""
    lines = list(lines)
    assert len(lines) <= height
    for line in lines:
        assert line.cell_len <= width
        assert line.plain.isprintable()
        assert not ascii or line.plain.isascii()
