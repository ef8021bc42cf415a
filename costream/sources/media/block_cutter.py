"""Blocks of fixed length, on an exact sample clock, from decoded audio frames."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError
from costream.core.records import AudioBlock, AudioFormat, Fault, Gap, Item
from costream.sources.base import SourceOptions
from costream.sources.media.decode_errors import DecodeErrors
from costream.sources.media.mixer import Mixer, silence, sound_format
from costream.sources.media.sound_check import SCALE, SoundCheck
from costream.sources.media.sound_clock import Discontinuity

LOUDEST = 1000  # times full scale: louder samples are damage and would spoil a model's state
_NO_SOUND = f"piece(s) of sound with NaN samples, or {LOUDEST} times full scale, silenced; " + SCALE


# Times within this fraction of a sample count as that sample.
ROUNDING = 1e-6


class BlockSplitter:
    """Cuts mono sound into blocks of ``sound.block`` samples, numbered from 0.

    Times are computed with integers, so that no error accumulates. After a gap the clock and the
    next block restart; the numbering continues. ``pts`` of a block counts the source's samples from
    time 0.
    """

    def __init__(
        self, sound: AudioFormat, start_s: float | Fraction = 0.0, *, source_hz: int | None = None
    ) -> None:
        """``start_s``: time of the first sample. ``source_hz``: its rate before resampling."""
        self._sound = sound
        self._source_hz = source_hz or sound.rate_hz
        self._start_s = Fraction(start_s)
        self._blocks = 0  # since the last restart
        self._count = 0  # in total
        self._part = np.empty(sound.block, np.float32)
        self._filled = 0

    @property
    def next_s(self) -> float:
        """Time at which the next sample is due."""
        return float(self._time(self._blocks * self._sound.block + self._filled))

    def push(
        self, samples: npt.NDArray[np.float32], arrived_s: float | None = None
    ) -> list[AudioBlock]:
        """Take the next samples [N], any number of them; return the blocks they complete.

        ``arrived_s``: live, ``time.monotonic()`` of their arrival. The samples are copied.
        """
        done: list[AudioBlock] = []
        at = 0
        while at < len(samples):
            taken = min(len(samples) - at, len(self._part) - self._filled)
            self._part[self._filled : self._filled + taken] = samples[at : at + taken]
            self._filled += taken
            at += taken
            if self._filled == len(self._part):
                done.append(self._block(arrived_s))
        return done

    def restart(self, start_s: float | Fraction, reason: str) -> Gap:
        """Continue at another time; return the gap, which starts at the end of the last block.

        A partial block is discarded: padding would add silence that was not recorded.
        """
        gap = Gap(float(self._time(self._blocks * self._sound.block)), float(start_s), reason)
        self._start_s, self._blocks, self._filled = Fraction(start_s), 0, 0
        return gap

    def shift(self, by_s: Fraction) -> None:
        """Shift the clock by this much without a gap, to correct drift of the source."""
        self._start_s += by_s

    def finish(self) -> list[AudioBlock]:
        """Return the last block, padded with silence, if it is half full or the only one."""
        if not self._filled or (2 * self._filled < len(self._part) and self._count):
            return []
        self._part[self._filled :] = 0.0
        return [self._block(None)]

    def _block(self, arrived_s: float | None) -> AudioBlock:
        first, size = self._blocks * self._sound.block, self._sound.block
        block = AudioBlock(
            i=self._count,
            time_s=float(self._time(first + size)),
            samples=self._part,
            pts=round(self._time(first) * self._source_hz),
            arrived_s=arrived_s,
        )
        self._part = np.empty(size, np.float32)  # the old array belongs to the receiver
        self._filled = 0
        self._blocks += 1
        self._count += 1
        return block

    def _time(self, samples: int) -> Fraction:
        return self._start_s + Fraction(samples, self._sound.rate_hz)


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
        self._damage, self._check = DecodeErrors(), SoundCheck(options.channel, sound.rate_hz)
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
                yield from self.continue_at(jump.begins_s, jump.reason)
            else:
                yield from self._cut_up(self._mixer.finish())
            self._mixer = mixer
        if jump is not None:
            self._blocks.shift(jump.shift_s)
            if jump.silence:
                self._mixer.push(silence(frame, jump.silence))
        self._mixer.push(frame)
        yield from self._remarks(self._check.take(frame))
        self._waiting += frame.samples
        if self._live or self._waiting >= frame.sample_rate:
            self._waiting = 0
            yield from self._cut_up(self._mixer.take())

    def finish(self) -> Iterator[Item]:
        """Yield the remaining items."""
        if not self.ended:
            yield from self._cut_up(self._mixer.finish())
        yield from self._blocks.finish()
        yield from self._damage.flush()
        yield from self._remarks(self._check.finish())

    def _remarks(self, lines: Iterable[str]) -> Iterator[Fault]:
        return (Fault(self._blocks.next_s, line, count=0) for line in lines)

    def continue_at(self, time_s: Fraction, reason: str | None = None) -> Iterator[Item]:
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
            silent = ~(np.abs(wanted) <= LOUDEST)  # not a number, infinite, or absurd
            damaged = bool(silent.any())
            if damaged:
                first_s = int(silent.argmax()) / self._sound.rate_hz
                self._damage.add(_NO_SOUND, self._blocks.next_s + first_s)
                wanted = np.where(silent, np.float32(0), wanted)
            wanted = self._check.without_offset(wanted)
            arrived_s = self._arrived_s
            if arrived_s is None and self._live:
                arrived_s = time.monotonic()
            yield from self._blocks.push(wanted, arrived_s)
            yield from self._damage.report(self._blocks.next_s, not damaged)
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
