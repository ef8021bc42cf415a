"""Cost totals of a run, accumulated from its compute records in constant memory."""

from __future__ import annotations

import math
from typing import Any

from costream.core.records import STAGES, Compute

# Times are counted in bins that are 2 % wide, from a microsecond to a quarter of an hour, so a
# percentile is within 1 % of a time that occurred.
_LEAST_MS = 1e-3
_RATIO = math.log(1.02)
_BINS = math.ceil(math.log(1e6 / _LEAST_MS) / _RATIO) + 1


class _Times:
    """Mean, percentiles and maximum of times in milliseconds."""

    def __init__(self) -> None:
        self.total_ms = 0.0
        self._count = 0
        self._max_ms = 0.0
        self._bins = [0] * _BINS

    def add(self, ms: float) -> None:
        self.total_ms += ms  # NaN if a time is unknown: then all results are NaN
        self._count += 1
        self._max_ms = max(self._max_ms, ms)
        k = round(math.log(ms / _LEAST_MS) / _RATIO) if ms > _LEAST_MS else 0
        self._bins[min(k, _BINS - 1)] += 1

    def percentile(self, percent: float) -> float:
        """Return the smallest time that ``percent`` of all times do not exceed (nearest rank)."""
        rank = max(1, math.ceil(self._count * percent / 100))
        seen = 0
        for k, count in enumerate(self._bins):
            seen += count
            if seen >= rank and k > 0:
                return min(_LEAST_MS * math.exp(k * _RATIO), self._max_ms)
            if seen >= rank:
                break
        return 0.0

    def to_json(self) -> dict[str, float]:
        if math.isnan(self.total_ms):
            return dict.fromkeys(("mean", "p50", "p90", "p99", "max"), math.nan)
        mean = self.total_ms / self._count if self._count else 0.0
        percentiles = {f"p{p}": self.percentile(p) for p in (50, 90, 99)}
        return {"mean": mean, **percentiles, "max": self._max_ms}


class CostTotals:
    """Sums over the steps of a run."""

    def __init__(self) -> None:
        self.steps = 0
        self.macs = 0
        self.dense_macs = 0
        self._dropped = 0
        self._max_lag_s = 0.0
        self._stages = {name: _Times() for name in STAGES}
        self._step = _Times()

    def add(self, record: Compute) -> None:
        """Add one step."""
        self.steps += 1
        self.macs += record.macs
        self.dense_macs += record.dense_macs
        self._dropped = record.dropped
        self._max_lag_s = max(self._max_lag_s, record.lag_s)
        times = [getattr(record.ms, name) for name in STAGES]
        for name, ms in zip(STAGES, times, strict=True):
            self._stages[name].add(ms)
        self._step.add(sum(times))

    def to_json(self) -> dict[str, Any]:
        """Return sums, and for each stage the total seconds and the milliseconds per step."""
        every = {**self._stages, "step": self._step}
        return {
            "steps": self.steps,
            "macs": self.macs,
            "dense_macs": self.dense_macs,
            "macs_per_step": self.macs / self.steps if self.steps else None,
            "dense_macs_per_step": self.dense_macs / self.steps if self.steps else None,
            "dropped": self._dropped,
            "max_lag_s": self._max_lag_s,
            "total_s": {name: times.total_ms / 1000 for name, times in every.items()},
            "ms": {name: times.to_json() for name, times in every.items()},
        }
