"""Tables of tools and data sets whose rows are not one label each with start and end.

BORIS tabular events (START and STOP in rows of their own), AVA (no headings, a row for each second
and person), Charades (all actions of a video in one cell) and VIA 3 (JSON in cells).
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from costream.labels.collector import LabelCollector, LabelTrack, read_text, seconds
from costream.labels.formats.editor_timelines import frame_number
from costream.labels.formats.label_headings import given_rate_hz
from costream.labels.recording import Label

Rows: TypeAlias = Sequence[tuple[int, list[str]]]
_AVA_S = 1.0  # its annotations are of the second around their time
_PLAYER = re.compile(r"\Aplayer #\d+:", re.IGNORECASE)  # of BORIS
_CHARADES = re.compile(r"(c\d+) ([\d.]+) ([\d.]+)")
_CHARADES_CLASSES = "Charades_v1_classes.txt"  # lines "c000 Holding some clothes"
VIA = "# exported using vgg"  # the first line of VIA 3
_VIA_HEADINGS = "# csv_header"
DATAVYU = re.compile(r"#\d+ *\n[^\n]*\([A-Z]+,")  # the first lines of its tables
_DATAVYU_CELL = re.compile(r"(\d+:\d\d:\d\d):(\d{3}),(\d+:\d\d:\d\d):(\d{3}),\(?(.*?)\)?")
_BORIS_FILES = ("media file name", "media file path", "media file", "observation id")


def recorded(name: str) -> str:
    """Return the name of a recording without the number of the player, which BORIS adds."""
    return _PLAYER.sub("", name).strip()


def read_tool_table(
    path: Path, names: Sequence[str], rows: Rows, collector: LabelCollector
) -> Iterator[LabelTrack] | None:
    """Return the tracks of a table of these tools; None for another table.

    ``names``: the cells of the first line in lower case, ``rows``: line numbers and cells.
    """
    if collector.columns.keys() - {"fps"}:
        return None
    if {"time", "behavior"} <= set(names):
        return read_events(path, names, rows, collector)
    if {"name", "start", "duration"} <= set(names) or {"marker name", "in"} <= set(names):
        return iter([_markers(path, names, rows, collector)])
    if {"id", "actions", "length"} <= set(names):
        return _charades(path, names, rows, collector)
    if len(names) in (7, 8) and all(map(_is_number, names[1:6])):
        return _ava(path, [(1, list(names)), *rows], collector)
    return None


def _markers(path: Path, names: Sequence[str], rows: Rows, collector: LabelCollector) -> LabelTrack:
    """Return the markers with a length of Adobe Audition (name, start, duration) and Premiere (in).

    Time codes, with frames after the third colon, need a rate (``--columns fps=``).
    """
    labels: list[Label] = []
    for line, row in rows:
        cells, spot = dict(zip(names, row, strict=False)), f"line {line}"
        try:
            start, length = (
                _time_s(cells.get(a) or cells.get(b) or "", collector, str(path))
                for a, b in (("start", "in"), ("duration", "duration"))
            )
        except ValueError as error:
            collector.error(path, spot, str(error))
            continue
        if not length:
            collector.warn("markers without length, left out", f"{path}, {spot}")
            continue
        label = cells.get("marker name") or cells.get("name") or ""
        labels += collector.label(path, spot, start, start + length, label)
    return LabelTrack(path, (), tuple(labels))


def _time_s(text: str, collector: LabelCollector, where: str) -> float:
    if len(re.findall("[:;]", text)) == 3:
        rate_hz = given_rate_hz(collector.columns, where)
        try:
            return frame_number(text, rate_hz) / rate_hz
        except ValueError:
            raise ValueError(f"not a time: {text!r:.40}") from None
    return seconds(text)


def read_events(
    path: Path, names: Sequence[str], rows: Rows, collector: LabelCollector
) -> Iterator[LabelTrack]:
    """Yield the states of BORIS; a state lasts from its START to the next STOP of its subject.

    Without a column that tells them apart, every second event of a state ends it.
    """
    of = next((name for name in _BORIS_FILES if name in names), "")
    kind = next((name for name in ("behavior type", "status") if name in names), "")
    found: dict[str, list[Label]] = {}
    begun: dict[tuple[str, str, str], tuple[str, str]] = {}
    for line, row in rows:
        cells, spot = dict(zip(names, row, strict=False)), f"line {line}"
        file, label = recorded(cells.get(of, "")) if of else "", cells.get("behavior", "")
        if of and not file:
            collector.lose(path, spot, "no file")
            continue
        labels = found.setdefault(file, [])
        key, status = (file, cells.get("subject", ""), label), cells.get(kind, "").upper()
        if not kind:
            status = "STOP" if key in begun else "START"
        if status == "START" and key not in begun:
            begun[key] = spot, cells.get("time", "")
        elif status == "STOP" and key in begun:
            spot, start = begun.pop(key)
            labels += collector.label(path, spot, start, cells.get("time", ""), label)
        elif status == "POINT":
            collector.warn("events without length, left out", f"{path}, {spot}")
        else:
            collector.lose(path, spot, f"{status or 'no status'} without its START or STOP")
    for spot, _ in begun.values():
        collector.lose(path, spot, "START without its STOP")
    single = len(found) == 1
    for file, labels in found.items():
        yield LabelTrack(path, (file,) if file else (), tuple(labels), single=single)


def _charades(
    path: Path, names: Sequence[str], rows: Rows, collector: LabelCollector
) -> Iterator[LabelTrack]:
    """Yield the videos of Charades: actions "c092 11.90 21.20;c147 0.00 12.60"."""
    class_list = path.with_name(_CHARADES_CLASSES)
    classes: dict[str, str] = {}
    if class_list.is_file():
        lines = (line.partition(" ") for line in read_text(class_list).split("\n"))
        classes = {code: text.strip() for code, _, text in lines}
    else:
        collector.warn(f"classes by their code, as there is no {class_list.name}", str(path))
    for line, row in rows:
        cells = dict(zip(names, row, strict=False))
        labels: list[Label] = []
        for action in filter(None, cells.get("actions", "").split(";")):
            if (parts := _CHARADES.fullmatch(action.strip())) is None:
                collector.lose(path, f"line {line}", f"not CODE START END: {action!r:.40}")
                continue
            code, start, end = parts.groups()
            labels += collector.label(path, f"line {line}", start, end, classes.get(code, code))
        length = cells.get("length", "")
        duration_s = float(length) if _is_number(length) else None
        yield LabelTrack(path, (cells.get("id", ""),), tuple(labels), duration_s, single=False)


def _ava(path: Path, rows: Rows, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the videos of AVA: video, second, box, action, person; equal neighbours are joined."""
    collector.warn("actions by their number, 1 s around each time, as in AVA", str(path))
    found: dict[str, dict[tuple[str, int | None], list[Label]]] = {}
    for line, row in rows:
        spot = f"line {line}"
        if len(row) < 2:
            collector.error(path, spot, "not video, time, box, action, person")
            continue
        of_video = found.setdefault(row[0], {})
        if len(row) < 7:  # nobody is in this frame
            continue
        if not _is_number(row[1]):
            collector.lose(path, spot, f"not a time: {row[1]!r:.40}")
            continue
        person = int(row[7]) if len(row) > 7 and row[7].isdecimal() else None
        at_s = float(row[1])
        for label in collector.label(path, spot, at_s - _AVA_S / 2, at_s + _AVA_S / 2, row[6]):
            same = of_video.setdefault((row[6], person), [])
            if same and same[-1].end_s == label.start_s:
                same[-1] = replace(same[-1], end_s=label.end_s)
            else:
                same.append(replace(label, person=person))
    for video, by_action in found.items():
        labels = tuple(label for same in by_action.values() for label in same)
        yield LabelTrack(path, (video,), labels, single=False)


def read_datavyu(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the cells of Datavyu; the label is the first code. A part is a column."""
    labels: list[Label] = []
    column = ""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        cell = _DATAVYU_CELL.fullmatch(line)
        if cell is None:
            column = line.partition(" (")[0] if " (" in line else column
        elif collector.wants(column):
            start, end, code = f"{cell[1]}.{cell[2]}", f"{cell[3]}.{cell[4]}", cell[5].split(",")[0]
            labels += collector.label(path, f"line {number}", start, end, code)
    yield LabelTrack(path, (), tuple(labels), has_parts=True)


def read_via(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the temporal segments of VIA 3; regions in space are left out."""
    found: dict[str, list[Label]] = {}
    lines = read_text(path).split("\n")
    head = next((line for line in lines if line.lower().startswith(_VIA_HEADINGS)), "")
    names = head.partition("=")[2].strip().split(",")
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        cells, spot = dict(zip(names, next(csv.reader([line])), strict=False)), f"line {number}"
        try:
            (file,) = json.loads(cells["file_list"])
            times = json.loads(cells["temporal_coordinates"])
            values = [str(value) for value in json.loads(cells["metadata"]).values()]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            collector.error(path, spot, f"not a segment of VIA ({error!r:.60})")
            continue
        labels = found.setdefault(str(file), [])
        if len(times) != 2:
            collector.warn("annotations without start and end, left out", f"{path}, {spot}")
            continue
        labels += collector.label(path, spot, times[0], times[1], values[0] if values else "")
    for file, labels in found.items():
        yield LabelTrack(path, (file,), tuple(labels), single=len(found) == 1)


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"-?\d+(\.\d*)?", text.strip()))
