"""Reading of DeepLabCut's tables: CSV with three lines of headings, four with individuals."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

import numpy as np

from costream.core.errors import SourceError
from costream.sources.file import first_of, require_rate
from costream.sources.skeletons.skeleton_format import SkeletonInput, skeleton_format
from costream.sources.skeletons.skeleton_recording import BAD_ROW, Event, SkippedData
from costream.sources.skeletons.table_rows import number
from costream.sources.skeletons.take import Numbers, Take, frames_of
from costream.sources.skeletons.text_lines import delimiter_of, parse_lines

LEVELS = ("scorer", "individuals", "bodyparts", "coords")
_COORDS = ("x", "y", "z", "likelihood")


def is_deeplabcut(source: SkeletonInput) -> bool:
    """Return whether the first line is that of DeepLabCut's tables."""
    return source.first_line.replace(";", ",").replace("\t", ",").startswith("scorer,")


@skeleton_format("deeplabcut", sniff=is_deeplabcut, order=2)
def read_deeplabcut(source: SkeletonInput) -> Take:
    """Return the take of a CSV of DeepLabCut, in pixels, y down; three axes of a triangulated one.

    The first column is the frame number; for labelled pictures frames are numbered by row. Raises
    SourceError if the headings are not DeepLabCut's, UsageError without a rate.
    """
    text, where = iter(source.lines()), source.where
    levels, delimiter = _levels(text, where)
    columns = list(zip(*(levels.get(n, ()) for n in LEVELS if n in levels), strict=False))
    first = next((k for k, c in enumerate(levels["coords"]) if c in _COORDS), len(columns))
    rate = require_rate(source.rate_hz, where)

    def parse(line: str) -> tuple[str, list[float]]:
        cells = next(csv.reader([line], delimiter=delimiter), [])
        if len(cells) != len(columns):
            raise ValueError("another number of cells")
        return cells[0].strip(), [number(cell) for cell in cells[first:]]

    rows, bad = parse_lines(text, parse)
    if not rows:
        raise SourceError("there are no rows in this DeepLabCut table", where=where)
    times_s = [(int(frame) if frame.isdecimal() else k) / rate for k, (frame, _) in enumerate(rows)]
    values = np.array([row for _, row in rows], float)
    return columns_take(columns[first:], values, times_s, rate, bad, where)


def _levels(text: Iterator[str], where: str) -> tuple[dict[str, list[str]], str]:
    """Return the lines of headings by their level, and the delimiter of the table."""
    levels: dict[str, list[str]] = {}
    delimiter = ","
    for line in text:
        delimiter = delimiter if levels else delimiter_of(line)
        cells = [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
        if not cells or cells[0] not in LEVELS:
            raise SourceError(
                f"after {', '.join(levels)} a line begins with {first_of(cells, 1)!r}, not coords",
                where=where,
            )
        levels[cells[0]] = cells
        if cells[0] == "coords":
            break
    if "coords" not in levels or "bodyparts" not in levels:
        raise SourceError("the headings of this DeepLabCut table are cut off", where=where)
    return levels, delimiter


def columns_take(
    columns: Sequence[Sequence[str]],
    rows: Numbers,
    times_s: Sequence[float],
    rate_hz: float,
    bad: int,
    where: str,
) -> Take:
    """Return the take of rows [T, K] whose columns are (scorer, [individual,] part, coordinate).

    ``bad``: number of rows that were left out. Raises SourceError if there is no x and y.
    """
    place = {
        tuple(column[-3:] if len(column) > 3 else ("", *column[-2:])): k
        for k, column in enumerate(columns)
    }
    axes = [axis for axis in "xyz" if any(column[-1] == axis for column in columns)]
    parts = list(dict.fromkeys(part for _, part, axis in place if axis in axes))
    if axes not in (["x", "y"], ["x", "y", "z"]) or not parts:
        raise SourceError(
            f"its coordinates are {first_of(dict.fromkeys(c[-1] for c in columns))}, not x and y",
            where=where,
        )
    persons = list(dict.fromkeys(person for person, _, _ in place))
    more = np.concatenate([rows, np.full((len(rows), 1), np.nan)], 1)  # the last: a column it lacks
    index = [
        [[place.get((person, part, axis), -1) for axis in (*axes, "likelihood")] for part in parts]
        for person in persons
    ]
    values = more[:, np.array(index)]
    has_scores = any(column[-1] == "likelihood" for column in columns)
    scores = values[..., -1] if has_scores else None
    events: list[Event] = [SkippedData(BAD_ROW)] * bad
    events += frames_of(values[..., :-1], times_s, scores, persons)
    return Take(tuple(parts), len(axes), events, rate_hz, tilted=True)
