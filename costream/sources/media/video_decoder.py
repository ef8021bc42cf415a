"""Video decoder: decoded frames with media times."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import Any

import av
from av.container import InputContainer
from av.packet import Packet
from av.video.stream import VideoStream

from costream.sources.media.decode_errors import DAMAGED, DecodeErrors
from costream.sources.media.media_clock import MediaClock
from costream.sources.media.packet_decoder import PacketDecoder, PacketReader, StreamDecoder
from costream.sources.media.skipping import FrameSkipper, SkippedFrame, can_skip
from costream.sources.media.streams import stated_rate
from costream.sources.media.timing import (
    ends_in_a_packet,
    has_time_stamps,
    origin,
    stated_end_s,
    time_base,
)

DEFAULT_RATE = Fraction(25)
OTHER_SIZE = "the picture size changes to {}x{} pixels"
_PICTURES = ("image2", "jpeg_pipe")  # demuxers of still pictures


@dataclass(frozen=True)
class DecodedFrame:
    """One decoded frame with its time; for a skipped frame, the picture before it."""

    picture: av.VideoFrame
    pts: int | None
    time_s: float
    estimated: bool


class VideoDecoder(StreamDecoder[DecodedFrame]):
    """Decoder of a video stream."""

    def __init__(
        self,
        container: InputContainer,
        stream: VideoStream,
        damage: DecodeErrors,
        from_s: float,
        read: PacketReader | None = None,
        *,
        sampled_hz: float | None = None,
        input_hz: float | None = None,
        rated: bool = True,
    ) -> None:
        """``from_s``: errors before this time are not counted. ``read``: returns the packets.

        ``sampled_hz``: skip frames that no tick of this rate shows, after ``begin_ticks``.
        ``input_hz``: frames per second if there are no time stamps; None: as stated, or assumed.
        ``rated``: False if the stamps are only frame numbers.
        """
        self._container = container
        self.stream = stream
        nominal = stream.average_rate or stream.guessed_rate
        rate = nominal or DEFAULT_RATE
        self.stamped, self._counted = has_time_stamps(container) and rated, False
        self.assumes_rate = False
        if not self.stamped:
            stated = stated_rate(stream)
            self.assumes_rate = input_hz is None and stated is None
            # FFmpeg counts frames at 25 per second, in MPEG-1 and MPEG-2 at the stated rate.
            self._counted = input_hz is not None or container.format.name != "mpegvideo"
            rate = nominal = Fraction(input_hz) if input_hz is not None else stated or rate
        self.rate_hz = None if nominal is None else float(nominal)
        self.clock = MediaClock(time_base(stream), origin(container, stream), float(1 / rate))
        read = read or partial(container.demux, stream)
        self._cut_off = False  # an incomplete JPEG, which FFmpeg decodes as far as it goes
        if container.format.name in _PICTURES and stream.codec_context.name == "mjpeg":
            read = partial(self._checked, read)
        self._skipper = None
        decode: Callable[..., list[Any]] = stream.decode
        # AVI stores no presentation times; FFmpeg derives them from the decoding order, wrong
        # for B-frames. The decoding time of the packet that completed a frame always rises.
        self._by_decoding = container.format.name == "avi"
        uncertain = self._by_decoding or self._counted
        if sampled_hz is not None and can_skip(stream) and not uncertain:
            self._skipper = FrameSkipper(read, stream, self.clock.seconds, sampled_hz)
            read, decode = self._skipper.read, self._skipper.decode
        super().__init__(PacketDecoder(read, decode, self.clock, damage, from_s))

    def begin_ticks(self, first_s: float) -> None:
        """Set the time of the first tick; from now on frames may be skipped."""
        if self._skipper is not None:
            self._skipper.begin(first_s)

    def _checked(self, read: PacketReader) -> Iterator[Packet[Any] | None]:
        for packet in read():
            if packet is not None and packet.size:
                self._cut_off |= not has_jpeg_end(bytes(packet))
            yield packet

    def _run(self) -> Generator[DecodedFrame, None, None]:
        raw = self._packets.run()
        # At most one frame, if the clock had to look ahead.
        ahead: list[av.VideoFrame | SkippedFrame] = []

        def peek() -> int | None:
            if not ahead:
                ahead.extend(islice(raw, 1))
            return self._stamp(ahead[0]) if ahead else None

        while (frame := ahead.pop() if ahead else next(raw, None)) is not None:
            yield self._timed(frame, peek)
        self._packets.check_end(stated_end_s(self._container, self.stream))
        if ends_in_a_packet(self._container):
            self._packets.count("packet(s) cut off by the end of the file", self.clock.next_s)
        if self._cut_off:
            self._packets.fatal = "the picture is cut off"

    def _timed(
        self, frame: av.VideoFrame | SkippedFrame, peek: Callable[[], int | None]
    ) -> DecodedFrame:
        stamp = pts = self._stamp(frame)
        if stamp is None and self.clock.last_s is None and not self._counted:
            stamp = frame.dts  # a fallback for the first frame after a seek
        epoch = self.clock.epoch
        time_s, estimated = self.clock.advance(stamp, peek)
        if self.clock.epoch != epoch:
            self._packets.count("backward clock jump(s)", time_s)
        if estimated and pts is not None:
            self._packets.count("impossible time stamp(s)", time_s)
        if isinstance(frame, SkippedFrame):
            return DecodedFrame(frame.picture, pts, time_s, estimated)
        if frame.is_corrupt:
            self._packets.count(DAMAGED, time_s)
        return DecodedFrame(frame, pts, time_s, estimated or pts is None)

    def _stamp(self, frame: av.VideoFrame | SkippedFrame) -> int | None:
        if self._counted:
            return None
        return frame.dts if self._by_decoding else frame.pts


def has_jpeg_end(picture: bytes) -> bool:
    """Return whether a JPEG has an end marker after its first scan (ITU-T T.81, B.1).

    A thumbnail in the segments before the scan has one too.
    """
    at = 2
    while picture[at : at + 1] == b"\xff" and picture[at + 1 : at + 2] != b"\xda":
        filled = picture[at + 1 : at + 2] == b"\xff"
        at += 1 if filled else 2 + int.from_bytes(picture[at + 2 : at + 4], "big")
    return picture.find(b"\xff\xd9", at) >= 0
