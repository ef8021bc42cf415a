"""Actions are done in threads of their own, so that none of them ever holds the stream."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Protocol

from costream.errors import OutputError
from costream.runtime.alerts.event import Event
from costream.runtime.alerts.teller import TELL_S, Teller

QUEUE = 64  # events that wait for one action at most


class Action(Protocol):
    """Something that is done for each alert. Both methods are called by different threads."""

    @property
    def name(self) -> str:
        """What it is called in messages; holds no credentials."""

    @property
    def wants_clip(self) -> bool:
        """It is done only once the clip of the alert has been written, where there is one."""

    def do(self, event: Event) -> None:
        """Do it, however long that takes. OutputError when it failed."""

    def cancel(self) -> None:
        """End ``do`` soon, for good."""


class Worker:
    """Does one action for the events it is given, one after the other.

    When they come faster than they are done, the oldest that wait are dropped. Failures and drops
    are counted, and logged at once, then at most every TELL_S.
    """

    def __init__(self, action: Action, queue: int = QUEUE, tell_s: float = TELL_S) -> None:
        self.action = action
        self.failed = 0  # events for which the action failed
        self.dropped = 0  # events for which it was not done
        self._failures = Teller(tell_s)
        self._drops = Teller(tell_s)
        self._room = queue
        self._changed = threading.Condition()  # guards the three below
        self._waiting: deque[Event] = deque()
        self._ending = False
        self._thread: threading.Thread | None = None

    def put(self, event: Event) -> None:
        """Let it be done for ``event`` soon; returns at once."""
        with self._changed:
            if self._ending:
                self._drop("an alert came after the end")
                return
            if len(self._waiting) >= self._room:
                self._waiting.popleft()
                self._drop("too slow, the oldest alert that waited was dropped")
            self._waiting.append(event)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=self.action.name, daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def finish(self) -> None:
        """Take no more events, and end when those that wait are done."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def close(self, until_s: float) -> None:
        """After ``finish``: wait until time.monotonic() is ``until_s``, then end what is left."""
        thread = self._thread
        if thread is None:
            return
        thread.join(max(0.0, until_s - time.monotonic()))
        if not thread.is_alive():
            return
        with self._changed:
            if self._waiting:
                self._drop("not done in time", len(self._waiting))
                self._waiting.clear()
        self.action.cancel()
        thread.join(1.0)

    def _run(self) -> None:
        while (event := self._next()) is not None:
            try:
                self.action.do(event)
            except OutputError as error:
                self.failed += 1
                self._failures.tell(str(error))

    def _next(self) -> Event | None:
        with self._changed:
            while not self._waiting:
                if self._ending:
                    return None
                self._changed.wait()
            return self._waiting.popleft()

    def _drop(self, why: str, count: int = 1) -> None:
        self.dropped += count
        self._drops.tell(f"{self.action.name}: {why}")
