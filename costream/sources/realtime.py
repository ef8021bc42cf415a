"""Real-time playback of files, as if they were live feeds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from costream.core.records import AudioBlock, Fault, Gap, Item, SourceInfo, VideoFrame
from costream.sources.base import Connection, ConnectionOptions, shifted
from costream.sources.file import FileSource
from costream.sources.waiting import StopEvent


class RealtimeSource:
    """Yields the items of a file in real time: each when it is due.

    The first item is due at once, the others by their times relative to it.
    """

    dropped = 0  # a file waits until it is read
    drift_ppm: float | None = None  # its clock is this machine's

    def __init__(
        self, source: FileSource, speed: float = 1.0, connecting: ConnectionOptions | None = None
    ) -> None:
        """``speed``: playback speed factor. ``connecting``: its ``zero_s`` is used."""
        self._source = source
        self._speed = speed
        self._connecting = connecting or ConnectionOptions()
        self._later_s = 0.0  # added to the times of the file
        self._stop = StopEvent()
        self._state = Connection("connecting")
        self._zero_s: float | None = None  # time.monotonic() when media time 0 was due

    @property
    def connection(self) -> Connection:
        """State of the connection."""
        return self._state

    @property
    def errors(self) -> int:
        """Number of errors found so far."""
        return self._source.errors

    def open(self) -> SourceInfo:
        """Open the file; raises SourceError on failure."""
        self._zero_s, self._state = None, Connection("connecting")
        info = self._source.open()
        self._later_s = self._connecting.age_s()
        return replace(info, live=True, began_s=time.time() - self._later_s)

    def items(self) -> Iterator[Item]:
        """Yield the items of the file when they are due."""
        yield from shifted(self._items(), self._later_s)

    def _items(self) -> Iterator[Item]:
        for item in self._source.items():
            due_s = self._due_s(item)
            if due_s is not None and self._stop.wait(due_s - time.monotonic()):
                break
            self._state = Connection("live")
            if isinstance(item, (VideoFrame, AudioBlock)):
                item = replace(item, arrived_s=due_s)
            yield item
        self._state = Connection("ended")

    def stop(self) -> None:
        """End ``items`` at once, even while it waits; safe in a signal handler."""
        self._source.stop()
        self._stop.set()

    def close(self) -> None:
        """Close the file. Frames already yielded stay usable."""
        self._source.close()

    def _due_s(self, item: Item) -> float | None:
        """Return the time.monotonic() at which an item is due; None: at once."""
        if isinstance(item, Fault):
            return None
        time_s = item.end_s if isinstance(item, Gap) else item.time_s
        if self._zero_s is None:
            self._zero_s = time.monotonic() - time_s / self._speed
        return self._zero_s + time_s / self._speed
