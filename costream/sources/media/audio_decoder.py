"""Audio decoder: decoded frames with their discontinuities."""

from __future__ import annotations

from collections.abc import Generator
from fractions import Fraction
from functools import partial
from itertools import islice

import av
from av.audio.stream import AudioStream
from av.container import InputContainer

from costream.sources.media.decode_errors import DecodeErrors
from costream.sources.media.packet_decoder import PacketDecoder, PacketReader, StreamDecoder
from costream.sources.media.sound_clock import COUNTED, Discontinuity, SoundClock
from costream.sources.media.timing import origin, time_base


class AudioDecoder(StreamDecoder["tuple[av.AudioFrame, Discontinuity | None]"]):
    """Decoder of an audio stream: its frames with their discontinuities."""

    def __init__(
        self,
        container: InputContainer,
        stream: AudioStream,
        damage: DecodeErrors,
        from_s: float,
        stated_end_s: float | None = None,
        read: PacketReader | None = None,
        begin_s: Fraction | None = None,
    ) -> None:
        """``from_s``: errors before this are not counted. ``stated_end_s``: the expected end.

        ``read``: returns its packets. ``begin_s``: time of its first sample; None: as its stamps.
        """
        self._stated_end_s = stated_end_s
        counts = container.format.name in COUNTED
        origin_s = origin(container, stream)
        if begin_s is not None:
            origin_s = (stream.start_time or 0) * time_base(stream) - begin_s
        self.clock = SoundClock(time_base(stream), origin_s, counts=counts)
        self._joined = container.format.name == "flac"  # a change of rate means so
        read = read or partial(container.demux, stream)
        self.start_s = Fraction(0)  # time of the first sample, once known
        super().__init__(PacketDecoder(read, stream.decode, self.clock, damage, from_s))

    def _run(self) -> Generator[tuple[av.AudioFrame, Discontinuity | None], None, None]:
        raw = (frame for frame in self._packets.run() if frame.samples)
        ahead: list[av.AudioFrame] = []  # at most one frame, if the clock had to look ahead

        def peek() -> int | None:
            if not ahead:
                ahead.extend(islice(raw, 1))
            return ahead[0].pts if ahead else None

        clock, first = self.clock, next(raw, None)
        if first is not None:
            self.start_s = clock.start(first.pts, first.samples, first.sample_rate, peek())
            yield first, None
        while (frame := ahead.pop() if ahead else next(raw, None)) is not None:
            if self._joined and first is not None and frame.sample_rate != first.sample_rate:
                # FFmpeg loses and repeats frames of it.
                self._packets.fatal = (
                    f"the rest was appended with another sample rate ({frame.sample_rate} Hz)"
                )
                return
            jump = clock.advance(frame.pts, frame.samples, frame.sample_rate, peek)
            if jump is not None and jump.damage is not None:
                began_s = clock.next_s - frame.samples / frame.sample_rate
                self._packets.count(jump.damage, began_s)
            if frame.is_corrupt:
                self._packets.count("damaged packet(s)", clock.next_s)
            yield frame, jump
        self._packets.check_end(self._stated_end_s)
