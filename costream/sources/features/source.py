"""Feature source: precomputed rows from .npy, .npz and THUMOS-style pickles."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from costream.errors import UsageError
from costream.records import Fault, FeatureRow, Item, SourceInfo
from costream.sources.base import SourceOptions
from costream.sources.features.arrays import FeatureArrays, load_features
from costream.sources.media.container import display_name
from costream.sources.media.packets import DecodeErrors


class FeatureSource:
    """Rows of a feature file; row i has the time i / rate_hz.

    Rows with NaN or infinite values are left out and reported: they would stay in a network's
    state for ever, while the other rows are usable. ``errors`` counts them.
    """

    def __init__(
        self, uri: str, options: SourceOptions | None = None, *, data: bytes | None = None
    ) -> None:
        """``uri``: a file, or FILE.pickle#VIDEO. ``data``: content of the file, if already read."""
        self._uri = uri
        self._options = options or SourceOptions()
        self._data = data
        self._damage = DecodeErrors()
        self._stopped = False
        self._features: FeatureArrays | None = None

    @property
    def errors(self) -> int:
        """Number of rows left out so far."""
        return self._damage.total

    def open(self) -> SourceInfo:
        """Load or memory-map the file. Raises SourceError if it contains no features.

        Raises UsageError if ``options.rate_hz`` is missing: rows have no time stamps.
        """
        rate_hz = self._options.rate_hz
        if rate_hz is None or not (rate_hz > 0 and math.isfinite(rate_hz)):
            raise UsageError(
                "feature rows have no times",
                where=display_name(self._uri),
                hint="give their rate: --fps",
            )
        features = self._features = load_features(self._uri, self._data)
        return SourceInfo(
            name=file_name(self._uri),
            uri=display_name(self._uri),
            kind="features",
            duration_s=features.rows / rate_hz,
            rate_hz=rate_hz,
            width=features.width,
        )

    def items(self) -> Iterator[Item]:
        """Yield FeatureRow items, Faults for rows left out, a fatal one for a truncated file."""
        features, rate_hz = self._features, self._options.rate_hz
        if features is None or rate_hz is None:
            return
        first, last = self._range(features.rows, rate_hz)
        for i in range(first, last):
            if self._stopped or self._features is None:
                break
            values = features.row(i)
            time_s = i / rate_hz
            if not np.isfinite(values).all():
                self._damage.add("row(s) with NaN or infinite values, left out", time_s)
                continue
            fault = self._damage.report(time_s, True)
            if fault is not None:
                yield fault
            yield FeatureRow(i, time_s, values)
        fault = self._damage.flush()
        if fault is not None:
            yield fault
        if features.note is not None and not self._stopped and self._features is not None:
            cut_off = features.cut_off and last == features.rows
            yield Fault(features.rows / rate_hz, features.note, fatal=cut_off)

    def stop(self) -> None:
        """End ``items`` soon."""
        self._stopped = True

    def close(self) -> None:
        """Close the file. Rows already yielded stay usable."""
        self._features = None

    def _range(self, rows: int, rate_hz: float) -> tuple[int, int]:
        """Return the first row at or after the start, and the first at or after the end."""

        def first_at(time_s: float) -> int:
            # A millionth of a row is rounding: 0.3 s at 10 rows a second is row 3.
            return max(0, math.ceil(Fraction(time_s) * Fraction(rate_hz) - Fraction(1, 10**6)))

        end_s = self._options.end_s
        last = rows if end_s is None else min(rows, first_at(end_s))
        return first_at(self._options.start_s), last


def file_name(uri: str) -> str:
    """Return the base name for output files; video names in a pickle may contain "/"."""
    path, mark, video = uri.partition("#") if not os.path.exists(uri) else (uri, "", "")
    safe = "".join("_" if c in '/\\:*?"<>|' or not c.isprintable() else c for c in video)
    name = os.path.basename(os.path.abspath(path) if os.path.isdir(path) else path)
    return display_name(name + mark + safe)
