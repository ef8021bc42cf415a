"""The queue between the thread of a feed and the network, and the events in it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from threading import Condition
from typing import TypeAlias

from costream.core.clock import Tick
from costream.core.records import Fault, Gap, SourceInfo


@dataclass(frozen=True)
class SourceOpened:
    """The source has been opened."""

    info: SourceInfo


@dataclass(frozen=True)
class ReadyStep:
    """A step that is ready for the network."""

    tick: Tick
    decode_s: float  # CPU time that the feed's thread spent on it
    put_s: float  # time.monotonic() when it became ready
    since_s: float  # from when its lateness counts: not before, and at an even pace in a burst
    apart_s: float = 0.0  # media time since the feed's step before, also if that is dropped


@dataclass(frozen=True)
class SourceEnded:
    """The source has been closed; ``error`` is why it could not be read, else None."""

    error: Exception | None


FeedEvent: TypeAlias = SourceOpened | ReadyStep | Gap | Fault | SourceEnded


class Buffer:
    """A queue between the thread of one feed and the one that steps the network.

    It holds at most ``size`` steps. When it is full, ``put`` waits if ``block``, else the oldest
    step is dropped; so are steps that would be done more than ``lag_s`` after their ``since_s``,
    except the newest. Other events (gaps, faults, the end) are always kept, in order.
    """

    def __init__(self, size: int, lag_s: float, *, block: bool, arrived: Condition) -> None:
        """``arrived``: notified at every put; shared by all buffers."""
        self._size, self._lag_s, self._block = size, lag_s, block
        self._arrived = arrived
        self._events: deque[FeedEvent] = deque()
        self._steps = 0  # among the events
        self._closed = False
        self.late = self.crowded = 0  # dropped: the network was too slow, the buffer full
        self._step_s = self._newest_step_s = 0.0  # duration of a step

    @property
    def dropped(self) -> int:
        """Number of dropped steps."""
        return self.late + self.crowded

    @property
    def waiting_since_s(self) -> float | None:
        """The time at which the oldest waiting step was put; None without steps."""
        with self._arrived:
            return next((e.put_s for e in self._events if isinstance(e, ReadyStep)), None)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to take."""
        return not self._events

    def put(self, event: FeedEvent) -> None:
        """Add an event; called by the feed's thread."""
        with self._arrived:
            if isinstance(event, ReadyStep):
                while self._block and self._steps >= self._size and not self._closed:
                    self._arrived.wait()
                if self._steps >= self._size:
                    late = self._is_late()
                    self.late, self.crowded = self.late + late, self.crowded + (not late)
                    self._drop()
                self._steps += 1
            self._events.append(event)
            self._arrived.notify_all()

    def take(self) -> list[FeedEvent]:
        """Return the events up to and including the next step; called by the network's thread."""
        taken: list[FeedEvent] = []
        with self._arrived:
            while not self._block and self._steps > 1 and self._is_late():
                self.late += 1
                self._drop()
            while self._events:
                taken.append(self._events.popleft())
                if isinstance(taken[-1], ReadyStep):
                    self._steps -= 1
                    break
            self._arrived.notify_all()
        return taken

    def add_duration(self, seconds: float) -> None:
        """Take the duration of a step, from ``take`` to its result.

        The shorter one of the newest two counts, so that after a single slow step not all that wait
        are late.
        """
        self._step_s = min(seconds, self._newest_step_s or seconds)
        self._newest_step_s = seconds

    def close(self) -> None:
        """Make ``put`` return without waiting from now on."""
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()

    def _is_late(self) -> bool:
        oldest = next(e for e in self._events if isinstance(e, ReadyStep))
        return time.monotonic() + self._step_s - oldest.since_s > self._lag_s

    def _drop(self) -> None:
        """Drop the oldest step."""
        for k, event in enumerate(self._events):
            if isinstance(event, ReadyStep):
                del self._events[k]
                self._steps -= 1
                return
