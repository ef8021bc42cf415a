"""The metrics of ``costream evaluate`` as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costream.bench.table import Table

MOST_CLASSES = 20  # of a confusion matrix that fits a terminal


def to_text(result: dict[str, Any]) -> str:
    """Give the metrics as tables."""
    tables = [_accuracy(result), _classes(result)]
    matrix = _confusion(result["sequences"], result["labels"])
    if matrix is not None:
        tables.append(matrix)
    return "\n\n".join(table.to_text() for table in tables)


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
        notes.append(f"{groups['groups']} groups, each of one class, count once each")
    notes.append(f"mAP of the mean: {one['sequence_mAP']:.3f}")
    if "streams" in result:
        frames = result["streams"]
        notes.append(
            f"frames of {frames['streams']} streams of examples one after another"
            f" ({frames['frames']:,} frames): mAP {frames['mAP']:.3f},"
            f" accuracy {frames['accuracy']:.3f}"
        )
    title = f"{result['model']} on {result['data']}: {result['examples']} examples"
    return Table(title, ("scores of an example", "top-1", "top-5"), tuple(rows), tuple(notes))


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
    wrong = [f"{a} taken for {b}: {n}" for a, b, n in one["confused"][:5]]
    return Table("Classes", columns, rows, ("; ".join(wrong),) if wrong else ())


def _confusion(scores: dict[str, Any], labels: Sequence[str]) -> Table | None:
    """Give the confusion matrix of the classes that occur or were said; None when too wide."""
    counts, shown = scores["confusion"], list(scores["classes"])
    if len(shown) > MOST_CLASSES:
        return None
    places = [labels.index(name) for name in shown]
    rows = tuple(
        (k, name, *(counts[i][j] for j in places))
        for k, (name, i) in enumerate(zip(shown, places, strict=True), 1)
    )
    columns = ("", "class, taken for", *(str(k) for k in range(1, len(shown) + 1)))
    return Table("Confusion", columns, rows)
