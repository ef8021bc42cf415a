"""Metric values as table cells."""

from __future__ import annotations

import math
from collections.abc import Sequence


def number(value: float | None) -> float | None:
    """Return a number, or None for NaN."""
    return None if value is None or math.isnan(value) else value


def limits(interval: Sequence[float] | None) -> tuple[float | None, float | None]:
    """Return both ends of an interval, each None without one."""
    return (None, None) if interval is None else (interval[0], interval[1])
