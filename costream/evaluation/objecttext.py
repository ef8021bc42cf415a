"""Object detection metrics as tables."""

from __future__ import annotations

from typing import Any

from costream.evaluation.cells import limits, number
from costream.tables import Table


def object_tables(result: dict[str, Any]) -> list[Table]:
    """Return tables of precision and cost for each number of tokens, and of the classes."""
    rows = result["budgets"]
    title = f"{result['model']} on {result['data']}: {rows[0]['pictures']} images"
    budgets = tuple(
        (
            "all" if row["tokens"] is None else str(row["tokens"]),
            number(row["AP50"]),
            *limits(row["AP50_95"]),
            number(row["AP"]),
            row["macs"] / 1e6,
            row["macs"] / row["dense_macs"],
            row["ms"],
        )
        for row in rows
    )
    classes = tuple(
        (name, one["objects"], *(row["classes"][name]["AP50"] for row in rows), one["AP"])
        for name, one in rows[0]["classes"].items()
    )
    heads = tuple(f"AP50, {row[0]} tokens" for row in budgets) if len(rows) > 1 else ("AP50",)
    columns = (
        "tokens",
        "AP50",
        "95 % from",
        "to",
        "AP",
        "MMAC per image",
        "of dense",
        "ms, median",
    )
    of_classes = ("class", "objects", *heads, f"AP{heads[0].removeprefix('AP50')}")
    return [
        Table(title, columns, budgets, decimals=3),
        Table("Classes", of_classes, classes, decimals=3),
    ]
