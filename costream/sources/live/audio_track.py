"""Sound of a feed, over all its connections."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import av
from av.audio.stream import AudioStream

from costream.core.records import AudioFormat, Gap, Item
from costream.sources.base import SourceOptions
from costream.sources.live.connection import FeedConnection
from costream.sources.live.feed_track import FeedTrack
from costream.sources.media.audio_decoder import AudioDecoder
from costream.sources.media.block_cutter import AudioBlockCutter
from costream.sources.media.sound_clock import JITTER_S, Discontinuity

LEFT_OUT = "left out: too much data arrived at once"


class AudioTrack(FeedTrack):
    """Sound of a feed, mono, in blocks of one model step."""

    def __init__(
        self, options: SourceOptions, where: str, began_s: float, sound: AudioFormat
    ) -> None:
        """Take the arguments of the base class; ``sound`` sets rate and block length."""
        super().__init__(options, where, began_s)
        self._sound = sound
        self._cutter: AudioBlockCutter | None = None
        self._next_s = Fraction(0)  # start of the next frame on the cutter's clock

    def run(self, link: FeedConnection, reason: str) -> Iterator[Item]:
        """Yield AudioBlock, Gap and Fault items; raises SourceError for an unusable format."""
        stream = link.stream
        assert isinstance(stream, AudioStream)
        stream.codec_context.thread_count = 1
        self.clock.restart()
        decoder = AudioDecoder(link.container, stream, self.damage, -math.inf, None, link.packets)
        self._decoder, joined, arrived_s = decoder, False, None
        for frame, jump in decoder.frames:
            if link.recent.had(frame.pts):
                arrived_s = link.arrived_s
                continue
            length_s = frame.samples / frame.sample_rate
            # The first one was held until the second confirmed its stamp.
            arrived_s = link.begun_s if arrived_s is None else link.arrived_s
            time_s = self._place(link, decoder.clock.next_s, arrived_s, length_s)
            yield from self._news(self.clock.last_s)
            if time_s is None:
                joined, reason = False, reason or LEFT_OUT
            else:
                link.place(frame.pts, time_s - length_s)
                yield from self._take(frame, time_s, jump, joined, reason)
                joined, reason = True, ""
                yield from self.damage.report(time_s, True)
                self.ended = self._cutter is not None and self._cutter.ended
                if self.ended and self._cutter is not None:
                    yield from self._cutter.finish()
                    return
            link.mark_alive()
        yield from self.damage.flush()

    def leave(self, reason: str) -> Iterator[Item]:
        """Yield the rest of the sound and the Gap until now."""
        if self._cutter is None:
            yield Gap(self.begins_s, self.now_s() + min(0.0, self.left_s), reason)
        else:
            yield from self._cutter.continue_at(Fraction(self.now_s()), reason)

    def _take(
        self,
        frame: av.AudioFrame,
        end_s: float,
        jump: Discontinuity | None,
        joined: bool,
        reason: str,
    ) -> Iterator[Item]:
        """Cut a frame that ends at ``end_s``. ``joined``: contiguous with the previous one."""
        rate_hz = frame.sample_rate
        length_s = Fraction(frame.samples, rate_hz)
        begins_s = Fraction(end_s) - length_s
        if self._cutter is None:
            begins_s = max(begins_s, Fraction(self.begins_s))
            self._cutter = AudioBlockCutter(
                frame, self._sound, self._options, self._where, live=True, time_s=begins_s
            )
            if reason:
                yield Gap(self.begins_s, float(begins_s), reason)
            placed = None
        else:
            silence = 0 if jump is None else jump.silence
            expected_s = self._next_s + Fraction(silence, rate_hz)
            # Whole samples: the remainder is carried over to a later frame.
            off_s = Fraction(round((begins_s - expected_s) * rate_hz), rate_hz)
            if not joined or abs(off_s) > JITTER_S:
                placed = Discontinuity(begins_s=begins_s, reason=reason or None)
            else:
                placed = Discontinuity(silence=silence, shift_s=off_s)
                begins_s = expected_s + off_s
        yield from self._cutter.take(frame, placed, self.due_s(end_s))
        self._next_s = begins_s + length_s
