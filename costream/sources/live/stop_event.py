"""Stop event that interrupts waits."""

from __future__ import annotations

import contextlib
from queue import Empty, SimpleQueue


class StopEvent:
    """Event set by any thread or a signal handler: SimpleQueue.put is reentrant."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[None] = SimpleQueue()
        self.is_set = False

    def set(self) -> None:
        """End the wait in progress and every later one."""
        self.is_set = True
        self._queue.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for this time or until the event is set; return whether it is set."""
        if not self.is_set and seconds > 0:
            with contextlib.suppress(Empty):
                self._queue.get(timeout=seconds)
        return self.is_set
