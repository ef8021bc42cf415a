"""Graceful stops: signals end a run after its files are finalised."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType

from costream.core.errors import ExitCode


class Stopped(BaseException):
    """Raised for a stop signal that arrives while no run has to be finalised."""

    def __init__(self, exit_code: ExitCode) -> None:
        super().__init__(exit_code.name)
        self.exit_code = exit_code


class StopHandler:
    """A stop event: a run polls ``requested`` to learn that it should end.

    ``exit_code`` is the code to end with, None before a stop was requested. As a context manager it
    handles SIGINT, SIGTERM and SIGHUP: the first signal ends the run in progress
    (``while_running``) or, when there is none, raises Stopped; the second one, and any while
    ``loading``, exits at once.
    """

    def __init__(self) -> None:
        self.exit_code: ExitCode | None = None
        self.requested = False  # a signal arrived, or ``request`` was called
        self._loading = False
        self._running: Callable[[], None] | None = None
        self._previous: dict[int, object] = {}

    def request(self, exit_code: ExitCode = ExitCode.SIGINT) -> None:
        """Ask the run in progress to end."""
        self.exit_code = exit_code
        self.requested = True
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

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Make any signal exit at once while libraries or a model are loaded.

        An exception raised there may end in C++, which aborts, or in an extension that prints it
        and continues. No file needs to be finished yet.
        """
        before, self._loading = self._loading, True
        try:
            yield
        finally:
            self._loading = before

    def __enter__(self) -> StopHandler:
        for number in _signals():
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        code = ExitCode.SIGINT if number == signal.SIGINT else ExitCode.SIGTERM
        if self.requested or self._loading:
            from costream.ui.console import restore_cursor  # imported already by the run

            restore_cursor(sys.stderr)
            os._exit(int(code))
        self.request(code)
        if self._running is None:
            raise Stopped(code)


def loading() -> AbstractContextManager[None]:
    """Return ``StopHandler.loading`` of the object that handles SIGINT now; without one, nothing.

    Only the program handles signals: this has no effect in a process that uses the API.
    """
    handler = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    return handler.loading() if isinstance(handler, StopHandler) else nullcontext()


def _signals() -> list[int]:
    # SIGHUP (the terminal was closed) is treated as SIGTERM, except under nohup; Windows does not
    # have it.
    numbers = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return [int(n) for n in numbers]
