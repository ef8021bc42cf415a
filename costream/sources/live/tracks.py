"""Base class of the tracks of a feed, over all its connections."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator

from costream.records import Item
from costream.sources.base import SourceOptions
from costream.sources.damage import DecodeErrors
from costream.sources.live.clock import FeedClock
from costream.sources.live.connection import FeedConnection


class FeedTrack(ABC):
    """Converts the packets of successive connections to items on the clock of the feed."""

    def __init__(self, options: SourceOptions, where: str, began_s: float) -> None:
        """``where``: the feed, for messages. ``began_s``: ``time.monotonic()`` at 0 s."""
        self._options = options
        self._where = where
        self.began_s = began_s
        self.clock = FeedClock()
        self.damage = _FeedDecodeErrors(self.clock)
        self.ended = False  # the requested end is reached

    @abstractmethod
    def run(self, link: FeedConnection, reason: str) -> Iterator[Item]:
        """Yield the items of a connection; first a Gap if ``reason`` is not empty."""

    @abstractmethod
    def leave(self, reason: str) -> Iterator[Item]:
        """Yield the remaining items and the Gap up to now, at the end of the feed."""

    @abstractmethod
    def close(self) -> None:
        """Close the decoder, before the connection is closed and in the same thread."""

    @property
    def left_s(self) -> float:
        """Seconds of this machine's clock until the requested end."""
        return math.inf if self._options.end_s is None else self._options.end_s - self.now_s()

    @property
    def over(self) -> bool:
        """Whether the requested end is reached."""
        return self.ended or self.left_s <= 0

    def now_s(self) -> float:
        """Return the current time of the feed by this machine's clock."""
        return time.monotonic() - self.began_s

    def due_s(self, time_s: float) -> float:
        """Return the ``time.monotonic()`` at which data of a time arrive without delay."""
        return self.began_s + time_s - self.clock.ahead_s


class _FeedDecodeErrors(DecodeErrors):
    """Counts errors at the feed's time, not at the stamps of a connection."""

    def __init__(self, clock: FeedClock) -> None:
        super().__init__()
        self._clock = clock

    def add(self, what: str, time_s: float) -> None:
        super().add(what, self._clock.last_s)
