"""Audio blocks from pieces of samples of any length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import NoReturn

import av
import numpy as np
import numpy.typing as npt

from costream.core.errors import UsageError
from costream.core.records import (
    AudioBlock,
    AudioFormat,
    Gap,
    Item,
    SourceInfo,
)
from costream.sources.array_values import WHERE, Values, shape_error
from costream.sources.base import SourceOptions
from costream.sources.media.block_cutter import AudioBlockCutter
from costream.sources.media.sound_clock import SILENCE_S, Discontinuity
from costream.sources.skeletons.person_slots import Slots

_CHANNELS = 32  # maximum number of audio channels; a longer axis is something else
_FOLLOWED = 10  # a deviation of the times is corrected within this many pieces


class NotCopied:
    """A converter with decoders, which cannot be copied."""

    def __reduce__(self) -> NoReturn:
        hint = "save it to a file, and load that into another stream"
        raise TypeError(f"a stream of frames or sound is not copied: {hint}")


class AudioSamples(NotCopied):
    """Audio samples, float32 (-1 to 1) or int16, [N] or [N, channels], in pieces of any length.

    Times that are off by up to ``SILENCE_S`` are followed slowly; later ones end a gap.
    """

    def __init__(
        self,
        first: Values,
        options: SourceOptions,
        sound: AudioFormat,
        rate_hz: float | None,
        info: SourceInfo,
    ) -> None:
        if rate_hz is None or rate_hz != int(rate_hz):
            hint = "give the samples per second: rate_hz=48000"
            raise UsageError("audio samples need their rate", where=WHERE, hint=hint)
        self._rate_hz, self._options, self._sound = int(rate_hz), options, sound
        self._channels = self._checked(first).shape[0]
        self._cutter: AudioBlockCutter | None = None
        self.slots: Slots | None = None
        self.rest: npt.NDArray[np.float32] | None = None
        self.taken, self._resumed = 0, False
        self._due_s = self.rest_s = Fraction(0)  # when the next sample is due
        self.info = replace(info, kind="audio")

    def items(self, value: Values, time_s: float | None) -> Iterator[Item]:
        """Yield the blocks that a piece completes; ``time_s``: of its first sample."""
        samples = self._checked(value)
        if samples.shape[0] != self._channels:
            raise UsageError(f"{samples.shape[0]} channels after {self._channels}", where=WHERE)
        if samples.shape[1] == 0:
            return
        at_s = None if time_s is None else _micro(time_s)
        jump = None if at_s is None or self._cutter is None else self._jump(at_s)
        if self._cutter is None:
            yield from self._begin(at_s)
            if self.rest is not None:
                samples, self.rest = np.concatenate((self.rest, samples), 1), None
        planes = np.ascontiguousarray(samples)
        frame = av.AudioFrame.from_ndarray(planes, "fltp", f"{self._channels}c")
        frame.sample_rate = self._rate_hz
        if self._cutter is None:
            begun = {"time_s": self.rest_s, "origin_s": self.rest_s}
            self._cutter = AudioBlockCutter(
                frame, self._sound, self._options, WHERE, live=self.info.live, **begun
            )
        self._due_s += Fraction(samples.shape[1], self._rate_hz)
        for item in self._cutter.take(frame, jump):
            if isinstance(item, AudioBlock):
                self.rest_s = max(self.rest_s, Fraction(item.time_s))  # not one before a gap
                item = replace(item, i=self.taken)
                self.taken += 1
            yield item
        pending = samples if self.rest is None else np.concatenate((self.rest, samples), 1)
        waiting = max(0, round((self._due_s - self.rest_s) * self._rate_hz))
        self.rest = pending[:, pending.shape[1] - waiting :]

    def _begin(self, at_s: Fraction | None) -> Iterator[Gap]:
        """Set the time of the first piece; yield the gap since a saved state, if there is one."""
        channels, count = (self._channels, 0) if self.rest is None else self.rest.shape
        if channels != self._channels:
            raise UsageError(f"{self._channels} channels after {channels}", where=WHERE)
        end_s = self._due_s + Fraction(count, self._rate_hz)
        if not self._resumed and at_s is not None:
            self._due_s = self.rest_s = at_s
        elif at_s is not None and at_s - end_s > SILENCE_S:
            yield Gap(float(self._due_s), float(at_s), f"no sound for {float(at_s - end_s):.3f} s")
            self._due_s, self.rest_s, self.rest = at_s, at_s, None

    def _jump(self, at_s: Fraction) -> Discontinuity:
        """Move the clock to the start of a piece; return the discontinuity before it."""
        ahead_s = at_s - self._due_s
        if ahead_s > SILENCE_S:
            self._due_s, self.rest_s, self.rest = at_s, at_s, None
            return Discontinuity(begins_s=at_s)
        shift_s = _micro(max(ahead_s, -SILENCE_S) / _FOLLOWED)
        self._due_s, self.rest_s = self._due_s + shift_s, self.rest_s + shift_s
        return Discontinuity(shift_s=shift_s)

    def go_on(self, taken: int, time_s: float) -> None:
        """Continue block numbers and times of an earlier stream."""
        self.taken, self._resumed = taken, True
        self._due_s = self.rest_s = Fraction(time_s)

    def finish(self) -> Iterator[Item]:
        """Yield the remaining blocks."""
        if self._cutter is not None:
            yield from self._cutter.finish()

    @staticmethod
    def _checked(value: Values) -> npt.NDArray[np.float32]:
        """Return float32 [channels, N]."""
        if value.dtype.kind == "i" and value.dtype.itemsize == 2:
            value = value.astype(np.float32) / 32768
        two = value[:, None] if value.ndim == 1 else value
        if two.ndim != 2 or two.dtype.kind != "f" or not 0 < two.shape[1] <= _CHANNELS:
            what = "audio is float (-1 to 1) or int16, [samples] or [samples, channels]"
            hint = "give one recording at a time"
            if two.dtype.kind != "f":
                hint = "scale it to -1 to 1: samples.astype('float32') / 2**31, for int32"
            elif two.ndim == 2 and two.size:
                hint = "transpose it: samples.T"
            raise shape_error(value, what, hint)
        with np.errstate(over="ignore"):  # infinite samples are silence
            return np.ascontiguousarray(two.T, np.float32)


def _micro(time_s: float | Fraction) -> Fraction:
    return Fraction(round(time_s * 1_000_000), 1_000_000)  # so that fractions stay short
