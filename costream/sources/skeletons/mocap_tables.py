"""Reading of the tables of motion capture: of Motive, Vicon Nexus, and Visual3D (Theia3D).

All have several lines of headings: names of markers or bones above their columns X, Y, Z.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from costream.core.errors import SourceError
from costream.sources.file import first_of, require_rate
from costream.sources.skeletons.skeleton_format import SkeletonInput, skeleton_format
from costream.sources.skeletons.table_rows import number
from costream.sources.skeletons.take import Take, marker_take, split_subjects
from costream.sources.skeletons.text_lines import delimiter_of, parse_lines

_MOST_LINES = 20  # of headings
_XYZ = ["x", "y", "z"]
_ROOT = "Hip"  # of Motive's skeletons, whose name is that of the skeleton in older versions


def is_motive(source: SkeletonInput) -> bool:
    """Return whether this is a CSV that Motive (OptiTrack) exported."""
    return source.is_text and source.first_line.startswith("Format Version")


@skeleton_format("motive", sniff=is_motive, order=2)
def read_motive(source: SkeletonInput) -> Take:
    """Return the take of a CSV of Motive: bones, or markers if there are none, with their times.

    Raises SourceError if the headings cannot be read.
    """
    lines, where = iter(source.lines()), source.where
    about = _row(next(lines))
    stated = dict(zip(about[::2], about[1::2], strict=False)).get("Export Frame Rate", "")
    levels: dict[str, list[str]] = {}
    for line in itertools.islice(lines, _MOST_LINES):
        cells = _row(line)
        if cells[:1] == ["Frame"]:
            levels["axes"] = cells
            break
        key = next(filter(None, cells[:2]), "quantity") if any(cells) else ""
        levels[key.lower()] = cells
    if not {"name", "quantity", "axes"} <= levels.keys():
        raise SourceError("the headings of this table of Motive cannot be read", where=where)
    kinds, quantities = levels.get("type", []), levels["quantity"]
    starts: list[int] = []
    for wanted in ("Bone", "Marker", "Bone Marker"):
        found = _starts(levels["axes"])
        starts = [k for k in found if _at(quantities, k) == "Position" and wanted == _at(kinds, k)]
        if starts:
            break
    labels = [_bone(_at(levels["name"], k)) for k in starts]
    rate_hz = source.rate_hz or _positive(stated)
    given_hz = source.rate_hz

    def time_of(cells: list[str]) -> float:
        return number(cells[1]) if given_hz is None else float(cells[0]) / given_hz

    return _take(lines, ",", labels, starts, time_of, rate_hz, where)


def _bone(name: str) -> str:
    """Return "skeleton:bone"; the root of older versions has the name of the skeleton."""
    subject, mark, bone = name.rpartition(":")
    return name if mark and bone != subject else f"{bone}:{_ROOT}"


def is_vicon(source: SkeletonInput) -> bool:
    """Return whether this is a CSV that Vicon Nexus exported."""
    return source.is_text and source.first_line.strip(",;\t ") in _VICON_SECTIONS


_VICON_SECTIONS = ("Trajectories", "Model Outputs", "Joints", "Segments", "Devices")


@skeleton_format("vicon", sniff=is_vicon, order=2)
def read_vicon(source: SkeletonInput) -> Take:
    """Return the take of the section Trajectories of a CSV of Vicon Nexus; frames count from 1.

    Raises SourceError if there is no such section.
    """
    lines, where = iter(source.lines()), source.where
    sections: list[str] = []
    for line in lines:
        name = line.strip(",;\t \r")
        if name in _VICON_SECTIONS:
            sections.append(name)
        if name == "Trajectories":
            break
    else:
        raise SourceError(
            f"this table of Vicon has no Trajectories ({first_of(sections)})",
            where=where,
            hint="export the trajectories too",
        )
    head = list(itertools.islice(lines, 4))
    if len(head) < 4 or not head[2].lower().startswith("frame"):
        raise SourceError("the headings of this table of Vicon cannot be read", where=where)
    delimiter = delimiter_of(head[2])
    rate_hz = source.rate_hz or _positive(_row(head[0], delimiter)[0])
    rate = require_rate(rate_hz, where)
    names, starts = _row(head[1], delimiter), _starts(_row(head[2], delimiter))

    def time_of(cells: list[str]) -> float:
        return (float(cells[0]) - 1) / rate

    section = _until_empty(lines, delimiter)
    labels = [_at(names, k) for k in starts]
    return _take(section, delimiter, labels, starts, time_of, rate, where)


def is_visual3d(source: SkeletonInput) -> bool:
    """Return whether this is a text that Visual3D exported: its fifth line begins with ITEM."""
    if not source.is_text:
        return False
    lines = source.head.decode("utf-8-sig", "replace").split("\n", 5)
    return len(lines) > 5 and lines[4].split("\t")[0].strip().upper() == "ITEM"


@skeleton_format("visual3d", sniff=is_visual3d, order=2)
def read_visual3d(source: SkeletonInput) -> Take:
    """Return the take of a text of Visual3D, as of recordings of Theia3D; items count from 1.

    Raises UsageError without a rate: the file has no times.
    """
    lines, where = iter(source.lines()), source.where
    head = [_row(line, "\t") for line in itertools.islice(lines, 5)]
    rate = require_rate(source.rate_hz, where)
    starts = _starts(head[4])

    def time_of(cells: list[str]) -> float:
        return (float(cells[0]) - 1) / rate

    return _take(lines, "\t", [_at(head[1], k) for k in starts], starts, time_of, rate, where)


def _take(
    lines: Iterable[str],
    delimiter: str,
    labels: Sequence[str],
    starts: Sequence[int],
    time_of: Callable[[list[str]], float],
    rate_hz: float | None,
    where: str,
) -> Take:
    """Return the take of rows; ``starts``: the column X of each of the ``labels``."""
    if not split_subjects(labels)[0]:
        raise SourceError("there are no markers or bones with X, Y, Z in this table", where=where)
    width = max(starts) + len(_XYZ)

    def parse(line: str) -> tuple[float, list[list[float]]]:
        cells = _row(line, delimiter)
        row = [number(cell) for cell in [*cells, *[""] * width][:width]]
        return time_of(cells), [row[k : k + len(_XYZ)] for k in starts]

    rows, bad = parse_lines(lines, parse)
    if not rows:
        raise SourceError("there are no frames in this table", where=where)
    times_s, places = zip(*rows, strict=True)
    return marker_take(labels, np.array(places, float), times_s, rate_hz, bad=bad)


def _row(line: str, delimiter: str = ",") -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]


def _at(cells: Sequence[str], column: int) -> str:
    return cells[column] if column < len(cells) else ""


def _starts(axes: Sequence[str]) -> list[int]:
    """Return each column X that Y and Z follow, without W: that is a rotation."""
    low = [cell.lower() for cell in axes]
    found = [k for k in range(len(low)) if low[k : k + 3] == _XYZ]
    return [k for k in found if low[k + 3 : k + 4] != ["w"]]


def _until_empty(lines: Iterable[str], delimiter: str) -> Iterator[str]:
    for line in lines:
        if not line.strip(f"{delimiter} \r"):
            return
        yield line


def _positive(text: str) -> float | None:
    try:
        value = number(text)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None
