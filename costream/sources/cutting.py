"""Conversion of decoded audio frames to the requested blocks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt

from costream.errors import SourceError
from costream.records import Item
from costream.sources.base import AudioFormat, SourceOptions
from costream.sources.blocks import BlockSplitter
from costream.sources.media.resample import Mixer, silence, sound_format
from costream.sources.soundclock import Discontinuity

# Times within this fraction of a sample count as that sample.
ROUNDING = 1e-6


class AudioBlockCutter:
    """Mixes and resamples frames and cuts them into blocks, from the requested start to the end.

    Both are exact to a sample of the model's rate. ``ended`` is set when the end is reached.
    """

    def __init__(
        self,
        first: av.AudioFrame,
        sound: AudioFormat,
        options: SourceOptions,
        where: str,
        *,
        live: bool,
        time_s: Fraction = Fraction(0),
        origin_s: Fraction = Fraction(0),
    ) -> None:
        """``first``: the first frame that ``take`` will get; ``time_s``: its start.

        ``origin_s``: start of the stream. Resampling starts on the sample grid that it would have
        from there, so that a seek does not change the samples. ``live``: yield blocks as soon as
        their samples have arrived. Raises SourceError if the frame lacks the requested channel or
        cannot be mixed.
        """
        self._sound = sound
        self._options = options
        self._where = where
        self._live = live
        self._waiting = 0  # source samples pushed since the filters ran
        self._arrived_s: float | None = None
        self._drop = 0  # samples still to drop before the start
        self.ended = False
        rate_hz = first.sample_rate
        step = rate_hz // math.gcd(rate_hz, sound.rate_hz)
        skip = -round((time_s - origin_s) * rate_hz) % step
        self._mixer = self._mix(first, skip)
        start_s = self._cut(time_s + Fraction(skip, rate_hz))
        self._blocks = BlockSplitter(sound, start_s, source_hz=rate_hz)

    def take(
        self, frame: av.AudioFrame, jump: Discontinuity | None, arrived_s: float | None = None
    ) -> Iterator[Item]:
        """Take the next frame and its discontinuity, if any; yield the items it completes.

        ``arrived_s``: live, ``time.monotonic()`` of its arrival; None: now.
        """
        self._arrived_s = arrived_s
        gap = jump is not None and jump.begins_s is not None
        if gap or self._mixer.format != sound_format(frame):
            mixer = self._mix(frame)  # may fail; the old mixer must still be usable then
            if jump is not None and jump.begins_s is not None:
                yield from self.go_on(jump.begins_s, jump.reason)
            else:
                yield from self._cut_up(self._mixer.finish())
            self._mixer = mixer
        if jump is not None:
            self._blocks.shift(jump.shift_s)
            if jump.silence:
                self._mixer.push(silence(frame, jump.silence))
        self._mixer.push(frame)
        self._waiting += frame.samples
        if self._live or self._waiting >= frame.sample_rate:
            self._waiting = 0
            yield from self._cut_up(self._mixer.take())

    def finish(self) -> Iterator[Item]:
        """Yield the remaining items."""
        if not self.ended:
            yield from self._cut_up(self._mixer.finish())
        yield from self._blocks.finish()

    def go_on(self, time_s: Fraction, reason: str | None = None) -> Iterator[Item]:
        """Yield the remaining items and the gap up to ``time_s``; another frame must follow."""
        yield from self._cut_up(self._mixer.finish())
        if self._options.end_s is not None:
            time_s = min(time_s, Fraction(self._options.end_s))
        lost_s = float(time_s) - self._blocks.next_s
        gap = self._blocks.restart(self._cut(time_s), reason or f"no sound for {lost_s:.3f} s")
        if gap.end_s > gap.start_s:
            yield gap

    def _cut(self, time_s: Fraction) -> Fraction:
        """Set how many samples to drop if they start at ``time_s``; return the blocks' start."""
        self._drop = 0
        if self._options.start_s > 0:
            early_s = Fraction(self._options.start_s) - time_s
            self._drop = max(0, math.ceil(early_s * self._sound.rate_hz - Fraction(ROUNDING)))
        return time_s + Fraction(self._drop, self._sound.rate_hz)

    def _cut_up(self, pieces: Iterable[npt.NDArray[np.float32]]) -> Iterator[Item]:
        for samples in pieces:
            dropped = min(self._drop, len(samples))
            self._drop -= dropped
            wanted = samples[dropped:]
            if self._options.end_s is not None:
                left_s = self._options.end_s - self._blocks.next_s
                left = max(0, math.ceil(left_s * self._sound.rate_hz - ROUNDING))
                self.ended = left <= len(wanted)
                wanted = wanted[:left]
            arrived_s = self._arrived_s
            if arrived_s is None and self._live:
                arrived_s = time.monotonic()
            yield from self._blocks.push(wanted, arrived_s)
            if self.ended:
                return

    def _mix(self, frame: av.AudioFrame, skip: int = 0) -> Mixer:
        channel, count = self._options.channel, frame.layout.nb_channels
        if channel is not None and not 1 <= channel <= count:
            raise SourceError(
                f"there is no channel {channel} in it, only {count}", where=self._where
            )
        try:
            return Mixer(
                frame,
                self._sound.rate_hz,
                channel=channel,
                skip=skip,
                together=None if self._live else self._sound.rate_hz,
            )
        except (av.FFmpegError, ValueError) as error:
            raise SourceError(
                f"its {count} channels of {frame.format.name} cannot be mixed ({error})",
                where=self._where,
            ) from error
