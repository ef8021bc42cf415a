"""Result tables as aligned text or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

Cell: TypeAlias = str | int | float | None


@dataclass(frozen=True)
class JsonTable:
    """A table as ``--json`` prints it."""

    title: str
    rows: tuple[dict[str, Cell], ...]  # values by column; null: none
    notes: tuple[str, ...]  # how it was measured, and what is left out


@dataclass(frozen=True)
class Table:
    """Table with named columns. A column's unit is part of its name; None means "no value"."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    decimals: int | None = None  # of all fractions; None: depending on the magnitude

    def to_json(self) -> dict[str, Any]:
        """Return JSON values: title, notes, and each row as an object."""
        rows = tuple(dict(zip(self.columns, row, strict=True)) for row in self.rows)
        return asdict(JsonTable(self.title, rows, self.notes))

    def to_text(self) -> str:
        """Return aligned columns: text left-aligned, numbers right-aligned."""
        cells = self.cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [_line(row, widths, self.numeric()) for row in cells]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([self.title, "", *lines, *(["", *self.notes] if self.notes else [])])

    def cells(self) -> list[tuple[str, ...]]:
        """Return the text of each cell: the names of the columns, then the rows."""
        return [
            self.columns,
            *(tuple(_show(cell, self.decimals) for cell in row) for row in self.rows),
        ]

    def numeric(self) -> list[bool]:
        """Return which columns have no text, so that they are right-aligned."""
        columns = list(zip(*self.rows, strict=True))
        return [all(not isinstance(cell, str) for cell in column) for column in columns] or [
            False
        ] * len(self.columns)


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    fields = (
        cell.rjust(width) if number else cell.ljust(width)
        for cell, width, number in zip(cells, widths, numeric, strict=True)
    )
    return "  ".join(fields).rstrip()


def _show(cell: Cell, decimals: int | None) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float) and decimals is not None:
        return f"{cell:,.{decimals}f}"
    if isinstance(cell, float):
        return f"{cell:.2e}" if 0 < abs(cell) < 0.01 else f"{cell:,.{_decimals(cell)}f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def _decimals(value: float) -> int:
    return 2 if abs(value) < 100 else 1
