"""One connection to a live feed, from its opening to its loss."""

from __future__ import annotations

import errno
import math
import random
import socket
import struct
import time
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Protocol

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet
from av.stream import Discard
from av.video.stream import VideoStream

from costream.core.errors import SourceError, display_name
from costream.core.pyav import open_input
from costream.core.urls import redact
from costream.sources.base import ConnectionOptions, DecoderChoice, SourceOptions, StopEvent
from costream.sources.live.address import Address, address_of, host_of, list_cameras, scheme_of
from costream.sources.live.servers import OPTIONAL, PIPE, asks_for_sha
from costream.sources.media.container import (
    audio_stream,
    has_time_stamps,
    told_choice,
    video_stream,
    video_streams,
)
from costream.sources.media.hardware import acceleration, check_stream
from costream.sources.media.tls import certificate_problem

FLUSH_S = 0.05  # packets this soon after a read that has timed out came before it
KNOWN = 512  # newest packets whose arrival is known
# Timeout factor for the first frame, which may take longer: keyframes are rare.
FIRST = 3
RECENT_S = 20.0  # what came for so long is not taken again; segments of HLS are shorter
PLAYLISTS = {"hls", "dash"}


class SoundTaker(Protocol):
    """Takes the sound of a connection whose pictures are read; see ``beside.SoundBeside``."""

    def begin(self, container: InputContainer, stream: AudioStream | None, missing: str) -> None:
        """Begin; ``stream``: None if there is no sound, ``missing``: why."""

    def takes(self, packet: Packet[Any], waited_s: float) -> bool:
        """Return whether a packet is one of sound, and take it.

        ``waited_s``: time for which data have been waited for so far.
        """

    def end(self) -> None:
        """End, before the container is closed."""


class FeedConnection:
    """An open container and the requested stream in it, used by one thread only.

    After the last packet, ``loss`` is the reason why there are no more; ``begun_s`` and
    ``arrived_s`` are the ``time.monotonic()`` at which the first one and the newest one arrived,
    ``waited_s`` is how long data have been waited for so far, ``sent_s`` the time of the newest
    packet on the sender's clock, if the sender tells it (RTCP). ``choice`` says which of several
    video streams is taken where the options name none.
    """

    def __init__(
        self,
        uri: str,
        connecting: ConnectionOptions,
        options: SourceOptions,
        stop: StopEvent,
        began_s: float,
        *,
        beside: SoundTaker | None = None,
        recent: RecentPackets | None = None,
    ) -> None:
        """Connect or raise ConnectionFailedError. ``began_s``: the zero of the keeper's times.

        ``beside``: gets the packets of sound, too. ``recent``: those of the connections before.
        """
        self._uri = uri
        self._connecting = connecting
        self._stop = stop
        self._began_s = began_s
        sound, decoder = options.sound is not None, options.decoder
        self._sound, self._beside = sound, beside
        self.loss = ConnectionFailure(ENDED)
        self.recent = RecentPackets() if recent is None else recent
        self.container = _open(uri, connecting, decoder)
        if not sound and not _sizes_known(self.container):
            self.container.close()
            self.container = _open(uri, connecting, decoder, probing=True)
        try:
            self.stream = _choose(self.container, options, uri)
            self.choice = "" if sound or options.stream else told_choice(self.container)
            heard, missing = _sound_of(self.container, self.stream)
            kept = beside is not None or connecting.keeper is not None
            _discard(self.container, self.stream, heard if kept else None)
            if beside is not None:
                beside.begin(self.container, heard, missing)
            if connecting.keeper is not None:
                connecting.keeper.begin(self.container)
            self.recent.begin(self.container)
        except BaseException:
            self.close()
            raise
        self._patience_s = FIRST * connecting.timeout_s
        self._alive_s = self.begun_s = self.arrived_s = time.monotonic()
        self.waited_s = 0.0
        self.sent_s: float | None = None
        self._came: deque[tuple[int | None, float]] = deque(maxlen=KNOWN)

    def came_s(self, pts: int | None) -> float:
        """Return when the packet of a stamp arrived, of the newest ones; else ``begun_s``."""
        return next((came_s for stamp, came_s in self._came if stamp == pts), self.begun_s)

    def mark_alive(self) -> None:
        """Reset the timeout after a successful decode."""
        self._patience_s = self._connecting.timeout_s
        self._alive_s = time.monotonic()

    def place(self, pts: int | None, time_s: float) -> None:
        """Take the feed's time of the data with this stamp of the stream."""
        keeper, time_base = self._connecting.keeper, self.stream.time_base
        if keeper is not None and pts is not None and time_base is not None:
            keeper.place(float(pts * time_base), time_s)

    def packets(self) -> Iterator[Packet[Any] | None]:
        """Yield the packets of the stream from its first keyframe on; the last ones are empty."""
        begun, before_s = False, time.monotonic()
        asked_s, flushed_s = before_s, -math.inf
        read_s = WAITED * address_of(self._uri, self._connecting).read_s
        try:
            for packet in self._demuxed():
                if self._stop.is_set:
                    return
                now_s = time.monotonic()
                self.waited_s += now_s - asked_s
                if packet.size:
                    self._record(packet)
                    if now_s - self._alive_s > self._patience_s:
                        self.loss = self._silence(now_s - self._alive_s, now_s - before_s)
                        break
                    before_s = now_s
                if self._beside is not None and self._beside.takes(packet, self.waited_s):
                    pass
                elif packet.stream is self.stream:
                    if not begun and (self._sound or packet.is_keyframe):
                        begun, self.begun_s = True, now_s
                    # A read that has timed out gives what was still in the parser (RTSP).
                    flushed_s = now_s if now_s - asked_s >= read_s else flushed_s
                    if packet.size and now_s - flushed_s >= FLUSH_S:
                        self.arrived_s, self.sent_s = now_s, _sent_s(packet)
                        self._came.append((packet.pts, now_s))
                    if begun:
                        self.recent.add(packet)
                        yield packet
                asked_s = time.monotonic()
        except IndexError:  # PyAV, when a new stream appears
            self.loss = ConnectionFailure("the streams in it have changed")
        except av.FFmpegError as error:
            self.loss = reading_failure(error, self._uri, self._connecting.timeout_s)
        if self.recent.repeating:
            self.loss = ConnectionFailure(REPEATED)
        if begun:
            yield None  # flush the decoder

    def _demuxed(self) -> Iterator[Packet[Any]]:
        """Return all packets; none of what is a single picture."""
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
        if self._beside is not None:
            self._beside.end()
        self.container.close()

    def _silence(self, silent_s: float, waited_s: float) -> ConnectionFailure:
        """Return why nothing could be decoded; ``waited_s``: the wait for the newest packet."""
        if waited_s > silent_s / 2:  # the rest of earlier data
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


def _open(
    uri: str, connecting: ConnectionOptions, decoder: DecoderChoice, *, probing: bool = False
) -> InputContainer:
    address = address_of(uri, connecting, probing=probing)
    before_s = time.monotonic()
    try:
        container = _opened(address, decoder)
    except (av.FFmpegError, OSError, ValueError) as error:
        waited_s = time.monotonic() - before_s
        pictures = None
        if isinstance(error, av.InvalidDataError) and scheme_of(uri) in _HTTP:
            pictures = _as_jpegs(address, decoder)
        if pictures is not None:
            return pictures
        problem = certificate_problem(uri) if connecting.tls_verify else ""
        if problem:
            raise ConnectionFailedError(ConnectionFailure(problem, refused=True)) from error
        raise ConnectionFailedError(
            opening_failure(error, uri, waited_s, connecting.timeout_s)
        ) from error
    if connecting.tls_verify and container.format.name in PLAYLISTS:
        container.close()
        raise ConnectionFailedError(ConnectionFailure(UNVERIFIED, refused=True))
    return container


def _opened(address: Address, decoder: DecoderChoice) -> InputContainer:
    return open_input(
        address.file,
        format=address.format,
        options=address.options,
        timeout=(address.open_s, address.read_s),
        hwaccel=acceleration(decoder),
    )


def _as_jpegs(address: Address, decoder: DecoderChoice) -> InputContainer | None:
    """Open what may be JPEGs among other bytes; None if there are none.

    Old firmware of ESP32 and Tasmota leaves out the first boundary between them, or its dashes, for
    which FFmpeg does not take it as the stream that browsers show.
    """
    try:
        container = _opened(replace(address, format="mjpeg"), decoder)
    except (av.FFmpegError, OSError, ValueError):
        return None
    if container.streams.video and container.streams.video[0].width:
        return container
    container.close()
    return None


def _choose(
    container: InputContainer, options: SourceOptions, uri: str
) -> VideoStream | AudioStream:
    """Return the requested stream; raises ConnectionFailedError if there is none."""
    sound, decoder = options.sound is not None, options.decoder
    try:
        if sound:
            return audio_stream(container, "")
        stream = video_stream(container, "", options.stream)
        check_stream(stream, decoder, uri)
        return stream
    except SourceError as error:
        found = container.streams.audio if sound else container.streams.video
        undecodable = any(stream.codec_context is None for stream in found)
        chosen = options.stream is not None and bool(video_streams(container))
        message = str(error).removeprefix(f"{display_name(uri)}: ").removeprefix(": ")
        refused = undecodable or chosen or (bool(found) and decoder == "hardware")
        raise ConnectionFailedError(ConnectionFailure(message, refused=refused)) from error


def _sizes_known(container: InputContainer) -> bool:
    """Return whether the sizes of the video streams are known, if there are several."""
    streams = video_streams(container)
    return len(streams) < 2 or all(stream.width for stream in streams)


def _discard(
    container: InputContainer, stream: VideoStream | AudioStream, sound: AudioStream | None
) -> None:
    """Do not read other pictures than ``stream``, and of HLS no playlist of neither."""
    hls = container.format.name == "hls"
    kept = {each.id for each in (stream, sound) if each is not None}  # numbers of the playlists
    for other in container.streams:
        variant = hls and other.id not in kept
        if other is not stream and (variant or (other.type == stream.type == "video")):
            other.discard = Discard.all


def _sound_of(
    container: InputContainer, stream: VideoStream | AudioStream
) -> tuple[AudioStream | None, str]:
    """Return the sound beside a stream, of HLS from the same playlist, or why there is none."""
    try:
        first = audio_stream(container, "")
    except SourceError as error:
        return None, str(error).removeprefix(": ")
    same = (s for s in container.streams.audio if s.id == stream.id and s.codec_context is not None)
    return next(same, first) if container.format.name == "hls" else first, ""


# Exponential backoff with jitter for reconnection attempts.

FIRST_S = 0.5
LONGEST_S = 30.0
# After a refusal (a login, a path), which seldom ends soon.
REFUSED_FIRST_S = 5.0
REFUSED_LONGEST_S = 60.0


class Backoff:
    """Waits that double from FIRST_S to LONGEST_S, each randomly reduced by up to half.

    After refusals they lie between REFUSED_FIRST_S and REFUSED_LONGEST_S. The randomness keeps the
    feeds of one recorder from all reconnecting at the same moment.
    """

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def next_s(self, *, refused: bool = False) -> float:
        """Return the seconds to wait now."""
        least_s = REFUSED_FIRST_S if refused else FIRST_S
        most_s = REFUSED_LONGEST_S if refused else LONGEST_S
        wait_s = min(max(self._next_s, least_s), most_s)
        self._next_s = 2 * wait_s
        return wait_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start with FIRST_S again."""
        self._next_s = FIRST_S


# Failures of live feeds: one-line messages, and whether a retry can help.

# An error after this fraction of the timeout means that the server did not answer.
WAITED = 0.9
_HTTP = {"http", "https"}
STALLED = "stalled: no data for {:g} s"
ENDED = "the stream has ended: the server closed it"
SINGLE = "a single picture, not a stream: give the address of a stream (RTSP, MJPEG over HTTP)"
UNVERIFIED = (
    "--tls-verify cannot be kept here: FFmpeg does not verify the certificates of the parts of a "
    "playlist; use RTSP, or MPEG-TS over HTTPS"
)
REPEATED = "only what came before comes again: the server, or its playlist, stands still"
LOGIN = "the server refuses the login: check user and password"
SHA = (
    "the server asks for a digest login with SHA-256, which FFmpeg does not know: allow MD5 or "
    "Basic in the camera, or put a server such as MediaMTX or go2rtc between"
)
# Errors, what they mean, and whether they end a feed at its first attempt.
_ANSWERS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str, bool], ...] = (
    (av.HTTPNotFoundError, "the server has no such feed (404): check the path", True),
    (
        av.HTTPServerError,
        "the server has failed (an error 5xx of its own): see its log, or start it again",
        False,
    ),
    (
        (av.HTTPBadRequestError, av.HTTPOtherClientError),
        "the server refuses the request (4xx): check the address",
        False,
    ),
    ((av.DecoderNotFoundError, av.DemuxerNotFoundError), "there is no decoder for it", True),
    (av.ConnectionRefusedError, "the connection was refused", False),
)


@dataclass(frozen=True)
class ConnectionFailure:
    """Reason why a connection was lost or could not be made."""

    message: str  # one line without the URL
    refused: bool = False  # ends a feed at its first attempt: a login, a path, an absent camera


class ConnectionFailedError(Exception):
    """A connection cannot be made."""

    def __init__(self, loss: ConnectionFailure) -> None:
        super().__init__(loss.message)
        self.loss = loss


def opening_failure(
    error: Exception, uri: str, waited_s: float, timeout_s: float
) -> ConnectionFailure:
    """Return why opening failed; ``waited_s``: time until the failure."""
    silent = waited_s >= WAITED * timeout_s
    if isinstance(error, (av.HTTPUnauthorizedError, av.HTTPForbiddenError)):
        return ConnectionFailure(SHA if asks_for_sha(uri) else LOGIN, refused=True)
    if isinstance(error, av.ProtocolNotFoundError):
        scheme = scheme_of(uri) or ""
        message = f"unknown protocol: {scheme}"
        if scheme in OPTIONAL:
            message = f"FFmpeg has no {scheme} here; read it from a pipe: {PIPE.format(scheme)}"
        return ConnectionFailure(message, refused=True)
    for kinds, message, refused in _ANSWERS:
        if isinstance(error, kinds):
            return ConnectionFailure(message, refused)
    if isinstance(error, (av.ExitError, av.TimeoutError)) or silent:
        return ConnectionFailure(f"no answer within {timeout_s:g} s")
    if isinstance(error, av.FileNotFoundError) and scheme_of(uri) is None:
        others = ", only " + ", ".join(list_cameras()) if list_cameras() else ", and no other"
        return ConnectionFailure(f"there is no such camera{others}", refused=True)
    if isinstance(error, av.OSError) and error.errno == errno.EPROTONOSUPPORT:
        return ConnectionFailure(
            "the server does not send over this transport (tcp, udp): try the other"
        )
    if isinstance(error, av.EOFError):
        return ConnectionFailure("the server closed the connection")
    failed = isinstance(error, av.OSError) and error.errno == errno.EIO and host_of(uri)
    if failed and not _is_known(host_of(uri)):
        return ConnectionFailure(f"the host {host_of(uri)} cannot be found")
    if failed or isinstance(error, av.InvalidDataError):
        return ConnectionFailure("the server sent no readable stream")
    return ConnectionFailure(_reason(error))


def reading_failure(error: Exception, uri: str, timeout_s: float) -> ConnectionFailure:
    """Return why reading failed."""
    if isinstance(error, (av.ExitError, av.TimeoutError)):
        return ConnectionFailure(STALLED.format(timeout_s))
    if isinstance(error, av.InvalidDataError):
        return ConnectionFailure("the stream is damaged")
    if isinstance(error, av.OSError) and error.errno == errno.EIO and scheme_of(uri) in _HTTP:
        return ConnectionFailure(ENDED)  # FFmpeg expects HTTP without a stated length never to end
    return ConnectionFailure(f"the connection was lost ({_reason(error)})")


def _is_known(host: str) -> bool:
    """Return whether a host name can be resolved."""
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    return True


def _reason(error: Exception) -> str:
    # The full text of an FFmpeg error ends with the URL.
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return redact(" ".join(str(text).split()))
