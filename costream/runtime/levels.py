"""Sound levels of each step: plain, A-weighted, and relative to the ambient level."""

from __future__ import annotations

import math
from collections import deque
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from costream.core.clock import SILENT_S
from costream.core.records import AudioBlock, Data, VideoFrame

Samples = npt.NDArray[np.float32]
SILENCE_DB = -96.0  # of full scale: the range of 16 bits; less is silence
AMBIENT_S = 60.0  # the ambient level is a quantile of the levels of this time ...
AMBIENT_SHARE = 0.2  # ... with this share of the levels below it
FLOOR_DB = -60.0  # of full scale: the least ambient level
YOUNG_S = 3.0  # after the start, when there is no ambient level yet
_MARGIN_S = 0.1  # of samples around a block, for its filter


class LevelMeter:
    """Measures the sound of one stream, step by step, in dB of full scale plus ``full_scale_db``.

    ``weighted``: also measure ``dba``. ``db``, ``dba``, ``above_db``: None before the first sound.
    """

    def __init__(self, full_scale_db: float = 0.0, *, weighted: bool = False) -> None:
        self._full_scale_db, self._weighted = full_scale_db, weighted
        self.db: float | None = None
        self.dba: float | None = None
        self.above_db: float | None = None  # over the ambient level; None: not known yet
        self._before: Samples = np.zeros(0, np.float32)  # the end of the step before
        self._past: deque[tuple[float, float]] = deque()  # time, dB
        self._begun_s = math.inf

    def reset(self) -> None:
        """Forget the past, as after a gap."""
        self._before, self._begun_s = self._before[:0], math.inf
        self._past.clear()
        self.db = self.dba = self.above_db = None

    def update(self, time_s: float, item: Data, rate_hz: int) -> None:
        """Take the input of a step; without sound nothing changes for SILENT_S."""
        blocks = [item] if isinstance(item, AudioBlock) else []
        if isinstance(item, VideoFrame):
            blocks = list(item.sound)
        samples = (
            np.concatenate([block.samples for block in blocks]) if blocks else self._before[:0]
        )
        if not len(samples):
            if self._past and time_s - self._past[-1][0] > SILENT_S:
                self.reset()
            return
        self.db = self._decibels(samples)
        if self._weighted:
            self.dba = self._decibels(self._filtered(samples, rate_hz))
            self._before = samples[-round(_MARGIN_S * rate_hz) :]
        self._begun_s = min(self._begun_s, time_s)
        while self._past and self._past[0][0] < time_s - AMBIENT_S:
            self._past.popleft()
        is_old = time_s - self._begun_s >= YOUNG_S
        ambient = FLOOR_DB + self._full_scale_db
        if is_old:
            ambient = max(ambient, np.quantile([db for _, db in self._past], AMBIENT_SHARE))
        self.above_db = self.db - float(ambient) if is_old else None
        self._past.append((time_s, self.db))

    def _decibels(self, samples: Samples) -> float:
        power = float(np.var(samples, dtype=np.float64))  # without the offset
        db = 10 * math.log10(power) if power > 0 and math.isfinite(power) else SILENCE_DB
        return max(db, SILENCE_DB) + self._full_scale_db

    def _filtered(self, samples: Samples, rate_hz: int) -> Samples:
        margin = round(_MARGIN_S * rate_hz)
        after = samples[::-1][:margin]
        extended = np.concatenate([self._before, samples, after])
        spectrum = np.fft.rfft(extended) * a_weighting(len(extended), rate_hz)
        filtered = np.fft.irfft(spectrum, len(extended))
        part: Samples = filtered[len(self._before) :][: len(samples)].astype(np.float32)
        return part


@lru_cache(maxsize=16)
def a_weighting(count: int, rate_hz: int) -> npt.NDArray[np.float64]:
    """Return the A-weighting of the frequencies of ``count`` samples (IEC 61672-1), as factors."""
    square = np.fft.rfftfreq(count, 1 / rate_hz) ** 2
    poles = (square + 20.598997**2) * (square + 12194.217**2)
    poles *= np.sqrt((square + 107.65265**2) * (square + 737.86223**2))
    factors: npt.NDArray[np.float64] = 10 ** (1.9997 / 20) * 12194.217**2 * square**2 / poles
    return factors
