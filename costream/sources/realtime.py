"""A file that plays at its own pace, as if it were a feed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from costream.records import AudioBlock, Fault, Gap, Item, VideoFrame
from costream.sources.audio import AudioSource
from costream.sources.audiovisual import AudioVisualSource
from costream.sources.base import Connection, SourceInfo
from costream.sources.features import FeatureSource
from costream.sources.halt import Halt
from costream.sources.skeleton import SkeletonSource
from costream.sources.video import VideoSource

File: TypeAlias = VideoSource | AudioSource | AudioVisualSource | SkeletonSource | FeatureSource


class RealtimeSource:
    """Gives what a file gives, the same items at the same times, each no sooner than it is due.

    The first is due at once, and the others after it as their times say.
    """

    def __init__(self, source: File, speed: float = 1.0) -> None:
        """``source``: the file. ``speed``: seconds of it in a second."""
        self._source = source
        self._speed = speed
        self._halt = Halt()
        self._state = Connection("connecting")
        self._zero_s: float | None = None  # time.monotonic() when media time 0 was due

    @property
    def connection(self) -> Connection:
        """How it is doing."""
        return self._state

    @property
    def dropped(self) -> int:
        """None: a file waits."""
        return 0

    @property
    def drift_ppm(self) -> float | None:
        """None: its clock is this machine's."""
        return None

    @property
    def errors(self) -> int:
        """How much damage was met so far."""
        return self._source.errors

    def open(self) -> SourceInfo:
        """Open the file; SourceError when that fails."""
        self._zero_s, self._state = None, Connection("connecting")
        return replace(self._source.open(), live=True, began_s=time.time())

    def items(self) -> Iterator[Item]:
        """Yield what the file gives, in its time."""
        for item in self._source.items():
            due_s = self._due_s(item)
            if due_s is not None and self._halt.wait(due_s - time.monotonic()):
                break
            self._state = Connection("live")
            if isinstance(item, (VideoFrame, AudioBlock)):
                item = replace(item, arrived_s=due_s)
            yield item
        self._state = Connection("ended")

    def stop(self) -> None:
        """End ``items`` at once, also while it waits; safe in a signal handler."""
        self._source.stop()
        self._halt.set()

    def close(self) -> None:
        """Let go of the file. Frames already given out stay usable."""
        self._source.close()

    def _due_s(self, item: Item) -> float | None:
        """Give the time.monotonic() at which an item is due; None: whenever it comes."""
        if isinstance(item, Fault):
            return None
        time_s = item.end_s if isinstance(item, Gap) else item.time_s
        if self._zero_s is None:
            self._zero_s = time.monotonic() - time_s / self._speed
        return self._zero_s + time_s / self._speed
