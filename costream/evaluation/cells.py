"""Values of metrics as cells of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence


def number(value: float | None) -> float | None:
    """Give a number, None for one that is not known."""
    return None if value is None or math.isnan(value) else value


def limits(interval: Sequence[float] | None) -> tuple[float | None, float | None]:
    """Give both ends of an interval, None where there is none."""
    return (None, None) if interval is None else (interval[0], interval[1])
