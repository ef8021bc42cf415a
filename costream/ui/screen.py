"""Fixed lines at the bottom of a terminal; only those that have changed are rewritten."""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from rich.console import Console, ConsoleRenderable, RenderHook
from rich.control import Control
from rich.segment import ControlType, Segment, Segments
from rich.style import Style
from rich.text import Text

from costream.ui.console import is_unicode

_TO_START = (ControlType.CARRIAGE_RETURN,)
_ERASE_LINE = (ControlType.ERASE_IN_LINE, 2)
_ERASE_REST = Control((ControlType.ERASE_IN_LINE, 0)).segment
_UP = (ControlType.CURSOR_UP, 1)


@dataclass(frozen=True)
class Viewport:
    """Size and character set of the terminal."""

    width: int
    height: int
    unicode: bool = True


class Screen(RenderHook):
    """Lines at the bottom of a terminal: ``open``, ``draw`` any number of times, ``close``.

    The styles of a line must not overlap, as in a line that was built by appending.

    It replaces rich.Live, which repeats the whole layout for each redraw and so takes three times
    as long. Anything else printed on the console appears above the lines.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: list[Text] = []  # on the screen; the cursor is at the end of the last
        self._width = 0  # of the terminal when they were drawn
        self._is_drawing = False  # these lines are being printed
        self._is_open = False

    def open(self) -> None:
        """Reserve the bottom of the terminal, which is released at the latest on exit."""
        atexit.register(self.close)
        self._is_open = True
        self._console.show_cursor(False)
        self._console.push_render_hook(self)

    @property
    def viewport(self) -> Viewport:
        """The room for lines. One column and one row stay free: some terminals scroll otherwise."""
        width, height = self._console.size
        return Viewport(width - 1, height - 1, is_unicode(self._console))

    def draw(self, lines: Sequence[Text]) -> None:
        """Show these lines, each narrower than the terminal was when they were made."""
        width = self._console.width
        same = len(lines) == len(self._lines) and self._width == width
        parts = self._changes(lines) if same else [*self._erasure(), *self._painted(lines)]
        if not same and any(line.cell_len > width for line in lines):
            width = 0  # it has just become narrower and wraps them: redraw all next time
        self._lines, self._width = list(lines), width
        self._print(parts)

    def close(self) -> None:
        """Erase the lines and restore the cursor. May be called again."""
        if not self._is_open:
            return
        self._is_open = False
        atexit.unregister(self.close)
        self._print(self._erasure())
        self._lines = []
        self._console.pop_render_hook()
        self._console.show_cursor(True)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Put other output above the lines."""
        if self._is_drawing:
            return renderables
        before, after = Segments(self._erasure()), Segments(self._painted(self._lines))
        self._width = self._console.width
        return [before, *renderables, after]

    def _print(self, parts: Iterable[Segment]) -> None:
        self._is_drawing = True
        try:
            self._console.print(Segments(parts), end="", crop=False)
        finally:
            self._is_drawing = False

    def _changes(self, lines: Sequence[Text]) -> list[Segment]:
        """Return the segments that turn the lines on the screen into ``lines``, equal in number."""
        if not lines:
            return []
        parts = [Control(_TO_START, *[_UP] * (len(lines) - 1)).segment]
        for k, (line, shown) in enumerate(zip(lines, self._lines, strict=True)):
            if k:
                parts.append(Segment.line())
            if line != shown or line.style != shown.style:  # Text's equality ignores the style
                parts += [*_segments(line), _ERASE_REST]
        return parts

    def _painted(self, lines: Sequence[Text]) -> list[Segment]:
        parts: list[Segment] = []
        for k, line in enumerate(lines):
            parts += [*([Segment.line()] if k else []), *_segments(line)]
        return parts

    def _erasure(self) -> list[Segment]:
        """Return the segments that erase the lines, also if a narrower terminal wraps them."""
        if not self._lines:
            return []
        width = max(1, self._console.width)
        rows = sum(max(1, -(-line.cell_len // width)) for line in self._lines)
        return [Control(_TO_START, _ERASE_LINE, *[_UP, _ERASE_LINE] * (rows - 1)).segment]


def _segments(line: Text) -> Iterator[Segment]:
    """Yield the segments of ``line.render`` for non-overlapping styles, several times as fast."""
    plain, base, done = line.plain, _style(line.style), 0
    for begin, end, style in line.spans:
        if begin > done:
            yield Segment(plain[done:begin], base)
        yield Segment(plain[begin:end], base + _style(style) if base else _style(style))
        done = end
    if done < len(plain):
        yield Segment(plain[done:], base)


@cache
def _style(style: str | Style) -> Style:
    return style if isinstance(style, Style) else Style.parse(style)
