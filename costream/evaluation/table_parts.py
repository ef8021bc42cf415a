"""What the tables of all metrics share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from costream.core.tables import Cell, Table

MOST_CLASSES = 20  # of a confusion matrix that fits a terminal


def number(value: float | None) -> float | None:
    """Return a number, or None for NaN."""
    return None if value is None or math.isnan(value) else value


def limits(interval: Sequence[float] | None) -> tuple[float | None, float | None]:
    """Return both ends of an interval, each None without one."""
    return (None, None) if interval is None else (interval[0], interval[1])


def confusion_table(
    counts: Sequence[Sequence[int]], labels: Sequence[str], shown: Sequence[str]
) -> list[Table]:
    """Return the table of counts [K, K] for the labels in ``shown``; nothing if it is too wide."""
    if not 0 < len(shown) <= MOST_CLASSES:
        return []
    places = [labels.index(name) for name in shown]
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (k, name, *(counts[i][j] for j in places))
        for k, (name, i) in enumerate(zip(shown, places, strict=True), 1)
    )
    columns = ("", "class, predicted as", *(str(k) for k in range(1, len(shown) + 1)))
    return [Table("Confusion", columns, rows)]


def unread_text(result: dict[str, Any]) -> str:
    """Return how many inputs could not be read, in brackets; "" if all could."""
    return f" ({result['failed']} more cannot be read)" if result.get("failed") else ""
