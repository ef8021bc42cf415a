"""Tables of the metrics of clips."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from costream.core.formatting import counted
from costream.core.tables import Table
from costream.evaluation.table_parts import confusion_table, number, unread_text

# Of top-1: what competes with the right class.
RIVALS = {
    "top1_own": "among the classes of the examples",
    "top1_all": "among all classes but the background",
    "top1_background": "with the background competing",
}
_WIDTH = 100  # columns of notes in words
_DISAGREE = 0.2  # difference of accuracies that is explained


def clip_tables(result: dict[str, Any]) -> list[Table]:
    """Return the tables of accuracy, classes and confusion."""
    one = result["sequences"]
    matrix = confusion_table(one["confusion"], result["labels"], list(one["classes"]))
    return [_accuracy(result), *_shown(result), _classes(result), *matrix]


def _accuracy(result: dict[str, Any]) -> Table:
    one = result["sequences"]
    low, high = one["top1_95"]
    rows = [
        ("mean of its steps", one["top1"], one["top5"]),
        ("majority vote of its steps", one["top1_vote"], None),
        ("last step", one["top1_last"], one["top5_last"]),
    ]
    notes = [f"top-1 of the mean: 95 % interval over {interval_units(one)} {low:.3f} to {high:.3f}"]
    if "top1_own" in one:
        among = [f"{words} {one[key]:.3f}" for key, words in RIVALS.items() if key in one]
        notes += textwrap.wrap(f"top-1 of the mean, {', '.join(among)}", _WIDTH)
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
            f"frames of {counted(frames['streams'], 'stream')} of consecutive examples"
            f" ({frames['frames']:,} frames): mAP {frames['mAP']:.3f},"
            f" accuracy {frames['accuracy']:.3f}"
        )
        notes += textwrap.wrap(_disagreement(result), _WIDTH)
    notes += textwrap.wrap(_unseen(result), _WIDTH)
    count = f"{counted(result['examples'], 'example')}{unread_text(result)}"
    title = f"{result['model']} on {result['data']}: {count}"
    columns = ("scores of an example", "top-1", "top-5")
    return Table(title, columns, tuple(rows), tuple(notes), decimals=3)


def interval_units(one: dict[str, Any]) -> str:
    """Return what the interval of sequences was resampled over, in words."""
    over, groups = str(one["top1_95_over"]), one.get("of_groups")
    if over != "sequences" or groups is None:
        return over
    return f"sequences (of {counted(groups, 'group')}, whose differences it leaves out)"


def timeline_table(title: str, rows: Sequence[tuple[str, dict[str, float]]]) -> Table:
    """Return the table of what timelines of sequences of one class each show."""
    columns = (title, "right label somewhere", "right label longest", "some wrong", "nothing")
    keys = ("right", "longest", "wrong", "nothing")
    cells = tuple((name, *(number(shares[k]) for k in keys)) for name, shares in rows)
    return Table("What the timeline shows", columns, cells, decimals=3)


def _shown(result: dict[str, Any]) -> list[Table]:
    shares = result.get("timeline")
    return [] if shares is None else [timeline_table("share of the examples", [("all", shares)])]


def _unseen(result: dict[str, Any]) -> str:
    """Return why the timeline shows much less than top-1 promises; "" if it does not."""
    top1, shares = result["sequences"]["top1"], result.get("timeline")
    if shares is None or not top1 - shares["right"] > _DISAGREE:
        return ""
    name, with_it = result["background"], result["sequences"].get("top1_background", top1)
    start = f"The timeline shows the right label of {shares['right']:.3f} of the examples only:"
    if top1 - with_it > _DISAGREE / 2:
        return (
            f"{start} top-1 ({top1:.3f}) is among the other classes, and '{name}' wins often"
            f" (top-1 with it {with_it:.3f}). A lower --threshold of detect opens more."
        )
    return f"{start} the scores of the best label are often below its --threshold, or short."


def _disagreement(result: dict[str, Any]) -> str:
    """Return why top-1 and the accuracy of frames differ, if they differ much; else ""."""
    top1, frames = result["sequences"]["top1"], result["streams"]
    if abs(top1 - frames["accuracy"]) < _DISAGREE:
        return ""
    start = f"The frames ({frames['accuracy']:.3f}) disagree with the examples ({top1:.3f}): "
    name, share = result.get("left_out"), frames.get("background", 0.0)
    competes = (
        f"'{name}' competes in the frames, where it wins {share:.0%}, and not in the examples: none"
        " is of it, so each is classified among the other classes."
    )
    if name is not None and share > (1 - frames["accuracy"]) / 2:
        return f"{start}{competes} A lower --threshold opens segments where it wins."
    return (
        f"{start}an example is judged by all its steps together, a frame by one alone, and at the"
        " start of an example the network still remembers the previous one."
        + (f" Besides, {competes}" if name is not None else "")
    )


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
