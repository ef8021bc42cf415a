"""The confusion matrix as a table."""

from __future__ import annotations

from collections.abc import Sequence

from costream.tables import Cell, Table

MOST_CLASSES = 20  # of a confusion matrix that fits a terminal


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
