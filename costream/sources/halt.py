"""A word to stop that ends waits at once."""

from __future__ import annotations

import contextlib
from queue import Empty, SimpleQueue


class Halt:
    """Set once, by any thread or a signal handler: SimpleQueue.put may interrupt itself."""

    def __init__(self) -> None:
        self._words: SimpleQueue[None] = SimpleQueue()
        self.told = False

    def set(self) -> None:
        """End the wait in progress and every later one."""
        self.told = True
        self._words.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until it is set; tell whether it is."""
        if not self.told and seconds > 0:
            with contextlib.suppress(Empty):
                self._words.get(timeout=seconds)
        return self.told
