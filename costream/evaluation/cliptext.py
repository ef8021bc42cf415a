"""Clip metrics as tables."""

from __future__ import annotations

from typing import Any

from costream.evaluation.confusiontext import confusion_table
from costream.tables import Table


def clip_tables(result: dict[str, Any]) -> list[Table]:
    """Return the tables of accuracy, classes and confusion."""
    one = result["sequences"]
    matrix = confusion_table(one["confusion"], result["labels"], list(one["classes"]))
    return [_accuracy(result), _classes(result), *matrix]


def _accuracy(result: dict[str, Any]) -> Table:
    one = result["sequences"]
    low, high = one["top1_95"]
    rows = [
        ("mean of its steps", one["top1"], one["top5"]),
        ("majority vote of its steps", one["top1_vote"], None),
        ("last step", one["top1_last"], one["top5_last"]),
    ]
    notes = [f"top-1 of the mean: 95 % interval over {one['top1_95_over']} {low:.3f} to {high:.3f}"]
    if "groups" in result:
        groups = result["groups"]
        rows += [
            ("mean of its group", groups["top1"], groups["top5"]),
            ("majority vote of its group", groups["top1_vote"], None),
        ]
        notes.append(f"{groups['groups']} groups of one class each, counted once each")
    notes.append(f"mAP of the mean: {one['sequence_mAP']:.3f}")
    if "streams" in result:
        frames = result["streams"]
        notes.append(
            f"frames of {frames['streams']} streams of consecutive examples"
            f" ({frames['frames']:,} frames): mAP {frames['mAP']:.3f},"
            f" accuracy {frames['accuracy']:.3f}"
        )
    title = f"{result['model']} on {result['data']}: {result['examples']} examples"
    columns = ("scores of an example", "top-1", "top-5")
    return Table(title, columns, tuple(rows), tuple(notes), decimals=3)


def _classes(result: dict[str, Any]) -> Table:
    one = result["sequences"]
    framewise = result.get("streams", {}).get("average_precision", {})
    rows = tuple(
        (
            name,
            c["sequences"],
            c["recall"],
            c["precision"],
            c["average_precision"],
            framewise.get(name),
        )
        for name, c in one["classes"].items()
    )
    columns = ("class", "examples", "recall", "precision", "AP", "frame AP")
    wrong = [f"{a} predicted as {b}: {n}" for a, b, n in one["confused"][:5]]
    return Table("Classes", columns, rows, ("; ".join(wrong),) if wrong else (), decimals=3)
