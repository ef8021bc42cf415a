"""Feature source: precomputed rows from .npy, .npz and THUMOS-style pickles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from costream.core.records import Fault, FeatureRow, Item, SourceInfo
from costream.sources.base import SourceOptions, source
from costream.sources.features.feature_arrays import (
    FeatureArrays,
    has_arrays,
    is_pickle,
    load_features,
    video_names,
)
from costream.sources.file import FileSource, file_name, read_all, require_rate

_ROUNDING = Fraction(1, 10**6)  # of a row


@source("features", kind="features", order=2)
class FeatureSource(FileSource):
    """Rows of a feature file; row i has the stored time, or else the time i / rate_hz.

    Rows with NaN or infinite values are left out and counted as errors: they would remain in the
    state of a network.
    """

    _features: FeatureArrays | None = None
    _times: npt.NDArray[np.float64] | None = None  # stored ones
    _rate_hz = 0.0

    @staticmethod
    def sniff(head: bytes, path: str | None, options: SourceOptions) -> bool:
        """Return whether the data are arrays."""
        return has_arrays(head, path)

    @staticmethod
    def names(head: bytes, path: str) -> list[str]:
        """Return the names of the videos in a pickle."""
        return video_names(path) if is_pickle(head, path) else []

    def open(self) -> SourceInfo:
        """Load or memory-map the file. Raises SourceError if it contains no features.

        Raises UsageError if ``options.rate_hz`` is missing, for rows without stored times.
        """
        data = None if self._file is None else read_all(self._file)
        features = load_features(self._uri, data)
        rate_hz = features.rate_hz
        if rate_hz is None or (features.times is None and self._options.frame_rate_hz):
            rate_hz = require_rate(self._options.rate_hz, self._where, "feature rows")
        self._features, self._rate_hz = features, rate_hz
        if features.times is not None:
            self._times = features.times
        return SourceInfo(
            name=file_name(self._uri),
            uri=self._where,
            kind="features",
            duration_s=self._time_s(features.rows - 1) + 1 / rate_hz,
            rate_hz=rate_hz,
            width=features.width,
        )

    def items(self) -> Iterator[Item]:
        """Yield FeatureRow items, Faults for rows left out, a fatal one for a truncated file."""
        features = self._features
        if features is None:
            return
        first, last = self._range(features.rows)
        for i in range(first, last):
            if self._stopped or self._features is None:
                break
            values = features.row(i)
            time_s = self._time_s(i)
            if not np.isfinite(values).all():
                self._damage.add("row(s) with NaN or infinite values, left out", time_s)
                continue
            yield from self._damage.report(time_s, True)
            yield FeatureRow(i, time_s, values)
        yield from self._damage.flush()
        if features.note is not None and not self._stopped and self._features is not None:
            cut_off = features.cut_off and last == features.rows
            end_s = self._time_s(features.rows - 1) + 1 / self._rate_hz
            yield Fault(end_s, features.note, fatal=cut_off)

    def close(self) -> None:
        """Close the file. Rows already yielded stay usable."""
        self._features = None

    def _time_s(self, i: int) -> float:
        return i / self._rate_hz if self._times is None else float(self._times[i])

    def _range(self, rows: int) -> tuple[int, int]:
        """Return the first row at or after the start, and the first at or after the end."""

        def first_at(time_s: float) -> int:
            # A millionth of a row is rounding: 0.3 s at 10 rows a second is row 3.
            if self._times is not None:
                return int(np.searchsorted(self._times, time_s - 1e-6 / self._rate_hz))
            return max(0, math.ceil(Fraction(time_s) * Fraction(self._rate_hz) - _ROUNDING))

        end_s = self._options.end_s
        last = rows if end_s is None else min(rows, first_at(end_s))
        return first_at(self._options.start_s), last
