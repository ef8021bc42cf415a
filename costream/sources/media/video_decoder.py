"""Video decoder: decoded frames with media times."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import islice

import av
from av.container import InputContainer
from av.video.stream import VideoStream

from costream.sources.damage import DecodeErrors
from costream.sources.media.packets import PacketDecoder, PacketReader
from costream.sources.mediaclock import MediaClock
from costream.sources.timing import ends_in_a_packet, origin, stated_end_s, time_base

DEFAULT_RATE = Fraction(25)


@dataclass(frozen=True)
class DecodedFrame:
    """One decoded frame with its time."""

    picture: av.VideoFrame
    pts: int | None
    time_s: float
    estimated: bool


class VideoDecoder:
    """Decoded frames of one video stream from the current position to the end.

    After the last frame, ``fatal`` is the reason why the rest is lost, or None if the stream ended
    normally.
    """

    def __init__(
        self,
        container: InputContainer,
        stream: VideoStream,
        damage: DecodeErrors,
        from_s: float,
        read: PacketReader | None = None,
    ) -> None:
        """``from_s``: errors before this time are not counted. ``read``: returns the packets."""
        self._container = container
        self._stream = stream
        rate = stream.average_rate or stream.guessed_rate or DEFAULT_RATE
        self.clock = MediaClock(time_base(stream), origin(container, stream), float(1 / rate))
        read = read or partial(container.demux, stream)
        self._frames = PacketDecoder(read, stream.decode, self.clock, damage, from_s)
        # All decodable frames in time order; to be consumed once.
        self.pictures = self._pictures()

    @property
    def fatal(self) -> str | None:
        """Reason why the rest is lost."""
        return self._frames.fatal

    def close(self) -> None:
        """End the frames at once; call from the consuming thread, before closing the container."""
        self.pictures.close()

    def stop(self) -> None:
        """End the frames soon; may be called from a signal handler."""
        self._frames.stop()

    def _pictures(self) -> Generator[DecodedFrame, None, None]:
        raw = self._frames.run()
        ahead: list[av.VideoFrame] = []  # at most one frame, if the clock had to look ahead

        def peek() -> int | None:
            if not ahead:
                ahead.extend(islice(raw, 1))
            return self._stamp(ahead[0]) if ahead else None

        while (frame := ahead.pop() if ahead else next(raw, None)) is not None:
            yield self._timed(frame, peek)
        self._frames.check_end(stated_end_s(self._container, self._stream))
        if ends_in_a_packet(self._container):
            self._frames.count("packet(s) cut off by the end of the file", self.clock.next_s)

    def _timed(self, frame: av.VideoFrame, peek: Callable[[], int | None]) -> DecodedFrame:
        stamp = known = self._stamp(frame)
        if stamp is None and self.clock.last_s is None:
            stamp = frame.dts  # a fallback for the first frame after a seek
        epoch = self.clock.epoch
        time_s, estimated = self.clock.advance(stamp, peek)
        if self.clock.epoch != epoch:
            self._frames.count("backward clock jump(s)", time_s)
        if estimated and known is not None:
            self._frames.count("impossible time stamp(s)", time_s)
        if frame.is_corrupt:
            self._frames.count("damaged frame(s)", time_s)
        return DecodedFrame(frame, known, time_s, estimated or known is None)

    def _stamp(self, frame: av.VideoFrame) -> int | None:
        # AVI stores no presentation times; FFmpeg derives them from the decoding order, wrong
        # for B-frames. The decoding time of the packet that completed a frame always rises.
        return frame.dts if self._container.format.name == "avi" else frame.pts
