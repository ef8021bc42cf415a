"""One connection to a live feed, from its opening to its loss."""

from __future__ import annotations

import math
import struct
import time
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Protocol

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet

from costream.sources.base import ConnectionOptions, SourceOptions
from costream.sources.live.address import address_of
from costream.sources.live.failures import (
    ENDED,
    REPEATED,
    SINGLE,
    STALLED,
    WAITED,
    ConnectionFailure,
    reading_failure,
)
from costream.sources.live.opening import (
    choose_stream,
    discard_others,
    open_feed,
    sizes_are_known,
    sound_stream,
)
from costream.sources.live.recent_packets import RecentPackets
from costream.sources.media.streams import choice_remark
from costream.sources.waiting import StopEvent

FLUSH_S = 0.05  # packets within this time after a read that timed out had arrived before it
ARRIVALS = 512  # newest packets whose arrival time is stored
# Timeout factor for the first frame: keyframes are rare.
FIRST_FRAME_FACTOR = 3


class SoundTaker(Protocol):
    """Receives the sound of a connection whose video is read; see ``PairedAudio``."""

    def begin(self, container: InputContainer, stream: AudioStream | None, missing: str) -> None:
        """Begin; ``stream`` is None without sound, ``missing`` then gives the reason."""

    def takes(self, packet: Packet[Any], waited_s: float) -> bool:
        """Take a packet of sound; return False for other packets.

        ``waited_s``: total time spent waiting for data.
        """

    def end(self) -> None:
        """End, before the container is closed."""


class FeedConnection:
    """An open container and the requested stream in it, used by one thread only.

    After the last packet, ``loss`` is the reason for the end. ``begun_s`` and ``arrived_s`` are the
    ``time.monotonic()`` at which the first and the newest packet arrived, ``waited_s`` is the total
    time spent waiting for data, ``sent_s`` the time of the newest packet on the sender's clock, if
    the sender reports it (RTCP). ``choice`` is a remark on which of several video streams is read.
    """

    def __init__(
        self,
        uri: str,
        connecting: ConnectionOptions,
        options: SourceOptions,
        stop: StopEvent,
        began_s: float,
        *,
        paired_audio: SoundTaker | None = None,
        recent: RecentPackets | None = None,
    ) -> None:
        """Connect or raise ConnectionFailedError. ``began_s``: the zero of the keeper's times.

        ``paired_audio``: also gets the packets of sound. ``recent``: earlier packets.
        """
        self._uri = uri
        self._connecting = connecting
        self._stop = stop
        self._began_s = began_s
        sound, decoder = options.sound is not None, options.decoder
        self._sound, self._paired_audio = sound, paired_audio
        self.loss = ConnectionFailure(ENDED)
        self.recent = RecentPackets() if recent is None else recent
        self.container = open_feed(uri, connecting, decoder)
        if not sound and not sizes_are_known(self.container):
            self.container.close()
            self.container = open_feed(uri, connecting, decoder, probing=True)
        try:
            self.stream = choose_stream(self.container, options, uri)
            self.choice = "" if sound or options.stream else choice_remark(self.container)
            heard, missing = sound_stream(self.container, self.stream)
            kept = paired_audio is not None or connecting.keeper is not None
            discard_others(self.container, self.stream, heard if kept else None)
            if paired_audio is not None:
                paired_audio.begin(self.container, heard, missing)
            if connecting.keeper is not None:
                connecting.keeper.begin(self.container)
            self.recent.begin(self.container)
        except BaseException:
            self.close()
            raise
        self._patience_s = FIRST_FRAME_FACTOR * connecting.timeout_s
        self._alive_s = self.begun_s = self.arrived_s = time.monotonic()
        self.waited_s = 0.0
        self.sent_s: float | None = None
        self._came: deque[tuple[int | None, float]] = deque(maxlen=ARRIVALS)

    def came_s(self, pts: int | None) -> float:
        """Return when the packet with this stamp arrived; ``begun_s`` if it is not a recent one."""
        return next((came_s for stamp, came_s in self._came if stamp == pts), self.begun_s)

    def mark_alive(self) -> None:
        """Reset the timeout after a successful decode."""
        self._patience_s = self._connecting.timeout_s
        self._alive_s = time.monotonic()

    def place(self, pts: int | None, time_s: float) -> None:
        """Take the time in the feed, ``time_s``, of the data with this stamp."""
        keeper, time_base = self._connecting.keeper, self.stream.time_base
        if keeper is not None and pts is not None and time_base is not None:
            keeper.place(float(pts * time_base), time_s)

    def packets(self) -> Iterator[Packet[Any] | None]:
        """Yield the packets of the stream from its first keyframe on; the last ones are empty."""
        begun = False
        try:
            for packet, now_s in self._received():
                if not begun and (self._sound or packet.is_keyframe):
                    begun, self.begun_s = True, now_s
                if begun:
                    self.recent.add(packet)
                    yield packet
        except IndexError:  # PyAV, when a new stream appears
            self.loss = ConnectionFailure("the streams in it have changed")
        except av.FFmpegError as error:
            self.loss = reading_failure(error, self._uri, self._connecting.timeout_s)
        if self._stop.is_set:
            return
        if self.recent.repeating:
            self.loss = ConnectionFailure(REPEATED)
        if begun:
            yield None  # flush the decoder

    def _received(self) -> Iterator[tuple[Packet[Any], float]]:
        """Yield the packets of the stream, each with the ``time.monotonic()`` of its reading.

        Packets of other streams go to ``paired_audio``. Ends where nothing could be decoded for
        too long.
        """
        before_s = asked_s = time.monotonic()
        flushed_s = -math.inf
        read_s = WAITED * address_of(self._uri, self._connecting).read_s
        for packet in self._demuxed():
            if self._stop.is_set:
                return
            now_s = time.monotonic()
            self.waited_s += now_s - asked_s
            if packet.size:
                self._record(packet)
                if now_s - self._alive_s > self._patience_s:
                    self.loss = self._silence(now_s - self._alive_s, now_s - before_s)
                    return
                before_s = now_s
            paired = self._paired_audio
            taken = paired is not None and paired.takes(packet, self.waited_s)
            if packet.stream is self.stream and not taken:
                # A read that has timed out gives what was still in the parser (RTSP).
                flushed_s = now_s if now_s - asked_s >= read_s else flushed_s
                if packet.size and now_s - flushed_s >= FLUSH_S:
                    self.arrived_s, self.sent_s = now_s, _sent_s(packet)
                    self._came.append((packet.pts, now_s))
                yield packet, now_s
            asked_s = time.monotonic()

    def _demuxed(self) -> Iterator[Packet[Any]]:
        """Return all packets; none if the server sends a single picture."""
        packets = self.container.demux()
        name = self.container.format.name
        if name != "image2" and not name.endswith("_pipe"):
            return packets
        first = list(islice(packets, 1))
        try:
            second = next(packets, None)
        except av.FFmpegError as error:
            if reading_failure(error, self._uri, self._connecting.timeout_s).message != ENDED:
                raise
            second = None
        if second is None or not second.size:
            self.loss = ConnectionFailure(SINGLE, refused=True)
            return iter(())
        return chain(first, (second,), packets)

    def close(self) -> None:
        """Close the connection."""
        if self._paired_audio is not None:
            self._paired_audio.end()
        self.container.close()

    def _silence(self, silent_s: float, waited_s: float) -> ConnectionFailure:
        """Return why no frame was decoded; ``waited_s``: time before the newest packet."""
        if waited_s > silent_s / 2:  # the packet is a remainder of earlier data
            return ConnectionFailure(STALLED.format(self._connecting.timeout_s))
        what = "sound" if self._sound else "frame"
        return ConnectionFailure(f"data arrive, but no {what} for {silent_s:.0f} s")

    def _record(self, packet: Packet[Any]) -> None:
        if self._connecting.keeper is not None:
            self._connecting.keeper.add(packet, time.monotonic() - self._began_s)


def _sent_s(packet: Packet[Any]) -> float | None:
    """Return the time of a packet on the clock of its sender, from AVProducerReferenceTime."""
    if not packet.has_sidedata("prft"):
        return None
    (micros,) = struct.unpack_from("=q", bytes(packet.get_sidedata("prft")))
    return float(1e-6 * micros)
