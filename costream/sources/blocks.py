"""Segmentation of sound into blocks of fixed length on an exact sample clock."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from costream.records import AudioBlock, Gap
from costream.sources.base import AudioFormat


class BlockSplitter:
    """Cuts mono sound into blocks of ``sound.block`` samples, numbered from 0.

    The end of a block is the start plus a whole number of samples, computed with integers: no
    error accumulates over hours. After a gap the clock and the next block restart; the numbering
    continues. ``pts`` of a block counts the source's samples from time 0.
    """

    def __init__(
        self, sound: AudioFormat, start_s: float | Fraction = 0.0, *, source_hz: int | None = None
    ) -> None:
        """``start_s``: time of the first sample. ``source_hz``: its rate before resampling."""
        self._sound = sound
        self._source_hz = source_hz or sound.rate_hz
        self._start_s = Fraction(start_s)
        self._blocks = 0  # since the last restart
        self._given = 0  # in total
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
                done.append(self._give(arrived_s))
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
        if not self._filled or (2 * self._filled < len(self._part) and self._given):
            return []
        self._part[self._filled :] = 0.0
        return [self._give(None)]

    def _give(self, arrived_s: float | None) -> AudioBlock:
        first, size = self._blocks * self._sound.block, self._sound.block
        block = AudioBlock(
            i=self._given,
            time_s=float(self._time(first + size)),
            samples=self._part,
            pts=round(self._time(first) * self._source_hz),
            arrived_s=arrived_s,
        )
        self._part = np.empty(size, np.float32)  # the old array belongs to the receiver
        self._filled = 0
        self._blocks += 1
        self._given += 1
        return block

    def _time(self, samples: int) -> Fraction:
        return self._start_s + Fraction(samples, self._sound.rate_hz)
