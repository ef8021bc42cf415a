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

from costream.sources.media.container import (
    ends_in_a_packet,
    has_time_stamps,
    origin,
    stated_end_s,
    stated_rate,
    time_base,
)
from costream.sources.media.packets import (
    DAMAGED,
    DecodeErrors,
    PacketDecoder,
    PacketReader,
    StreamDecoder,
)
from costream.sources.media.skipping import FrameSkipper, SkippedFrame, can_skip

DEFAULT_RATE = Fraction(25)
_PICTURES = ("image2", "jpeg_pipe")  # demuxers of still pictures


@dataclass(frozen=True)
class DecodedFrame:
    """One decoded frame with its time; of one that was skipped, the picture before it."""

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
        ``rated``: the stamps are more than numbers of frames.
        """
        self._container = container
        self.stream = stream
        known = stream.average_rate or stream.guessed_rate
        rate = known or DEFAULT_RATE
        self.stamped, self._counted = has_time_stamps(container) and rated, False
        self.assumes_rate = False
        if not self.stamped:
            stated = stated_rate(stream)
            self.assumes_rate = input_hz is None and stated is None
            # FFmpeg counts frames at 25 a second, those of MPEG-1 and 2 at the rate stated.
            self._counted = input_hz is not None or container.format.name != "mpegvideo"
            rate = known = Fraction(input_hz) if input_hz is not None else stated or rate
        self.rate_hz = None if known is None else float(known)  # nominal
        self.clock = MediaClock(time_base(stream), origin(container, stream), float(1 / rate))
        read = read or partial(container.demux, stream)
        self._cut_off = False  # a JPEG, of which FFmpeg decodes what is there
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
        """Tell the time of the first tick: from now on frames may be skipped."""
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
        stamp = known = self._stamp(frame)
        if stamp is None and self.clock.last_s is None and not self._counted:
            stamp = frame.dts  # a fallback for the first frame after a seek
        epoch = self.clock.epoch
        time_s, estimated = self.clock.advance(stamp, peek)
        if self.clock.epoch != epoch:
            self._packets.count("backward clock jump(s)", time_s)
        if estimated and known is not None:
            self._packets.count("impossible time stamp(s)", time_s)
        if isinstance(frame, SkippedFrame):
            return DecodedFrame(frame.picture, known, time_s, estimated)
        if frame.is_corrupt:
            self._packets.count(DAMAGED, time_s)
        return DecodedFrame(frame, known, time_s, estimated or known is None)

    def _stamp(self, frame: av.VideoFrame | SkippedFrame) -> int | None:
        if self._counted:
            return None
        return frame.dts if self._by_decoding else frame.pts


def has_jpeg_end(picture: bytes) -> bool:
    """Return whether a JPEG has an end marker after its first scan (ITU-T T.81, B.1).

    A thumbnail in the segments before the scan has one, too.
    """
    at = 2
    while picture[at : at + 1] == b"\xff" and picture[at + 1 : at + 2] != b"\xda":
        filled = picture[at + 1 : at + 2] == b"\xff"
        at += 1 if filled else 2 + int.from_bytes(picture[at + 2 : at + 4], "big")
    return picture.find(b"\xff\xd9", at) >= 0


# Media clock: converts presentation time stamps to monotonic seconds.

# A time stamp that is further back than this may start a new epoch (concatenated recordings, a
# clock reset); less is a frame out of order.
EPOCH_JUMP_S = 1.0
# A pause of more than this many frames is a jump too, accepted only if the next one agrees.
JUMP_FRAMES = 4
# After a jump of more than an hour the next frame must also follow within this time.
FAR_JUMP_S = 3600.0
FOLLOWS_S = 10.0


class MediaClock:
    """Converts the time stamps of one stream to seconds that never decrease.

    Time is pts x time_base - origin, computed with integers. A missing stamp is extrapolated by
    the last good distance between two frames. A stamp that jumps is accepted if the one after it
    is nearer to it than to the one before; else it is damaged (one wrong bit can mean a day) and
    counts as missing. After a backward jump a new epoch continues where the old one ended.
    """

    def __init__(self, time_base: Fraction, origin_s: Fraction, delta_s: float) -> None:
        """``origin_s``: container time of 0 s. ``delta_s``: nominal frame interval."""
        self._time_base = time_base
        self._origin_s = origin_s
        # The time of a stamp is (pts * scale - start) / parts.
        self._scale = time_base.numerator * origin_s.denominator
        self._start = origin_s.numerator * time_base.denominator
        self._parts = time_base.denominator * origin_s.denominator
        self._delta_s = delta_s
        self._offset_s = 0.0  # added by earlier epochs
        self._last_good: float | None = None  # of the newest frame, if its stamp was good
        self._anchor_s = 0.0  # estimates are counted from here, so that they do not drift
        self._estimates = 0
        self._apart_s = 0.0  # between the newest two good stamps
        self.last_s: float | None = None
        self.epoch = 0

    @property
    def next_s(self) -> float:
        """Time at which the next frame is due."""
        if self.last_s is None:
            return self._anchor_s
        return self._anchor_s + (self._estimates + 1) * self._delta_s

    def seconds(self, pts: int) -> float:
        """Return the time of a stamp in the current epoch, without advancing the clock."""
        return (pts * self._scale - self._start) / self._parts + self._offset_s

    def ticks(self, time_s: float) -> int:
        """Return the stamp at or before a time of the first epoch (for seeking)."""
        return int((Fraction(time_s) + self._origin_s) / self._time_base // 1)

    def advance(self, pts: int | None, peek: Callable[[], int | None]) -> tuple[float, bool]:
        """Take the next frame; return its time and whether that is an estimate.

        ``peek`` returns the stamp of the frame after it; called only if needed.
        """
        if pts is not None and self._believed(self.seconds(pts), peek):
            return self._good(self.seconds(pts))
        if self.last_s is not None:
            self._estimates += 1
            self.last_s = self._anchor_s + self._estimates * self._delta_s
        else:
            after = peek()
            self._anchor_s = 0.0 if after is None else self.seconds(after) - self._delta_s
            self.last_s = self._anchor_s
        self._last_good = None
        return self.last_s, True

    def _believed(self, time_s: float, peek: Callable[[], int | None]) -> bool:
        last = self.last_s
        if last is not None:
            late = time_s > last + JUMP_FRAMES * self._delta_s
            if not late and time_s >= last - EPOCH_JUMP_S:
                return True
        after = peek()
        far = last is not None and abs(time_s - last) > FAR_JUMP_S
        if after is None:
            return not far
        after_s = self.seconds(after)
        if last is None:
            return after_s >= time_s - EPOCH_JUMP_S
        if far and abs(after_s - time_s) > FOLLOWS_S:
            return False
        return abs(after_s - time_s) < abs(after_s - last)

    def _good(self, time_s: float) -> tuple[float, bool]:
        last = self.last_s
        if last is not None and time_s < last:
            if last - time_s <= EPOCH_JUMP_S:
                self._last_good = None
                return last, True
            self._offset_s += self.next_s - time_s
            time_s = self.next_s
            self.epoch += 1
        elif self._last_good is not None and time_s > self._last_good:
            before_s, self._apart_s = self._apart_s, time_s - self._last_good
            # A single long distance is a pause; two are the rate of a slow source.
            if self._apart_s <= EPOCH_JUMP_S or 0.5 <= before_s / self._apart_s <= 2.0:
                self._delta_s = self._apart_s
        self.last_s = self._last_good = self._anchor_s = time_s
        self._estimates = 0
        return time_s, False
