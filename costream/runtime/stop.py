"""Graceful stops: signals end a run after its files are finalised."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from costream.core.errors import ExitCode


class Stopped(BaseException):
    """Raised for a stop signal that arrives while no run has to be finalised."""

    def __init__(self, exit_code: ExitCode) -> None:
        super().__init__(exit_code.name)
        self.exit_code = exit_code


_loading = False


@contextmanager
def loading() -> Iterator[None]:
    """Let a stop signal end the program at once while libraries or a model are loaded.

    An exception raised in the middle of that may end in C++, which aborts, or in an extension
    that prints it and goes on. Nothing needs to be finalised yet. Without effect outside of a
    StopHandler.
    """
    global _loading
    before, _loading = _loading, True
    try:
        yield
    finally:
        _loading = before


class StopHandler:
    """A stop event: a run polls it to learn that it should end.

    As a context manager it handles SIGINT, SIGTERM and SIGHUP: the first signal ends the run in
    progress (``while_running``) or, when there is none, raises Stopped; the second, and any while
    ``loading``, exits at once.
    """

    def __init__(self) -> None:
        self.exit_code: ExitCode | None = None
        self._running: Callable[[], None] | None = None
        self._previous: dict[int, object] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal arrived or ``request`` was called."""
        return self.exit_code is not None

    def request(self, exit_code: ExitCode = ExitCode.SIGINT) -> None:
        """Ask the run in progress to end."""
        self.exit_code = exit_code
        if self._running is not None:
            self._running()

    @contextmanager
    def while_running(self, stop_source: Callable[[], None]) -> Iterator[None]:
        """Let signals end a run through ``stop_source`` instead of raising."""
        self._running = stop_source
        try:
            yield
        finally:
            self._running = None

    def __enter__(self) -> StopHandler:
        for number in _signals():
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        code = ExitCode.SIGINT if number == signal.SIGINT else ExitCode.SIGTERM
        if self.requested or _loading:
            from costream.ui.console import restore_cursor  # imported already by the run

            restore_cursor(sys.stderr)
            os._exit(int(code))
        self.request(code)
        if self._running is None:
            raise Stopped(code)


def _signals() -> list[int]:
    # SIGHUP (the terminal was closed) is treated as SIGTERM, except under nohup; Windows does not
    # have it.
    numbers = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return [int(n) for n in numbers]
