"""The reader thread of one feed, which alone opens, reads and closes its source."""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from threading import Condition, Thread
from typing import TypeAlias

from costream.core.clock import Tick, TickItem
from costream.core.records import AudioBlock, Fault, Gap, Item, SourceInfo, VideoFrame
from costream.runtime.masks import MaskPainter
from costream.sources.base import Connection, LiveSource, Source

log = logging.getLogger("costream")
Clock: TypeAlias = Callable[[Iterable[Item]], Iterator[TickItem]]


class Feed:
    """Reads ``source`` in a thread and puts its items, on the model's clock, into ``buffer``.

    Times are those of the source. A thread that is stuck in a library is abandoned when the program
    ends.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        clock: Clock,
        buffer: Buffer,
        painter: MaskPainter | None = None,
        *,
        sporadic: bool = False,
    ) -> None:
        """``sporadic``: data come when something happens, and silence is no stall."""
        self.source, self.buffer = source, buffer
        self._live = source if isinstance(source, LiveSource) else None
        self.rate = Rate()  # of received items
        self.newest_s: float | None = None  # time.monotonic() at which the newest data arrived
        self.delays = ArrivalDelays()
        self._sporadic = sporadic
        self._beside = False  # there is sound beside the pictures
        self._begun_s: float | None = None  # time.monotonic() of the first item since a gap
        self._apart_s = (0.0, 0.0)  # media time between the last three items
        self._item_s = self._tick_s = math.nan  # media time of the newest item and tick
        self._clock, self._painter = clock, painter or MaskPainter(())
        self._thread = Thread(target=self._run, name=f"feed {name}", daemon=True)

    @property
    def connection(self) -> Connection:
        """The state of the source's connection."""
        if self._live is not None:
            return self._live.connection
        return Connection("live" if self._thread.is_alive() else "ended")

    @property
    def drift_ppm(self) -> float | None:
        """The excess rate of the source's clock over the local one, in ppm; None: unknown."""
        return None if self._live is None else self._live.drift_ppm

    @property
    def dropped(self) -> int:
        """Number of items that the source itself dropped because they were not read in time."""
        return 0 if self._live is None else self._live.dropped

    def pause_s(self, now_s: float) -> float:
        """Return the longest time between arrivals of data that is usual for this feed.

        Frames are rare in some, others send bursts (HLS); how long those are is not known at first.
        """
        if self._sporadic:
            return math.inf
        if self._begun_s is not None and now_s - self._begun_s < YOUNG_S:
            return max(FIRST_PAUSE_S, self.delays.most_s)
        return max(self.delays.most_s, min(self._apart_s))

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end soon."""
        self.source.stop()
        self.buffer.close()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; return False when it does not."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        error: Exception | None = None
        try:
            info = self.source.open()
            self._beside = info.extra_audio
            self.buffer.put(SourceOpened(info))
            busy_s = time.thread_time()
            for event in self._clock(self._count(self.source.items())):
                if isinstance(event, Tick):
                    if isinstance(event.item, VideoFrame):
                        for frame in (*event.item.earlier, event.item):
                            _ = frame.rgb  # convert here, not in the network's thread
                    spent_s, busy_s = time.thread_time() - busy_s, time.thread_time()
                    self.buffer.put(self._ready(event, spent_s))
                else:
                    self.buffer.put(event)
        except Exception as problem:  # any error ends only this feed
            log.debug("feed ended", exc_info=True)
            error = problem
        finally:
            self.source.close()
            self.buffer.put(SourceEnded(error))

    def _count(self, items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            if isinstance(item, Gap):
                self._begun_s = None
            elif not isinstance(item, Fault) and not (
                self._beside and isinstance(item, AudioBlock)
            ):
                now_s, received_s = time.monotonic(), self.connection.received_s
                self.newest_s = now_s if received_s is None else received_s
                self.rate.add(now_s)
                self._begun_s = self._begun_s or now_s
                apart_s = item.time_s - self._item_s
                self._apart_s = (self._apart_s[1], apart_s if apart_s > 0 else 0.0)
                self._item_s = item.time_s
            yield self._painter.paint(item)

    def _ready(self, tick: Tick, spent_s: float) -> ReadyStep:
        now_s, item, apart_s = time.monotonic(), tick.item, tick.time_s - self._tick_s
        self._tick_s, since_s = tick.time_s, now_s
        if isinstance(item, (VideoFrame, AudioBlock)) and item.arrived_s is not None:
            due_s = item.arrived_s + tick.time_s - item.time_s
            self.delays.add(now_s, now_s - due_s)
            since_s = due_s + self.delays.most_s
        return ReadyStep(tick, spent_s, now_s, since_s, apart_s if apart_s > 0 else 0.0)


YOUNG_S = 20.0
FIRST_PAUSE_S = 6.0
SPAN_S = 15.0  # more than the longest segments of HLS in use


class ArrivalDelays:
    """How late the data of a feed arrive, over the last SPAN_S to 2 SPAN_S.

    A delay is the time at which a step became ready minus that of its data. Those in a burst, of
    which HLS is a series, and on a slow network arrive late.
    """

    def __init__(self) -> None:
        self._begin_s = -math.inf
        self._now = self._before = (math.inf, 0.0)  # least and greatest

    @property
    def most_s(self) -> float:
        """The greatest delay."""
        return max(self._now[1], self._before[1])

    @property
    def least_s(self) -> float:
        """The least delay; infinite before there are some of two spans: the first may be held."""
        known = max(self._now[0], self._before[0]) < math.inf
        return min(self._now[0], self._before[0]) if known else math.inf

    def add(self, now_s: float, delay_s: float) -> None:
        """Add the delay of a step that became ready now."""
        if now_s - self._begin_s >= SPAN_S:
            recent = now_s - self._begin_s < 2 * SPAN_S
            self._before = self._now if recent else (math.inf, 0.0)
            self._begin_s, self._now = now_s, (math.inf, 0.0)
        self._now = min(self._now[0], delay_s), max(self._now[1], delay_s)


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
    except the newest. Other events (gaps, faults, the end) are always kept, in order. ``step_s``:
    duration of a step, from taking it to its result.
    """

    def __init__(self, size: int, lag_s: float, *, block: bool, arrived: Condition) -> None:
        """``arrived``: notified at every put; shared by all buffers."""
        self._size, self._lag_s, self._block = size, lag_s, block
        self._arrived = arrived
        self._events: deque[FeedEvent] = deque()
        self._steps = 0  # among the events
        self._closed = False
        self.late = self.crowded = 0  # dropped: the network was too slow, the buffer full
        self.step_s = 0.0

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

    def close(self) -> None:
        """Make ``put`` never wait any more."""
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()

    def _is_late(self) -> bool:
        oldest = next(e for e in self._events if isinstance(e, ReadyStep))
        return time.monotonic() + self.step_s - oldest.since_s > self._lag_s

    def _drop(self) -> None:
        """Drop the oldest step."""
        for k, event in enumerate(self._events):
            if isinstance(event, ReadyStep):
                del self._events[k]
                self._steps -= 1
                return


_SPAN_S = 10.0  # more than the pauses between segments of HLS
_MOST = 512


class Rate:
    """Events per second, over the last seconds. One thread adds, others may read."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_MOST)

    def add(self, now_s: float) -> None:
        """Add an event at this time."""
        self._times.append(now_s)

    def at(self, now_s: float) -> float:
        """Return the events per second up to this time; 0 after _SPAN_S without any."""
        times = tuple(self._times)
        first = bisect_right(times, now_s - _SPAN_S)
        span_s = now_s - times[first] if first < len(times) else 0.0
        return (len(times) - first) / max(span_s, 1.0)
