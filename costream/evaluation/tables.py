"""Text output of ``costream evaluate``."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from costream.core.formatting import counted
from costream.core.tables import Cell, Table


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


def number(value: float | None) -> float | None:
    """Return a number, or None for NaN."""
    return None if value is None or math.isnan(value) else value


def limits(interval: Sequence[float] | None) -> tuple[float | None, float | None]:
    """Return both ends of an interval, each None without one."""
    return (None, None) if interval is None else (interval[0], interval[1])


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
    count = f"{counted(result['examples'], 'example')}{_unread(result)}"
    title = f"{result['model']} on {result['data']}: {count}"
    columns = ("scores of an example", "top-1", "top-5")
    return Table(title, columns, tuple(rows), tuple(notes), decimals=3)


# Of top-1: what competes with the right class.
RIVALS = {
    "top1_own": "among the classes of the examples",
    "top1_all": "among all classes but the background",
    "top1_background": "with the background competing",
}


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
    told = result.get("timeline")
    return [] if told is None else [timeline_table("share of the examples", [("all", told)])]


def _unseen(result: dict[str, Any]) -> str:
    """Return why the timeline shows less than top-1 promises, if it shows much less; else ""."""
    top1, told = result["sequences"]["top1"], result.get("timeline")
    if told is None or not top1 - told["right"] > _DISAGREE:
        return ""
    name, with_it = result["background"], result["sequences"].get("top1_background", top1)
    start = f"The timeline shows the right label of {told['right']:.3f} of the examples only:"
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
        " start of an example the network still remembers the one before."
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


_WIDTH = 100  # columns of notes in words
_DISAGREE = 0.2  # difference of accuracies that is explained
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


def object_tables(result: dict[str, Any]) -> list[Table]:
    """Return tables of precision and cost for each number of tokens, and of the classes."""
    rows = result["budgets"]
    title = f"{result['model']} on {result['data']}: {rows[0]['pictures']} images{_unread(result)}"
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


_METRICS = {
    "mAP": "mAP",
    "calibrated_mAP": "calibrated mAP",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
}


def recording_tables(result: dict[str, Any]) -> list[Table]:
    """Return the tables of frames, timeline, starts, classes and confusion."""
    frames = result["frames"]
    tables = [] if frames is None else [_frames(result)]
    tables += [_timeline(result), _starts(result["starts"]), _recording_classes(result)]
    if frames is not None:
        tables += confusion_table(frames["confusion"], result["labels"], list(frames["classes"]))
    return tables


def _title(result: dict[str, Any]) -> str:
    by = f" by the protocol of {result['protocol']}" if result["protocol"] else ""
    recordings = counted(result["recordings"], "recording")
    return f"{result['model']} on {result['data']}: {recordings}{_unread(result)}{by}"


def _unread(result: dict[str, Any]) -> str:
    return f" ({result['failed']} more cannot be read)" if result.get("failed") else ""


def _frames(result: dict[str, Any]) -> Table:
    frames = result["frames"]
    endings = {"": ""}
    if "tolerance_s" in frames:
        endings["_tolerant"] = f", tolerance {frames['tolerance_s']:g} s"
    rows = [
        (word + more, number(frames[key + ending]), *limits(frames.get(f"{key}{ending}_95")))
        for ending, more in endings.items()
        for key, word in _METRICS.items()
    ]
    error = number(frames["calibration_error"])
    notes = [f"expected calibration error: {'-' if error is None else format(error, '.3f')}"]
    if frames["mAP_95"] is None:
        notes.append("no intervals: too few recordings")
    if "cost" in result:
        cost = result["cost"]
        notes.append(
            f"cost per step: {cost['macs_per_step'] / 1e6:,.2f} MMAC,"
            f" {cost['ms_per_step']:.2f} ms (median)"
        )
    columns = (f"{frames['frames']:,} frames", "", "95 % from", "to")
    return Table(_title(result), columns, tuple(rows), tuple(notes), decimals=3)


def _timeline(result: dict[str, Any]) -> Table:
    segments, latency = result["segments"], result["latency"]
    rows = tuple(
        (t, segments["f1"][t], *limits(segments["f1_95"][t]), number(segments["mAP"][t]))
        for t in segments["f1"]
    )
    notes = [f"{counted(segments['segments'], 'true segment')}, {segments['predicted']} predicted"]
    if latency["found"] is not None:
        wait = ""
        if latency["median_s"] is not None:
            wait = f", after {latency['median_s']:.2f} s (median), {latency['p90_s']:.2f} s (p90)"
        notes.append(f"detected after their onset: {latency['found']:.0%}{wait}")
    title = "Timeline" if result["frames"] is not None else f"{_title(result)}; timeline"
    columns = ("tIoU", "F1", "95 % from", "to", "mAP")
    return Table(title, columns, rows, tuple(notes), decimals=3)


def _starts(starts: dict[str, Any]) -> Table:
    means = starts["mAP"]
    columns = ("", *(f"{t} s" for t in means))
    row = ("point-level mAP", *(number(value) for value in means.values()))
    basis = "best labels of steps" if starts["of"] == "steps" else "segments of the timeline"
    notes = (f"{counted(starts['starts'], 'start')}; predicted from: {basis}",)
    return Table("Action starts", columns, (row,), notes, decimals=3)


def _recording_classes(result: dict[str, Any]) -> Table:
    frames = {} if result["frames"] is None else result["frames"]["classes"]
    segments, waits = result["segments"]["classes"], result["latency"]["classes"]
    rows = []
    for label in result["labels"]:
        if label not in frames and label not in segments:
            continue
        one, part, wait = frames.get(label, {}), segments.get(label, {}), waits.get(label, {})
        cells: list[Cell] = [label]
        if frames:
            cells.append(one.get("frames"))
            names = ("average_precision", "calibrated_average_precision", "recall", "precision")
            cells += [number(one.get(name)) for name in names]
        cells.append(part.get("segments"))
        cells.append(number(part.get("f1", {}).get("0.5")))
        cells.append(number(part.get("average_precision", {}).get("0.5")))
        cells += [number(wait.get(name)) for name in ("found", "median_s")]
        rows.append(tuple(cells))
    of_frames = ("frames", "AP", "calibrated AP", "recall", "precision") if frames else ()
    columns = ("class", *of_frames, "segments", "F1 0.5", "AP 0.5", "found", "median s")
    return Table("Classes", columns, tuple(rows), decimals=3)
