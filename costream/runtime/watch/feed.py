"""The reader thread of one feed, which alone opens, reads and closes its source."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from threading import Thread
from typing import TypeAlias

from costream.core.clock import Tick, TickItem
from costream.core.records import AudioBlock, Fault, Gap, Item, VideoFrame
from costream.runtime.masks import MaskPainter
from costream.runtime.watch.arrivals import ArrivalDelays, Rate
from costream.runtime.watch.buffer import Buffer, ReadyStep, SourceEnded, SourceOpened
from costream.sources.base import Connection, LiveSource, Source

log = logging.getLogger("costream")
Clock: TypeAlias = Callable[[Iterable[Item]], Iterator[TickItem]]


YOUNG_S = 20.0  # after its first data, when the pauses of a feed are not known yet ...
FIRST_PAUSE_S = 6.0  # ... and assumed to be as long as this


class Feed:
    """Reads ``source`` in a thread and puts its items, on the model's clock, into ``buffer``.

    Times are on the clock of the source. A thread that is stuck in a library is abandoned when the
    program ends.
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
        """``sporadic``: the source is event-driven, and no data for a while is not a stall."""
        self.source, self.buffer = source, buffer
        self._live = source if isinstance(source, LiveSource) else None
        self.rate = Rate()  # of received items
        self.newest_s: float | None = None  # time.monotonic() at which the newest data arrived
        self.delays = ArrivalDelays()
        self._sporadic = sporadic
        self._has_extra_audio = False  # sound comes with the pictures
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
        """Return the longest usual time between arrivals of data.

        Some feeds have few frames, others send bursts (HLS), whose length is not known at first.
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
            self._has_extra_audio = info.extra_audio
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
                self._has_extra_audio and isinstance(item, AudioBlock)
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
