"""Level and spectrogram of the sound of a run."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt

SILENCE_DB = -96.0  # the range of 16 bits; less is silence
_HOLD_S = 1.5  # how long the highest peak stays marked
Samples = npt.NDArray[np.float32]
# The quiet end of the scale is a low percentile of the visible values, the loud end a high one;
# the scale spans at least 30 dB, as the noise of a steady sound would otherwise fill it.
_QUIET, _LOUD = 0.2, 0.995
_LEAST_SPAN = 3 * math.log(10)  # ln of power


class AudioMeter:
    """Audio meter of one run, in constant memory. ``step_s``: seconds per step.

    ``columns``: number of spectrogram columns to keep, ``columns_hz`` a second if there are
    enough frames. Adding a step takes microseconds; new spectrograms are processed on demand.
    """

    def __init__(self, step_s: float, *, columns: int = 128, columns_hz: float = 8.0) -> None:
        self.peak_db = self.held_db = SILENCE_DB  # dBFS: 0 is full scale
        self._held_s = -math.inf  # time of the held peak
        self._samples: Samples | None = None  # of the newest step
        self._each = max(1, round(step_s * columns_hz))  # columns a step
        self._new: deque[Samples] = deque(maxlen=columns)  # spectrograms not yet processed
        self._columns: deque[Samples] = deque(maxlen=columns)  # [bands] each

    def add(self, time_s: float, samples: Samples, spectrum: Samples | None) -> None:
        """Add the audio of a step: samples [N], spectrogram [frames, bands], ln of power."""
        if len(samples):
            self._samples = samples
            self.peak_db = decibels(max(float(samples.max()), -float(samples.min())))
        if self.peak_db >= self.held_db or not 0 <= time_s - self._held_s <= _HOLD_S:
            self.held_db, self._held_s = self.peak_db, time_s
        if spectrum is not None:
            self._new.append(spectrum)

    @property
    def rms_db(self) -> float:
        """Root mean square of the newest step, dBFS."""
        x = self._samples
        return SILENCE_DB if x is None else decibels(math.sqrt(float(np.dot(x, x)) / len(x)))

    @property
    def has_spectrum(self) -> bool:
        """Whether there is a spectrogram."""
        return bool(self._new or self._columns)

    def levels(self, width: int, height: int) -> Samples:
        """Return the newest ``width`` columns of the spectrogram as ``height`` rows of loudness.

        float32 [height or less, width or less], 0 quiet to 1 loud, high frequencies first.
        """
        while self._new:
            self._add_columns(self._new.popleft())
        shown = np.array(list(self._columns)[-width:])
        shown = np.nan_to_num(shown, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
        edges = np.linspace(0, shown.shape[1], min(height, shown.shape[1]) + 1).astype(np.intp)
        rows = np.maximum.reduceat(shown, edges[:-1], axis=1)  # so that narrow tones stay visible
        ordered = np.sort(rows, axis=None)
        low, high = (float(ordered[int(q * (ordered.size - 1))]) for q in (_QUIET, _LOUD))
        scaled = (rows - low) / max(high - low, _LEAST_SPAN)
        out: Samples = np.clip(scaled, 0, 1).astype(np.float32).T[::-1]
        return out

    def _add_columns(self, spectrum: Samples) -> None:
        frames, bands = spectrum.shape
        if self._columns and len(self._columns[0]) != bands:
            self._columns.clear()
        each = min(self._each, frames)
        if each:
            of_column = frames // each
            parts = spectrum[: each * of_column].reshape(each, of_column, bands)
            self._columns.extend(parts.mean(1))


def decibels(amplitude: float) -> float:
    """Return an amplitude (1: full scale) in dBFS, at least SILENCE_DB, also for NaN."""
    if not amplitude > 0:
        return SILENCE_DB
    return max(SILENCE_DB, min(20 * math.log10(amplitude), 60.0))
