"""Packets as they came into a file of their own: copied, not encoded again.

The file is Matroska: it takes nearly every codec a camera sends (FFmpeg's MP4 has no place for
raw samples, nor for G.711), and one that was cut off can still be played. G.711, the sound of
telephones and of many cameras, is the exception that FFmpeg does not write to Matroska either: it
becomes 16-bit samples, from which it could be made again bit by bit.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import av
from av import CodecContext, Packet
from av.audio.codeccontext import AudioCodecContext
from av.container import OutputContainer
from av.stream import Stream

SUFFIX = ".mkv"
_FORMAT = "matroska"
_G711 = ("pcm_mulaw", "pcm_alaw")
_USUAL_STEP_S = Fraction(1, 25)  # from packet to packet, where they do not say


@dataclass(frozen=True)
class KeptPacket:
    """A packet that is nobody else's: its bytes, and what the demuxer said of them."""

    stream: int  # index in its container
    data: bytes
    pts: int | None  # in units of time_base, and so are the next two
    dts: int | None
    duration: int  # 0: not known
    time_base: Fraction
    key: bool  # can be decoded without those before it
    time_s: float  # when it came, on the feed's clock

    @classmethod
    def of(cls, packet: Packet[Any], time_s: float) -> KeptPacket:
        """Give a copy of ``packet``, which came at ``time_s``."""
        return cls(
            packet.stream_index,
            bytes(packet),
            packet.pts,
            packet.dts,
            packet.duration or 0,
            packet.time_base,
            packet.is_keyframe,
            time_s,
        )


@dataclass(frozen=True)
class _Track:
    """Where the packets of a stream go, and what makes samples of them first, if anything."""

    stream: Stream
    decoder: AudioCodecContext | None = None

    def plain(self, data: bytes) -> bytes:
        if self.decoder is None:
            return data
        frames = self.decoder.decode(Packet(data))
        return b"".join(frame.to_ndarray().tobytes() for frame in frames)


class Tracks:
    """What the streams of a connection are, beyond the life of its container."""

    def __init__(self) -> None:
        # Streams of a closed container must not be touched: copies in a file that is never
        # written keep what a decoder needs.
        self._held = av.open(io.BytesIO(), "w", format=_FORMAT)
        self._copies: dict[int, Stream] = {}
        self._telephony: dict[int, tuple[str, int, str]] = {}  # codec, rate, layout
        self._size = (0, 0)

    def note(self, stream: Stream) -> None:
        """Take a stream whose container is open. ValueError when Matroska cannot hold it."""
        context: Any = stream.codec_context
        if context is None:
            raise ValueError("there is no decoder for it")
        if stream.type == "video":  # opened in a hurry, only its decoder gets to know
            self._size = (context.width, context.height)
        if stream.index in self._copies or stream.index in self._telephony:
            return
        if stream.type == "audio" and context.name in _G711:
            sound = (context.name, context.sample_rate, context.layout.name)
            self._telephony[stream.index] = sound
        else:
            copy = self._held.add_stream_from_template(stream, opaque=True)
            self._copies[stream.index] = copy

    def add_to(self, container: OutputContainer) -> dict[int, _Track]:
        """Make the same streams in ``container``; gives them by their index here."""
        made: dict[int, _Track] = {}
        for index, held in sorted(self._copies.items()):
            stream = container.add_stream_from_template(held, opaque=True)
            if stream.type == "video":
                context: Any = stream.codec_context
                context.width, context.height = self._size
            made[index] = _Track(stream)
        for index, (codec, rate_hz, layout) in sorted(self._telephony.items()):
            decoder = cast(AudioCodecContext, CodecContext.create(codec, "r"))
            decoder.sample_rate, decoder.layout = rate_hz, layout
            samples = container.add_stream("pcm_s16le", rate_hz, layout=layout)
            made[index] = _Track(samples, decoder)
        return made


def write_clip(path: Path, tracks: Tracks, packets: Sequence[KeptPacket]) -> None:
    """Write ``packets`` (the first one a key) to ``path``, which appears when it is finished.

    They are not changed and may go into other files too. Raises av.FFmpegError, OSError or
    ValueError when that cannot be done; nothing is left behind then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        with av.open(f"file:{part}", "w", format=_FORMAT) as container:
            made = tracks.add_to(container)
            for index, packet in _timed(packets, made):
                packet.stream = made[index].stream
                container.mux_one(packet)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _timed(
    packets: Sequence[KeptPacket], tracks: Mapping[int, _Track]
) -> Iterator[tuple[int, Packet[Any]]]:
    """Give packets for a muxer, from 0 s on, and of which stream each is.

    What is shown before the first one is left out: it cannot be decoded without those before.
    """
    stamps: dict[int, tuple[int, int]] = {}  # place in packets -> pts, dts
    for stream in {packet.stream for packet in packets}:
        places = [k for k, packet in enumerate(packets) if packet.stream == stream]
        pts = _complete([packets[k] for k in places])
        # Decoding times may be missing. Any that rise and never pass the presentation will do:
        # Matroska does not hold them.
        rising = sorted(pts)
        late = max(high - stamp for high, stamp in zip(rising, pts, strict=True))
        for k, stamp, high in zip(places, pts, rising, strict=True):
            stamps[k] = stamp, high - late
    origin_s = stamps[0][0] * packets[0].time_base
    for k, kept in enumerate(packets):
        pts_, dts = stamps[k]
        if pts_ * kept.time_base < origin_s:
            continue
        shift = round(origin_s / kept.time_base)
        packet: Packet[Any] = Packet(tracks[kept.stream].plain(kept.data))
        packet.pts, packet.dts, packet.duration = pts_ - shift, dts - shift, kept.duration
        packet.time_base, packet.is_keyframe = kept.time_base, kept.key
        yield kept.stream, packet


def _complete(packets: Sequence[KeptPacket]) -> list[int]:
    """Give the presentation times of the packets of one stream, in their order.

    Over RTSP those of the first one are missing: it comes before all the others.
    """
    first = packets[0]
    step = max((p.duration for p in packets), default=0) or round(_USUAL_STEP_S / first.time_base)
    known = [p.dts if p.pts is None else p.pts for p in packets]
    stamps = [stamp for stamp in known if stamp is not None]
    missing = next((k for k, stamp in enumerate(known) if stamp is not None), len(known))
    last = (min(stamps) if stamps else 0) - (missing + 1) * step
    out = []
    for stamp in known:
        last = last + step if stamp is None else stamp
        out.append(last)
    return out
