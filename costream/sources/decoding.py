"""From packets to pictures with times, past whatever is damaged."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

import av
from av.container import InputContainer
from av.packet import Packet
from av.video.stream import VideoStream

from costream.clock import parse_time
from costream.errors import UsageError
from costream.sources.damage import Damage
from costream.sources.mediaclock import MediaClock
from costream.sources.opening import ARBITRARY_CLOCK

# How often reading may fail in a row before the rest of a file counts as lost.
READ_ATTEMPTS = 16
# A file that ends this much before the length in its header was cut off.
CUT_OFF_S = 1.0
DEFAULT_RATE = Fraction(25)


@dataclass(frozen=True)
class Decoded:
    """One picture as it came from the decoder."""

    picture: av.VideoFrame
    pts: int | None
    time_s: float
    estimated: bool


class Decoder:
    """The pictures of one video stream from where its container stands to the end.

    Each packet is decoded on its own, so that a damaged one costs no other. ``fatal`` says, after
    the last picture, why the rest is lost; None when the stream ended as it should.
    """

    def __init__(
        self, container: InputContainer, stream: VideoStream, damage: Damage, from_s: float
    ) -> None:
        """``from_s``: damage before this time is not counted."""
        self._container = container
        self._stream = stream
        self._damage = damage
        self._from_s = from_s
        self._stopped = False
        self._read_to_s = 0.0  # end of the newest packet
        self.fatal: str | None = None
        rate = stream.average_rate or stream.guessed_rate or DEFAULT_RATE
        self.clock = MediaClock(time_base(stream), origin(container, stream), float(1 / rate))
        # Every picture that can be decoded, in order of time; to be consumed once.
        self.pictures = self._pictures()

    def close(self) -> None:
        """End the pictures at once; from the thread that consumes them, before the container."""
        self.pictures.close()

    def stop(self) -> None:
        """End the pictures soon; may be called from a signal handler."""
        self._stopped = True

    def _pictures(self) -> Generator[Decoded, None, None]:
        raw = self._raw()
        ahead: list[av.VideoFrame] = []  # at most one picture, when the clock had to look ahead

        def peek() -> int | None:
            if not ahead:
                ahead.extend(islice(raw, 1))
            return self._stamp(ahead[0]) if ahead else None

        while (frame := ahead.pop() if ahead else next(raw, None)) is not None:
            yield self._timed(frame, peek)
        if not self._stopped and self.fatal is None:
            self.fatal = self._cut_off()

    def _raw(self) -> Iterator[av.VideoFrame]:
        for packet in self._packets():
            try:
                yield from self._stream.decode(packet)
            except av.EOFError:  # flushed already
                pass
            except av.FFmpegError:
                pts = None if packet is None else packet.pts
                time_s = self.clock.next_s if pts is None else self.clock.seconds(pts)
                self._count("packet(s) that cannot be decoded", time_s)

    def _packets(self) -> Iterator[Packet[VideoStream] | None]:
        """Yield packets, the last one empty or None: the decoder then gives what it holds back."""
        failures = 0
        while not self._stopped:
            try:
                for packet in self._container.demux(self._stream):
                    if failures:
                        self._count("stretch(es) that cannot be read", self.clock.next_s)
                        failures = 0
                    if self._stopped:
                        return
                    if packet.pts is not None:
                        end = self.clock.seconds(packet.pts + (packet.duration or 0))
                        self._read_to_s = max(self._read_to_s, end)
                    yield packet
                return
            except IndexError:
                # PyAV, at the end of a damaged transport stream in which new streams showed up.
                yield None
                return
            except (av.FFmpegError, OSError) as error:
                failures += 1
                if failures == READ_ATTEMPTS:
                    self.fatal = f"the rest is lost: it cannot be read ({error.strerror})"
                    yield None
                    return

    def _timed(self, frame: av.VideoFrame, peek: Callable[[], int | None]) -> Decoded:
        stamp = known = self._stamp(frame)
        if stamp is None and self.clock.last_s is None:
            stamp = frame.dts  # better than nothing for the first picture after a seek
        epoch = self.clock.epoch
        time_s, estimated = self.clock.advance(stamp, peek)
        if self.clock.epoch != epoch:
            self._count("jump(s) of the clock backwards", time_s)
        if estimated and known is not None:
            self._count("impossible time stamp(s)", time_s)
        if frame.is_corrupt:
            self._count("damaged picture(s)", time_s)
        return Decoded(frame, known, time_s, estimated or known is None)

    def _stamp(self, frame: av.VideoFrame) -> int | None:
        # AVI stores no presentation times; FFmpeg makes them up from the decoding order, wrong
        # for B-frames. The decoding time of the packet that completed a picture always rises.
        return frame.dts if self._container.format.name == "avi" else frame.pts

    def _count(self, what: str, time_s: float) -> None:
        if time_s >= self._from_s:
            self._damage.add(what, time_s)

    def _cut_off(self) -> str | None:
        """Say so when the packets ended well before the header's length; not every file tells."""
        expected_s = stated_end_s(self._container, self._stream)
        if expected_s is None or expected_s - self._read_to_s <= CUT_OFF_S:
            return None
        return (
            f"the file is cut off: its header says {expected_s:.3f} s, it ends at "
            f"{self._read_to_s:.3f} s"
        )


def time_base(stream: VideoStream) -> Fraction:
    """Give the seconds of one unit of a stream's time stamps."""
    return stream.time_base or Fraction(1, 1000)


def clock_is_arbitrary(container: InputContainer) -> bool:
    """True for transport and program streams, whose clock starts anywhere and may jump."""
    return bool(container.format.flags & ARBITRARY_CLOCK)


def origin(container: InputContainer, stream: VideoStream) -> Fraction:
    """Give what counts as 0 s on the container's clock."""
    if not clock_is_arbitrary(container) or container.start_time is None:
        return Fraction(0)
    start = Fraction(container.start_time, av.time_base)
    if stream.start_time is not None:
        own = stream.start_time * time_base(stream)
        if abs(own - start) < Fraction(1, av.time_base):  # the same, without the rounding
            return own
    return start


def end_s(container: InputContainer, stream: VideoStream) -> float | None:
    """Give when the stream ends on the clock of its pictures; None when that is not known."""
    zero = origin(container, stream)
    if stream.duration:
        return float(((stream.start_time or 0) + stream.duration) * time_base(stream) - zero)
    if container.duration:
        # The duration of Matroska counts from 0, not from the first picture.
        start = 0 if "matroska" in container.format.name else container.start_time or 0
        return float(Fraction(start + container.duration, av.time_base) - zero)
    return None


def stated_end_s(container: InputContainer, stream: VideoStream) -> float | None:
    """Give the end that the header states for this very stream, where it can be trusted."""
    if clock_is_arbitrary(container):
        return None  # estimated from the time stamps in the file
    if stream.duration or len(container.streams) == 1:
        return end_s(container, stream)
    try:  # Matroska as most programs write it
        return parse_time(stream.metadata.get("DURATION", ""))
    except UsageError:
        return None
