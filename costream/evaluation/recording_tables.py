"""Tables of the metrics of recordings."""

from __future__ import annotations

from typing import Any

from costream.core.formatting import counted
from costream.core.tables import Cell, Table
from costream.evaluation.table_parts import confusion_table, limits, number, unread_text

_METRICS = {
    "mAP": "mAP",
    "calibrated_mAP": "calibrated mAP (mcAP)",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
}


def recording_tables(result: dict[str, Any]) -> list[Table]:
    """Return the tables of frames, timeline, starts, classes and confusion."""
    frames = result["frames"]
    tables = [] if frames is None else [_frames(result)]
    if "portions" in result:
        tables += [_portions(result["portions"]), _published(result)]
    tables.append(_timeline(result))
    if result.get("instances"):
        tables.append(_instances(result["instances"]))
    tables += [_starts(result["starts"]), _recording_classes(result)]
    if frames is not None:
        tables += confusion_table(frames["confusion"], result["labels"], list(frames["classes"]))
    return tables


def _title(result: dict[str, Any]) -> str:
    by = f" by the protocol of {result['protocol']}" if result["protocol"] else ""
    recordings = counted(result["recordings"], "recording")
    return f"{result['model']} on {result['data']}: {recordings}{unread_text(result)}{by}"


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


def _portions(portions: list[dict[str, float | None]]) -> Table:
    columns = ("", *(f"to {10 * k} %" for k in range(1, len(portions) + 1)))
    rows = [
        (_METRICS[key], *(number(part[key]) for part in portions))
        for key in ("mAP", "calibrated_mAP")
    ]
    notes = ("frames in one tenth of their action, against all frames without it",)
    return Table("Portions of actions", columns, tuple(rows), notes, decimals=3)


def _published(result: dict[str, Any]) -> Table:
    measure = result["published"]["measure"]
    rows = [
        (f["network"], f["features"], f["value"], f["source"])
        for f in result["published"]["figures"]
    ]
    rows.append((result["model"], "these", number(result["frames"][measure]), "this evaluation"))
    columns = ("network", "features", _METRICS[measure], "source")
    notes = (f"published figures are of all test videos of {result['protocol']}",)
    return Table("Published", columns, tuple(rows), notes, decimals=3)


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


def _instances(found: dict[str, Any]) -> Table:
    rows = tuple((t, found["f1"][t], number(found["mAP"][t])) for t in found["f1"])
    notes = []
    if found["instances"]:
        notes = [
            f"{counted(found['instances'], 'instance')}, {found['after_s']:.2f} s after their ends"
            f" (median); {found['revised']:.0%} were revised later"
        ]
    title = "Instances as first reported"
    return Table(title, ("tIoU", "F1", "mAP"), rows, tuple(notes), decimals=3)


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
