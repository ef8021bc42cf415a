"""Stop event that interrupts waits."""

from __future__ import annotations

import contextlib
from queue import Empty, SimpleQueue


class StopEvent:
    """Event set by any thread or a signal handler: SimpleQueue.put is reentrant."""

    def __init__(self) -> None:
        self._words: SimpleQueue[None] = SimpleQueue()
        self.told = False

    def set(self) -> None:
        """End the wait in progress and every later one."""
        self.told = True
        self._words.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for this time or until the event is set; return whether it is set."""
        if not self.told and seconds > 0:
            with contextlib.suppress(Empty):
                self._words.get(timeout=seconds)
        return self.told
