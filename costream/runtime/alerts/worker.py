"""Worker threads for alert actions, so that no action ever blocks the stream."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Protocol

from costream.core.errors import OutputError
from costream.runtime.alerts.actions import AlertEvent

log = logging.getLogger("costream")
QUEUE = 64  # most events that wait for one action
LOG_INTERVAL_S = 30.0  # least time between two messages about the same problem


class LogLimiter:
    """Rate-limited warnings: the first at once, then one per interval with the number left out."""

    def __init__(self, every_s: float = LOG_INTERVAL_S) -> None:
        self._every_s = every_s
        self._logged_s: float | None = None
        self._left_out = 0

    def warn(self, message: str) -> None:
        """Log a warning, or count it for the next message."""
        now_s = time.monotonic()
        if self._logged_s is not None and now_s - self._logged_s < self._every_s:
            self._left_out += 1
            return
        more = f" (and {self._left_out} more since the last message)" if self._left_out else ""
        log.warning("%s%s", message, more)
        self._logged_s, self._left_out = now_s, 0


class Action(Protocol):
    """An action run for each alert. The two methods are called from different threads."""

    @property
    def name(self) -> str:
        """The name shown in messages; holds no credentials."""

    @property
    def wants_clip(self) -> bool:
        """Whether the action waits until the clip of the alert, if any, has been written."""

    def do(self, event: AlertEvent) -> None:
        """Run the action, however long that takes. OutputError when it fails."""

    def cancel(self) -> None:
        """Make a running ``do`` end soon, for good."""


class ActionWorker:
    """Runs one action for a queue of events, one after the other.

    When the queue is full, the oldest waiting event is dropped. Failures and drops are counted,
    and logged at once, then at most every ``log_interval_s``.
    """

    def __init__(
        self, action: Action, queue: int = QUEUE, log_interval_s: float = LOG_INTERVAL_S
    ) -> None:
        self.action = action
        self.failed = 0  # events for which the action failed
        self.dropped = 0  # events for which the action was not run
        self._failures = LogLimiter(log_interval_s)
        self._drops = LogLimiter(log_interval_s)
        self._room = queue
        self._changed = threading.Condition()  # guards the next three
        self._waiting: deque[AlertEvent] = deque()
        self._ending = False
        self._thread: threading.Thread | None = None

    def put(self, event: AlertEvent) -> None:
        """Queue the action for ``event``; returns at once."""
        with self._changed:
            if self._ending:
                self._drop("an alert came after the watch had ended")
                return
            if len(self._waiting) >= self._room:
                self._waiting.popleft()
                self._drop("too slow, the oldest waiting alert was dropped")
            self._waiting.append(event)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=self.action.name, daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def finish(self) -> None:
        """Accept no more events, and end when the waiting ones are done."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def close(self, until_s: float) -> None:
        """After ``finish``: wait until time.monotonic() is ``until_s``, then cancel the rest."""
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
                if event.snapshot is not None:
                    event.snapshot.jpeg()  # writes the file before the action runs
                self.action.do(event)
            except OutputError as error:
                self.failed += 1
                self._failures.warn(str(error))

    def _next(self) -> AlertEvent | None:
        with self._changed:
            while not self._waiting:
                if self._ending:
                    return None
                self._changed.wait()
            return self._waiting.popleft()

    def _drop(self, why: str, count: int = 1) -> None:
        self.dropped += count
        self._drops.warn(f"{self.action.name}: {why}")
