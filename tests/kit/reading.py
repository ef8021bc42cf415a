"""Reads sources: to their end, or live ones in a thread of their own, as a watch does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from costream.core.records import AudioBlock, AudioFormat, Fault, Gap, Item, SourceInfo, VideoFrame
from costream.sources.base import ConnectionOptions, Source, SourceOptions
from costream.sources.live.feed_source import FeedSource
from costream.sources.uris import open_source

TIMEOUT_S = 1.5
PATIENCE_S = 60.0  # for whatever must come: machines are slow at times


T = TypeVar("T")


@dataclass
class Contents:
    """What a source gives from its opening to its end."""

    info: SourceInfo
    items: list[Item]
    errors: int

    def of(self, *kinds: type[T]) -> list[T]:
        """Return the items of these kinds."""
        return [item for item in self.items if isinstance(item, kinds)]

    @property
    def times(self) -> list[float]:
        """Return the times of all items but gaps."""
        return [item.time_s for item in self.items if not isinstance(item, Gap)]

    @property
    def frames(self) -> list[VideoFrame]:
        """Return the pictures."""
        return self.of(VideoFrame)

    @property
    def blocks(self) -> list[AudioBlock]:
        """Return the blocks of sound."""
        return self.of(AudioBlock)

    @property
    def samples(self) -> np.ndarray:
        """Return the sound of all blocks."""
        return np.concatenate([block.samples for block in self.blocks])

    @property
    def faults(self) -> list[Fault]:
        """Return the faults."""
        return self.of(Fault)


def contents(source: Source) -> Contents:
    """Read a source to its end and close it."""
    try:
        info = source.open()
        return Contents(info, list(source.items()), source.errors)
    finally:
        source.close()


def feed(
    url: str, *, sound: AudioFormat | None = None, stream: str | None = None, **connecting: Any
) -> FeedSource:
    """Return the source of a feed that is given up for stalled after TIMEOUT_S."""
    how = ConnectionOptions(**{"timeout_s": TIMEOUT_S, **connecting})
    source = open_source(url, SourceOptions(connecting=how, sound=sound, stream=stream))
    assert isinstance(source, FeedSource)
    return source


class Reader:
    """Opens a source and collects its items; a context manager that stops, waits and closes."""

    def __init__(self, source: FeedSource) -> None:
        self.source = source
        self.items: list[Item] = []
        self.arrived: list[float] = []  # when each came, in seconds since the source was opened
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Reader:
        self.info = self.source.open()
        self.began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.source.stop()
        self.join()

    def join(self) -> None:
        """Wait until the source is closed."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def now_s(self) -> float:
        """Return the time of the feed, as this machine's clock has it."""
        return time.monotonic() - self.began_s

    def until(self, what: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
        """Wait until something is the case."""
        until = time.monotonic() + patience_s
        while not what():
            assert time.monotonic() < until, f"{self.source.connection}, {self.items[-3:]}"
            assert self._thread.is_alive() or what(), f"it has ended: {self.items[-3:]}"
            time.sleep(0.01)

    def more(self, count: int) -> None:
        """Wait for so many frames or blocks from now on."""
        wanted = len(self.data) + count
        self.until(lambda: len(self.data) >= wanted)

    @property
    def data(self) -> list[VideoFrame | AudioBlock]:
        """The frames or blocks that came."""
        return [item for item in self.items if isinstance(item, (VideoFrame, AudioBlock))]

    @property
    def gaps(self) -> list[Gap]:
        """The gaps that came."""
        return [item for item in self.items if isinstance(item, Gap)]

    @property
    def lost(self) -> list[Gap]:
        """The gaps between two connections.

        A machine that is busy may also lose seconds of sound within one.
        """
        return [gap for gap in self.gaps if not gap.reason.startswith("no sound for")]

    @property
    def faults(self) -> list[Fault]:
        """The faults that came."""
        return [item for item in self.items if isinstance(item, Fault)]

    def _read(self) -> None:
        try:
            for item in self.source.items():
                self.arrived.append(self.now_s())
                self.items.append(item)
        finally:
            self.source.close()
