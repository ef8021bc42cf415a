"""Base class of the tracks of a feed, over all its connections."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from costream.core.records import Fault, Item
from costream.sources.base import SourceOptions
from costream.sources.live.connection import FeedConnection
from costream.sources.live.feed_clock import FeedClock
from costream.sources.media.decode_errors import DAMAGED, LOST, UNDECODABLE, DecodeErrors
from costream.sources.media.packet_decoder import StreamDecoder


class FeedTrack(ABC):
    """Converts the packets of successive connections to items on the clock of the feed."""

    def __init__(self, options: SourceOptions, where: str, began_s: float) -> None:
        """``where``: the feed, for messages. ``began_s``: ``time.monotonic()`` at 0 s."""
        self._options = options
        self._where = where
        self.began_s = began_s
        connecting = options.connecting
        self.begins_s = 0.0 if connecting is None else connecting.age_s()
        self.clock = FeedClock(self.begins_s)
        self.damage = FeedDecodeErrors(self.clock)
        self.ended = False  # the requested end is reached
        self._decoder: StreamDecoder[Any] | None = None  # of the current connection

    @abstractmethod
    def run(self, link: FeedConnection, reason: str) -> Iterator[Item]:
        """Yield the items of a connection; first a Gap if ``reason`` is not empty."""

    @abstractmethod
    def leave(self, reason: str) -> Iterator[Item]:
        """Yield the remaining items and the Gap up to now, at the end of the feed."""

    def close(self) -> None:
        """Close the decoder, before the connection is closed and in the same thread."""
        if self._decoder is not None:
            self._decoder.close()
            self._decoder = None

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

    def _place(
        self, link: FeedConnection, media_s: float, arrived_s: float, length_s: float = 0.0
    ) -> float | None:
        """Return the time of data of a connection; None if they must be left out."""
        how = {"waited_s": link.waited_s, "sent_s": link.sent_s}
        return self.clock.place(media_s, arrived_s - self.began_s, length_s, **how)

    def _news(self, time_s: float) -> Iterator[Fault]:
        """Yield the messages of the clock about the stamps."""
        for message in self.clock.news():
            yield Fault(time_s, message)

    def due_s(self, time_s: float) -> float:
        """Return the ``time.monotonic()`` at which data of a time arrive without delay."""
        return self.began_s + time_s - self.clock.ahead_s


class FeedDecodeErrors(DecodeErrors):
    """Counts errors at the feed's time, not at the stamps of a connection."""

    def __init__(self, clock: FeedClock) -> None:
        super().__init__()
        self._clock = clock
        self.pictures = 0  # of all errors

    def add(self, what: str, time_s: float) -> None:
        """Count one error at the newest time of the feed; ``time_s`` is not used."""
        super().add(what, self._clock.last_s)
        self.pictures += what in (UNDECODABLE, DAMAGED, LOST)
