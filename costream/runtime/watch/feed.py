"""The reader thread of one feed, which alone opens, reads and closes its source."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from threading import Thread
from typing import TypeAlias

from costream.clock import Tick, TickItem
from costream.records import Fault, Gap, Item, VideoFrame
from costream.runtime.watch.buffer import Buffer, ReadyStep, SourceEnded, SourceOpened
from costream.runtime.watch.rate import Rate
from costream.sources.base import Connection, LiveSource, Source

log = logging.getLogger("costream")

Clock: TypeAlias = Callable[[Iterable[Item]], Iterator[TickItem]]


class Feed:
    """Reads ``source`` in a thread and puts its items, on the model's clock, into ``buffer``.

    Times are shifted by ``offset_s``, so that a resumed watch continues the previous one's. A
    thread that is stuck in a library is abandoned when the program ends.
    """

    def __init__(self, name: str, source: Source, clock: Clock, buffer: Buffer) -> None:
        self.source, self.buffer = source, buffer
        self._live = source if isinstance(source, LiveSource) else None
        self.offset_s = 0.0
        self.rate = Rate()  # of received items
        self.newest_s: float | None = None  # time.monotonic() of the newest item
        self._clock = clock
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
            self.buffer.put(SourceOpened(self.source.open()))
            busy_s = time.thread_time()
            for event in self._clock(self._count(self.source.items())):
                if isinstance(event, Tick):
                    if isinstance(event.item, VideoFrame):
                        for frame in (*event.item.earlier, event.item):
                            _ = frame.rgb  # convert here, not in the network's thread
                    spent_s, busy_s = time.thread_time() - busy_s, time.thread_time()
                    self.buffer.put(ReadyStep(self._moved(event), spent_s, time.monotonic()))
                elif isinstance(event, Gap):
                    start_s, end_s = event.start_s + self.offset_s, event.end_s + self.offset_s
                    self.buffer.put(replace(event, start_s=start_s, end_s=end_s))
                else:
                    self.buffer.put(self._moved_fault(event))
        except Exception as problem:  # any error ends only this feed
            log.debug("feed ended", exc_info=True)
            error = problem
        finally:
            self.source.close()
            self.buffer.put(SourceEnded(error))

    def _count(self, items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            if not isinstance(item, (Gap, Fault)):
                self.newest_s = time.monotonic()
                self.rate.add(self.newest_s)
            yield item

    def _moved(self, tick: Tick) -> Tick:
        return replace(tick, time_s=tick.time_s + self.offset_s) if self.offset_s else tick

    def _moved_fault(self, fault: Fault) -> Fault:
        if fault.time_s is None:
            return fault
        return replace(fault, time_s=fault.time_s + self.offset_s)
