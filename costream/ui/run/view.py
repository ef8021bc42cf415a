"""Live view: redrawn a few times a second on standard error, removed when the run ends."""

from __future__ import annotations

import atexit
import time

from rich.console import Console

from costream.records import Header, Picture, Record, Summary
from costream.ui.console import is_unicode
from costream.ui.frame import LiveLayout
from costream.ui.run.sections import Viewport
from costream.ui.run.state import RunState
from costream.ui.screen import Screen

# A redraw takes about 2 ms; at this interval it uses 1 % of one core and still looks live.
_REFRESH_S = 0.22


class LiveView:
    """Sink that shows the records of one run on ``console``.

    ``name``: name of the source. Draws only from within ``open``, ``write`` and
    ``close``, so there is no thread and nothing to lock. Only one may be open at a time.
    """

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._screen: Screen | None = None
        self._state: RunState | None = None
        self._frame: LiveLayout | None = None
        self._drawn_s = 0.0

    def open(self, header: Header) -> None:
        """Show the view."""
        self._state = RunState(header, time.monotonic())
        self._frame = LiveLayout(self._state, self._name)
        self._screen = Screen(self._console)
        atexit.register(self.stop)
        self._screen.open()
        self._draw()

    def write(self, record: Record) -> None:
        """Add a record; redraw if it is due."""
        if self._state is None:
            return
        self._state.add(record)
        if time.monotonic() - self._drawn_s >= _REFRESH_S:
            self._draw()

    def draw(self, picture: Picture) -> None:
        """Add the input of a step; it is shown with the next redraw."""
        if self._state is not None:
            self._state.look(picture)

    def close(self, summary: Summary) -> None:
        """Remove the view from the screen and restore the cursor."""
        self.stop()

    def stop(self) -> None:
        """Do the same as ``close``, for exits without a summary. May be called again."""
        screen, self._screen = self._screen, None
        if screen is not None:
            screen.close()
            atexit.unregister(self.stop)

    def _draw(self) -> None:
        screen, frame = self._screen, self._frame
        if screen is None or frame is None:
            return
        self._drawn_s = time.monotonic()
        # One column and one row stay free: some terminals scroll when the last is written to.
        look = Viewport(
            self._console.width - 1, self._console.height - 1, is_unicode(self._console)
        )
        screen.draw(frame.lines(look, self._drawn_s))
