"""Sums and maxima over bins of time, in constant memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Bins:
    """Sums and maxima of columns of numbers over bins of equal length.

    The bins begin at the first time; whenever time exceeds them, they double in length. A column
    that is missing in a step counts as zero.
    """

    def __init__(self, most: int, step_s: float) -> None:
        """``most``: even number of bins; ``step_s``: their initial length."""
        self.start_s = 0.0
        self.bin_s = step_s
        self.steps = np.zeros(most)  # [N] number of steps in each bin
        self._sums = np.zeros((most, 4))  # [N, columns]
        self._tops = np.zeros((most, 4))
        self._used = 0

    def add(
        self, time_s: float, values: Iterable[tuple[int, float]], *, counted: bool = False
    ) -> None:
        """Add a step: pairs of column and number. Times must not precede the first.

        ``counted``: these are more columns of the last step.
        """
        if self._used == 0:
            self.start_s = time_s
        k = max(0, int((time_s - self.start_s) / self.bin_s + 1e-6))
        while k >= len(self.steps):
            self._double()
            k //= 2
        self._used = max(self._used, k + 1)
        self.steps[k] += not counted
        for column, value in values:
            if column >= self._sums.shape[1]:
                self._widen(column + 1)
            self._sums[k, column] += value
            if value > self._tops[k, column]:
                self._tops[k, column] = value

    def add_span(self, start_s: float, end_s: float, column: int) -> None:
        """Add the seconds from start to end to a column of the bins that they overlap."""
        self.add(start_s, [(column, 0.0)])
        self.add(max(start_s, end_s - 1e-9), [(column, 0.0)])
        first = max(0, int((start_s - self.start_s) / self.bin_s + 1e-6))
        last = min(max(first, int((end_s - self.start_s) / self.bin_s)), len(self.steps) - 1)
        edges = self.start_s + np.arange(first, last + 2) * self.bin_s
        inside = np.minimum(edges[1:], end_s) - np.maximum(edges[:-1], start_s)
        self._sums[first : last + 1, column] += np.maximum(inside, 0.0)

    def fullest(self, columns: Sequence[int]) -> npt.NDArray[np.intp]:
        """Return for each bin the column with the largest sum, -1 where all are zero: [N]."""
        used = np.array([c for c in columns if c < self._sums.shape[1]], np.intp)
        if not len(used):
            return np.full(len(self._sums), -1, np.intp)
        sums = self._sums[:, used]
        return np.where(sums.max(axis=1) > 0, used[sums.argmax(axis=1)], -1)

    def times(self) -> Array:
        """Return the middle of every bin that contains a step: float64 [n]."""
        places = np.flatnonzero(self.steps).astype(np.float64)
        return self.start_s + (places + 0.5) * self.bin_s

    def means(self, column: int) -> Array:
        """Return the mean of a column in those bins: float64 [n]."""
        held = self.steps > 0
        means: Array = self._column(self._sums, column)[held] / self.steps[held]
        return means

    def maxima(self, column: int) -> Array:
        """Return the maximum of a column in those bins: float64 [n], not below zero."""
        return self._column(self._tops, column)[self.steps > 0]

    def total(self, column: int) -> float:
        """Return the sum of a column over all bins."""
        return float(self._column(self._sums, column).sum())

    def peak(self, column: int) -> float:
        """Return the maximum of a column over all bins, at least 0."""
        return float(self._column(self._tops, column).max())

    def most_in_a_bin(self) -> int:
        """Return the maximum number of steps in a bin."""
        return int(self.steps.max())

    def _column(self, of: Array, column: int) -> Array:
        values: Array = of[:, column] if column < of.shape[1] else np.zeros(len(of))
        return values

    def _double(self) -> None:
        half = len(self.steps) // 2
        for name, join in (("steps", np.add), ("_sums", np.add), ("_tops", np.maximum)):
            old: Array = getattr(self, name)
            new = np.zeros_like(old)
            new[:half] = join(old[0::2], old[1::2])
            setattr(self, name, new)
        self.bin_s *= 2
        self._used = half

    def _widen(self, columns: int) -> None:
        columns = max(columns, 2 * self._sums.shape[1])
        for name in ("_sums", "_tops"):
            old: Array = getattr(self, name)
            new = np.zeros((len(old), columns))
            new[:, : old.shape[1]] = old
            setattr(self, name, new)
