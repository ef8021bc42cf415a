"""The live view: redrawn a few times a second on standard error, gone when the run ends."""

from __future__ import annotations

import atexit
import time

from rich.console import Console
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType

from costream.records import Header, Picture, Record, Summary
from costream.ui.console import is_unicode
from costream.ui.frame import Look, frame
from costream.ui.state import RunState

# A redraw costs some 8 ms; this often it takes 4 % of one core and still looks alive.
_REFRESH_S = 0.22


class LiveView:
    """Takes the records of one run like a sink and shows them on ``console``.

    ``name``: what the source is called. Draws only from within ``open``, ``write`` and
    ``close``, so there is no thread and nothing to lock. Only one may be open at a time.
    """

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._live: Live | None = None
        self._state: RunState | None = None
        self._drawn_s = 0.0
        self._widths: list[int] = []  # of the lines on the screen

    def open(self, header: Header) -> None:
        """Show the view."""
        self._state = RunState(header, time.monotonic())
        # rich would otherwise swallow what goes to standard output, which holds the records.
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        atexit.register(self.stop)
        self._live.start()
        self._draw()

    def write(self, record: Record) -> None:
        """Take a record; redraw when it is time."""
        if self._state is None:
            return
        self._state.add(record)
        if time.monotonic() - self._drawn_s >= _REFRESH_S:
            self._draw()

    def draw(self, picture: Picture) -> None:
        """Take what a step saw; it is shown with the next redraw."""
        if self._state is not None:
            self._state.look(picture)

    def close(self, summary: Summary) -> None:
        """Take the view off the screen and give the cursor back."""
        self.stop()

    def stop(self) -> None:
        """Do what ``close`` does, for exits without a summary. May be called again."""
        live, self._live = self._live, None
        if live is not None:
            self._rewrap()
            live.stop()
            atexit.unregister(self.stop)

    def _draw(self) -> None:
        live, state = self._live, self._state
        if live is None or state is None:
            return
        self._drawn_s = time.monotonic()
        self._rewrap()
        # One column and one row stay free: some terminals scroll when the last is written to.
        look = Look(self._console.width - 1, self._console.height - 1, is_unicode(self._console))
        text = frame(state, self._name, look, self._drawn_s)
        live.update(text, refresh=True)
        self._widths = [line.cell_len for line in text.split("\n", allow_blank=True)]

    def _rewrap(self) -> None:
        """Clear the extra lines that a terminal made narrower has broken the old ones into."""
        width = max(1, self._console.width)
        extra = sum((max(1, cells) - 1) // width for cells in self._widths)
        if extra:
            up = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))
            self._console.control(Control(*(up * extra)))
