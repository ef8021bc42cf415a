"""Packets of a feed that were received in earlier connections."""

from __future__ import annotations

import zlib
from typing import Any

from av.container import InputContainer
from av.packet import Packet

from costream.sources.media.timing import has_time_stamps

RECENT_S = 20.0  # what came for so long is not taken again; segments of HLS are shorter
PLAYLISTS = {"hls", "dash"}


class RecentPackets:
    """The packets of the newest seconds of a stream, over all connections.

    A playlist of HLS that is not written any more, or a relay that keeps the newest pictures of a
    camera that is gone, sends to every new client what it has sent before: those are no new data. A
    server that plays a recording to every client begins each time with the same packet: they are.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], float] = {}  # stamp and checksum, by age: time
        self._old: set[int | None] = set()  # stamps of what came again in this connection
        self._asking = False  # nothing new has come in this connection
        self._playlist = False
        self._begin: tuple[int, int] | None = None  # of this connection
        self._first: tuple[int, int] | None = None  # of the newest one that brought anything new

    @property
    def repeating(self) -> bool:
        """Whether all that has come in this connection had come before."""
        return self._asking and bool(self._old)

    def begin(self, container: InputContainer) -> None:
        """Begin a connection. FFmpeg counts those without stamps from 0: they are all new."""
        self._asking = has_time_stamps(container)
        self._playlist = container.format.name in PLAYLISTS
        self._begin = None
        self._old.clear()

    def add(self, packet: Packet[Any]) -> None:
        """Take the next packet of the stream."""
        stamp = packet.pts if packet.dts is None else packet.dts
        if stamp is None or not packet.size:
            return
        key = stamp, zlib.crc32(packet)
        self._begin = self._begin or key
        anew = key == self._first and not self._playlist
        if self._asking and key in self._known and not anew:
            self._old.add(packet.pts)
            return
        self._asking, self._first = False, self._begin
        self._known.pop(key, None)
        time_s = self._known[key] = float(stamp * packet.time_base)
        while abs(time_s - next(iter(self._known.values()))) > RECENT_S:
            del self._known[next(iter(self._known))]

    def had(self, pts: int | None) -> bool:
        """Return whether the data with this stamp came in an earlier connection."""
        return pts in self._old
