"""Text output of ``costream evaluate``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costream.core.tables import Table
from costream.evaluation.clip_tables import clip_tables
from costream.evaluation.recording_tables import recording_tables
from costream.evaluation.table_parts import limits, number, unread_text


def to_text(result: dict[str, Any]) -> str:
    """Return the metrics as text tables."""
    tables: Sequence[Table]
    if "budgets" in result:
        tables = object_tables(result)
    elif "recordings" in result:
        tables = recording_tables(result)
    elif "windows" in result:
        tables = [window_table(result)]
    else:
        tables = clip_tables(result)
    return "\n\n".join(table.to_text() for table in tables)


def window_table(result: dict[str, Any]) -> Table:
    """Return the table of scores and costs by window."""
    columns = ("window", "tokens", "accuracy", "F1", "Matthews", "kMAC a token", "recomputed kMAC")
    keys = ("accuracy", "f1", "matthews")
    rows = [
        (
            f"x{w['factor']:g}",
            w["window"],
            *(w[k] for k in keys),
            w["macs"] / 1e3,
            w["dense_macs"] / 1e3,
        )
        for w in result["windows"]
    ]
    title = f"{result['model']} on {result['data']}: {result['examples']} lines"
    note = f"windows of the mean length of a line, {result['tokens']:.1f} tokens; each line alone"
    return Table(title, columns, tuple(rows), (note,), decimals=3)


def object_tables(result: dict[str, Any]) -> list[Table]:
    """Return tables of precision and cost for each number of tokens, and of the classes."""
    rows = result["budgets"]
    title = (
        f"{result['model']} on {result['data']}: {rows[0]['pictures']} images{unread_text(result)}"
    )
    budgets = tuple(
        (
            "all" if row["tokens"] is None else str(row["tokens"]),
            number(row["AP50"]),
            *limits(row["AP50_95"]),
            number(row["AP"]),
            row["macs"] / 1e6,
            row["macs"] / row["dense_macs"],
            row["ms"],
            *((number(row["alike"]),) if "alike" in row else ()),
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
        *(("boxes alike",) if "alike" in rows[0] else ()),
    )
    of_classes = ("class", "objects", *heads, f"AP{heads[0].removeprefix('AP50')}")
    return [
        Table(title, columns, budgets, decimals=3),
        Table("Classes", of_classes, classes, decimals=3),
    ]
