"""Dashboard of a watch: redrawn at the bottom of the terminal, removed when the watch ends."""

from __future__ import annotations

import atexit

from rich.console import Console

from costream.status import WatchStatus
from costream.ui.board import Board
from costream.ui.console import is_unicode
from costream.ui.feedtotals import print_totals
from costream.ui.run.sections import Viewport
from costream.ui.screen import Screen


class Dashboard:
    """Display of the status of a watch on ``console``.

    ``show`` draws, so it is called a few times a second; there is no thread and nothing to lock.
    ``close`` prints the totals of each feed. Only one may be open at a time.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._board = Board()
        self._status: WatchStatus | None = None
        self._screen: Screen | None = None

    def show(self, status: WatchStatus) -> None:
        """Draw the current status."""
        if self._screen is None:
            self._screen = Screen(self._console)
            atexit.register(self.stop)
            self._screen.open()
        self._status = status
        # One column and one row stay free: some terminals scroll when the last is written to.
        look = Viewport(
            self._console.width - 1, self._console.height - 1, is_unicode(self._console)
        )
        self._screen.draw(self._board.lines(status, look))

    def close(self) -> None:
        """Remove the dashboard from the screen and print the totals of each feed."""
        self.stop()
        status, self._status = self._status, None
        if status is not None:
            print_totals(self._console, status)

    def stop(self) -> None:
        """Remove the dashboard from the screen and restore the cursor. May be called again."""
        screen, self._screen = self._screen, None
        if screen is not None:
            screen.close()
            atexit.unregister(self.stop)
