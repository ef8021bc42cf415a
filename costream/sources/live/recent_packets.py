"""Packets of a feed that were received in earlier connections."""

from __future__ import annotations

import zlib
from typing import Any

from av.container import InputContainer
from av.packet import Packet

from costream.sources.media.timing import has_time_stamps

RECENT_S = 20.0  # packets are remembered for this long; segments of HLS are shorter
PLAYLISTS = {"hls", "dash"}


class RecentPackets:
    """The packets of the newest seconds of a stream, over all connections.

    An HLS playlist that is no longer updated, or a relay that keeps the newest frames of a camera
    that is gone, sends the same packets to every new client: they are not new data. A server that
    plays a recording to every client begins each time with the same packet: its data are new.
    """

    def __init__(self) -> None:
        self._times_s: dict[tuple[int, int], float] = {}  # by stamp and checksum, oldest first
        self._old: set[int | None] = set()  # stamps of repeated packets of this connection
        self._checking = False  # no new packet has arrived in this connection
        self._playlist = False
        self._begin: tuple[int, int] | None = None  # first packet of this connection
        self._first: tuple[int, int] | None = None  # and of the newest one with new packets

    @property
    def repeating(self) -> bool:
        """Whether all packets of this connection are repeated ones."""
        return self._checking and bool(self._old)

    def begin(self, container: InputContainer) -> None:
        """Begin a connection. Without time stamps, which FFmpeg then counts from 0, all is new."""
        self._checking = has_time_stamps(container)
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
        restarted = key == self._first and not self._playlist
        if self._checking and key in self._times_s and not restarted:
            self._old.add(packet.pts)
            return
        self._checking, self._first = False, self._begin
        self._times_s.pop(key, None)
        time_s = self._times_s[key] = float(stamp * packet.time_base)
        while abs(time_s - next(iter(self._times_s.values()))) > RECENT_S:
            del self._times_s[next(iter(self._times_s))]

    def had(self, pts: int | None) -> bool:
        """Return whether the data with this stamp arrived in an earlier connection."""
        return pts in self._old
