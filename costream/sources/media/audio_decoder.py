"""Audio decoder: decoded frames with their discontinuities."""

from __future__ import annotations

from collections.abc import Generator
from fractions import Fraction
from functools import partial
from itertools import islice

import av
from av.audio.stream import AudioStream
from av.container import InputContainer

from costream.sources.damage import DecodeErrors
from costream.sources.media.packets import PacketDecoder, PacketReader
from costream.sources.soundclock import Discontinuity, SoundClock
from costream.sources.timing import origin, time_base


class AudioDecoder:
    """Decoded sound of one stream from the current position to the end.

    After the last frame, ``fatal`` is the reason why the rest is lost, or None if the stream ended
    normally.
    """

    def __init__(
        self,
        container: InputContainer,
        stream: AudioStream,
        damage: DecodeErrors,
        from_s: float,
        stated_end_s: float | None = None,
        read: PacketReader | None = None,
    ) -> None:
        """``from_s``: errors before this are not counted. ``stated_end_s``: the expected end.

        ``read``: returns its packets.
        """
        self._stated_end_s = stated_end_s
        self.clock = SoundClock(time_base(stream), origin(container, stream))
        read = read or partial(container.demux, stream)
        self._frames = PacketDecoder(read, stream.decode, self.clock, damage, from_s)
        self.start_s = Fraction(0)  # time of the first sample, once known
        # All decodable frames with their discontinuities; to be consumed once.
        self.frames = self._run()

    @property
    def fatal(self) -> str | None:
        """Reason why the rest is lost."""
        return self._frames.fatal

    def close(self) -> None:
        """End the frames at once; call from the consuming thread, before closing the container."""
        self.frames.close()

    def stop(self) -> None:
        """End the frames soon; may be called from a signal handler."""
        self._frames.stop()

    def _run(self) -> Generator[tuple[av.AudioFrame, Discontinuity | None], None, None]:
        raw = (frame for frame in self._frames.run() if frame.samples)
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
            jump = clock.advance(frame.pts, frame.samples, frame.sample_rate, peek)
            if jump is not None and jump.damage is not None:
                began_s = clock.next_s - frame.samples / frame.sample_rate
                self._frames.count(jump.damage, began_s)
            if frame.is_corrupt:
                self._frames.count("damaged packet(s)", clock.next_s)
            yield frame, jump
        self._frames.check_end(self._stated_end_s)
