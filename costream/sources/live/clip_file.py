"""Writing of received packets to a clip file without re-encoding.

The container is Matroska: it supports nearly every codec of cameras (FFmpeg's MP4 supports
neither raw samples nor G.711), and a truncated file can still be played. G.711, the codec of
telephones and of many cameras, is the exception that FFmpeg does not write to Matroska either: it
is decoded to 16-bit samples, which is lossless.
"""

from __future__ import annotations

import io
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import av
from av import CodecContext, Packet
from av.audio.codeccontext import AudioCodecContext
from av.container import OutputContainer
from av.stream import Stream

from costream.core.locks import open_own

SUFFIX = ".mkv"
_FORMAT = "matroska"
_G711 = ("pcm_mulaw", "pcm_alaw")
_USUAL_STEP_S = Fraction(1, 25)  # from packet to packet, if they have no duration


@dataclass(frozen=True)
class PacketCopy:
    """An independent copy of a packet: its bytes and the demuxer's metadata."""

    stream: int  # index in its container
    data: bytes
    pts: int | None  # in units of time_base, like the next two
    dts: int | None
    duration: int  # 0: unknown
    time_base: Fraction
    key: bool  # keyframe: can be decoded without earlier ones
    time_s: float  # feed time; the time of arrival until the packet is placed

    def placed(self, offset_s: float) -> PacketCopy:
        """Return the packet with the feed time of its stamp, which is ``offset_s`` later."""
        stamp = self.pts if self.dts is None else self.dts
        if stamp is None:
            return self
        return replace(self, time_s=float(stamp * self.time_base) + offset_s)

    @classmethod
    def of(cls, packet: Packet[Any], time_s: float, stamped: bool = True) -> PacketCopy:
        """Return a copy of ``packet``, which arrived at ``time_s``.

        ``stamped``: False to use the arrival time as time stamp.
        """
        arrival = round(time_s / packet.time_base)
        return cls(
            packet.stream_index,
            bytes(packet),
            packet.pts if stamped else arrival,
            packet.dts if stamped else arrival,
            (packet.duration or 0) if stamped else 0,
            packet.time_base,
            packet.is_keyframe,
            time_s,
        )


@dataclass(frozen=True)
class _Track:
    """Output stream, and the decoder its packets need first, if any."""

    stream: Stream
    decoder: AudioCodecContext | None = None

    def plain(self, data: bytes) -> bytes:
        if self.decoder is None:
            return data
        frames = self.decoder.decode(Packet(data))
        return b"".join(frame.to_ndarray().tobytes() for frame in frames)


class StreamTemplates:
    """Stream parameters of a connection; they outlive its container."""

    def __init__(self) -> None:
        # Streams of a closed container must not be accessed: copies in a file that is never
        # written preserve what a decoder needs.
        self._held = held = av.open(io.BytesIO(), "w", format=_FORMAT)
        # An open container is part of a reference cycle of 90 kB, which may live for hours.
        weakref.finalize(self, held.close).atexit = False
        self._copies: dict[int, Stream] = {}
        self._telephony: dict[int, tuple[str, int, str]] = {}  # codec, rate, layout
        self._size = (0, 0)

    def note(self, stream: Stream) -> None:
        """Add a stream whose container is open; ValueError if Matroska does not support it."""
        context: Any = stream.codec_context
        if context is None:
            raise ValueError("there is no decoder for it")
        if stream.type == "video":  # opened without probing, only the decoder learns the size
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
        """Add the same streams to ``container``; return them by their index here."""
        outputs: dict[int, _Track] = {}
        for index, held in sorted(self._copies.items()):
            stream = container.add_stream_from_template(held, opaque=True)
            if stream.type == "video":
                context: Any = stream.codec_context
                context.width, context.height = self._size
            outputs[index] = _Track(stream)
        for index, (codec, rate_hz, layout) in sorted(self._telephony.items()):
            decoder = cast(AudioCodecContext, CodecContext.create(codec, "r"))
            decoder.sample_rate, decoder.layout = rate_hz, layout
            samples = container.add_stream("pcm_s16le", rate_hz, layout=layout)
            outputs[index] = _Track(samples, decoder)
        return outputs


def write_clip(path: Path, tracks: StreamTemplates, packets: Sequence[PacketCopy]) -> None:
    """Write ``packets`` (the first one a keyframe) to ``path``, which appears when complete.

    The packets are not modified and may be written to other files too. Raises av.FFmpegError,
    OSError or ValueError on failure, leaving no file behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        with (
            open(part, "wb", opener=open_own) as file,
            av.open(file, "w", format=_FORMAT) as container,
        ):
            outputs = tracks.add_to(container)
            for index, packet in _timed(packets, outputs):
                packet.stream = outputs[index].stream
                container.mux_one(packet)
        with part.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _timed(
    packets: Sequence[PacketCopy], tracks: Mapping[int, _Track]
) -> Iterator[tuple[int, Packet[Any]]]:
    """Yield packets for a muxer, from 0 s on, each with its stream index.

    Packets presented before the first one are left out: they need earlier ones to be decoded.
    """
    stamps: dict[int, tuple[int, int]] = {}  # index in packets -> pts, dts
    for stream in {packet.stream for packet in packets}:
        places = [k for k, packet in enumerate(packets) if packet.stream == stream]
        pts = _complete([packets[k] for k in places])
        # Decoding times may be missing. Any that increase and never exceed the presentation times
        # are valid: Matroska does not store them.
        rising = sorted(pts)
        late = max(high - stamp for high, stamp in zip(rising, pts, strict=True))
        for k, stamp, high in zip(places, pts, rising, strict=True):
            stamps[k] = stamp, high - late
    origin_s = stamps[0][0] * packets[0].time_base
    for k, copy in enumerate(packets):
        pts_, dts = stamps[k]
        if pts_ * copy.time_base < origin_s:
            continue
        shift = round(origin_s / copy.time_base)
        packet: Packet[Any] = Packet(tracks[copy.stream].plain(copy.data))
        packet.pts, packet.dts, packet.duration = pts_ - shift, dts - shift, copy.duration
        packet.time_base, packet.is_keyframe = copy.time_base, copy.key
        yield copy.stream, packet


def _complete(packets: Sequence[PacketCopy]) -> list[int]:
    """Return the presentation times of the packets of one stream, in their order.

    Over RTSP the first ones may be missing: they are extrapolated backwards.
    """
    first = packets[0]
    step = max((p.duration for p in packets), default=0) or round(_USUAL_STEP_S / first.time_base)
    stamps = [p.dts if p.pts is None else p.pts for p in packets]
    present = [stamp for stamp in stamps if stamp is not None]
    missing = next((k for k, stamp in enumerate(stamps) if stamp is not None), len(stamps))
    last = (min(present) if present else 0) - (missing + 1) * step
    out = []
    for stamp in stamps:
        last = last + step if stamp is None else stamp
        out.append(last)
    return out
