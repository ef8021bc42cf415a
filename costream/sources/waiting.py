"""Waits that a signal or another thread can end."""

from __future__ import annotations

import contextlib
import math
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    pass


# Waits are split into pieces of this length: the handler of a signal that arrives just before a
# piece runs only after it.
_SIGNALS_S = 0.25
ItemT = TypeVar("ItemT")


def take(queue: SimpleQueue[ItemT], seconds: float = math.inf) -> ItemT:
    """Return the next item of a queue; raise queue.Empty after ``seconds`` without one."""
    until_s = time.monotonic() + max(0.0, seconds)
    while True:
        left_s = max(0.0, until_s - time.monotonic())
        try:
            return queue.get(timeout=min(left_s, _SIGNALS_S))
        except Empty:
            if left_s <= _SIGNALS_S:
                raise


class StopEvent:
    """Event that any thread or signal handler can set: SimpleQueue.put is reentrant."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[None] = SimpleQueue()
        self.is_set = False

    def set(self) -> None:
        """Set the event; current and later waits end at once."""
        self.is_set = True
        self._queue.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for this time or until the event is set; return whether it is set."""
        if not self.is_set and seconds > 0:
            with contextlib.suppress(Empty):
                take(self._queue, seconds)
        return self.is_set
