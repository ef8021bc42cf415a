"""Labels from CSV: a timeline, timelines of several recordings, or a table file,start,end,label.

The first line determines the kind. Cells are separated by commas, semicolons or tabs, and times may
have a decimal comma, as written by spreadsheets in many countries.
"""

from __future__ import annotations

import csv
import io
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from costream.core.errors import UsageError
from costream.labels.collector import LabelCollector, LabelTrack, NoLabelsError, read_text, seconds
from costream.labels.formats.editor_timelines import frame_number
from costream.labels.formats.label_headings import (
    FILE,
    KNOWN,
    LabelHeadings,
    find_headings,
    rate_of,
)
from costream.labels.formats.tool_tables import (
    DATAVYU,
    VIA,
    read_datavyu,
    read_tool_table,
    read_via,
    recorded,
)
from costream.labels.recording import Label
from costream.sources.skeletons.columns import AXES
from costream.sources.skeletons.headings import read_heading
from costream.sources.skeletons.table_schema import is_long

log = logging.getLogger("costream")

COLUMNS = ("file", "start", "end", "label")
_OPEN = ("start", "start_s", "end", "end_s")  # empty: from the beginning, to the end
_PERSON = "person"  # column of the number of the person
_UNUSED = ("length_s", "score", "count", "group", "model", "name")  # other columns of timelines
_TIMES = ("start", "begin", "onset", "end", "stop", "offset")  # prefixes of time columns
_OWN = {*COLUMNS, "start_s", "end_s", "name", ""}  # columns that need no explanation
_CELLS: Any = {"skipinitialspace": True}
_HEADINGS_SEARCHED = 40  # lines before the headings, as in older tables of BORIS

_TIME_CODE = re.compile(r"\d+:\d\d:\d\d[:;]\d\d+")  # the last part counts frames
_FORMULA = re.compile(r"\A'(?='*[=+\-@])")


def read_table(
    path: Path, collector: LabelCollector, group: str | None = None, *, files: bool = False
) -> Iterator[LabelTrack]:
    """Yield the tracks of a table; without a column of recordings it is about one.

    ``group`` names the column of groups that are never split, by default "group". In a table with
    a column "file", unlabelled time is unknown. Numbers in a column "person" distinguish
    persons of one recording. ``files``: a column "file" is required. Raises UsageError for missing
    or unknown columns.
    """
    if not files:
        text = read_text(path)
        if text.lower().startswith(VIA) or DATAVYU.match(text):
            yield from (read_datavyu if DATAVYU.match(text) else read_via)(path, collector)
            return
    names, rows = read_rows(path, collector.columns.values())
    if not files and (special := read_tool_table(path, names, rows, collector)) is not None:
        yield from special
        return
    headings = find_headings(names, collector.columns, f"{path}, line 1")
    _check_columns(path, names, headings, group, files=files)
    of = headings.file
    is_list = files or of == FILE  # of examples: the rest of their recordings is unknown
    found: dict[tuple[str, str], list[Label]] = {} if of else {("", ""): []}
    for line, row in rows:
        cells = dict(zip(names, row, strict=False))
        cells.pop("", None)  # a column without a heading
        name, group_name = cells.get(of, ""), cells.get(group.lower() if group else "group", "")
        if len(row) > len(names) or (of and not name):
            what = "more cells than columns" if len(row) > len(names) else "no file"
            collector.error(path, f"line {line}", what)
            continue
        labels = found.setdefault((recorded(name), group_name) if of else ("", ""), [])
        filled = any(map(cells.get, (headings.start, headings.end, headings.label)))
        is_empty = of and not is_list and not filled  # of DESED: no events
        if collector.wants(cells.get("model") or None) and not is_empty:
            labels += _labels(path, f"line {line}", cells, headings, collector, cut=not is_list)
    for (name, group_name), labels in found.items():
        yield LabelTrack(
            path,
            (name,) if of else (),
            tuple(labels),
            whole=not is_list,
            group=group_name or None,
            single=not of,
            has_parts="model" in names,
        )


def _labels(
    path: Path,
    spot: str,
    cells: dict[str, str],
    headings: LabelHeadings,
    collector: LabelCollector,
    *,
    cut: bool,
) -> list[Label]:
    """Return a list of the label in a row; empty for an invalid one, which is reported."""
    times = (name for name in (headings.start, headings.end) if name and name not in _OPEN)
    if empty := [name for name in times if not cells.get(name)]:
        collector.lose(path, spot, f"no {' and no '.join(empty)}")
        return []
    rate_hz = rate_of(cells.get(headings.fps, headings.fps))
    columns = zip((headings.start, headings.end), headings.units, strict=True)
    try:
        start, end = (_time(cells.get(name, ""), unit, rate_hz) for name, unit in columns)
    except ValueError as error:
        collector.error(path, spot, str(error))
        return []
    label = cells.get(headings.label, "")
    read = collector.label(path, spot, start or 0.0, end, label, cut=cut)
    person = cells.get(_PERSON, "")
    number = int(person) if person.isdecimal() else None
    return [replace(one, person=number) for one in read]


def _time(text: str, unit_s: float, rate_hz: float | None) -> str | float:
    """Return a time in seconds, or text that is one; ValueError for frames of unknown rate."""
    is_code = unit_s == 1.0 and _TIME_CODE.fullmatch(text) is not None
    if is_code and rate_hz is not None:
        return frame_number(text, rate_hz) / rate_hz
    if (unit_s == 1.0 and not is_code) or not text:
        return text
    if unit_s and not is_code:
        return seconds(text) * unit_s
    if rate_hz is None:
        raise ValueError("frames of an unknown rate; give it: --columns fps=25")
    return seconds(text) / rate_hz


def read_rows(
    path: Path, headings: Iterable[str] = ()
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the column names in lower case, and line number and cells of rows that are not empty.

    Cells are separated by commas, semicolons or tabs, whichever give a column that labels have, or
    one of ``headings``. Raises UsageError when the file cannot be read.
    """
    text = read_text(path)
    skipped = int(text[:4].lower() == "sep=")  # Excel's line for the separator
    if skipped:
        text = text.partition("\n")[2]
    before = _lines_before_headings(text)
    text, skipped = "\n".join(text.split("\n")[before:]), skipped + before
    known = {"text", *KNOWN, *(heading.lower() for heading in headings)}
    try:
        # Not strict: with commas, "start";"end" is not a table, and not an error either.
        first = {
            delimiter: [
                name.strip().lower()
                for name in next(csv.reader(io.StringIO(text), delimiter=delimiter, **_CELLS), [])
            ]
            for delimiter in ",;\t"
        }
        delimiter = max(first, key=lambda d: (not known.isdisjoint(first[d]), len(first[d])))
        names = first[delimiter]
        read = partial(csv.reader, delimiter=delimiter, **_CELLS)
        lines = read(io.StringIO(text, newline=""), strict=True)
        next(lines, [])
        rows = ((lines.line_num + skipped, _cells(row)) for row in lines)
        return names, [(line, row) for line, row in rows if row]
    except csv.Error as error:
        raise UsageError(f"cannot be read as a CSV table ({error})", where=path) from error


def _lines_before_headings(text: str) -> int:
    """Return the number of lines before the headings, of older tables of events of BORIS."""
    for number, line in enumerate(text.split("\n", _HEADINGS_SEARCHED)[:_HEADINGS_SEARCHED]):
        if re.match("time[,;\t].*behavior[,;\t]", line, re.IGNORECASE):
            return number
    return 0


def _cells(row: list[str]) -> list[str]:
    """Return the cells of a row without the empty ones that spreadsheets append.

    The ' before what would be a formula is removed too: see ``sinks/tables.py``.
    """
    cells = [_FORMULA.sub("", cell.strip()) for cell in row]
    while cells and not cells[-1]:
        cells.pop()
    return cells


def _is_joints(names: Sequence[str]) -> bool:
    """Return whether headings belong to a table of joints: coordinates, and no label."""
    # Without a column of labels the separator of the names is unknown.
    headings = [read_heading(name) for name in re.split("[,;\t]", ",".join(names))]
    places = sum(heading.role in AXES and bool(heading.joint) for heading in headings)
    return "label" not in names and (places > len(headings) / 2 or is_long(headings))


def _check_columns(
    path: Path, names: Sequence[str], headings: LabelHeadings, group: str | None, *, files: bool
) -> None:
    many = files or bool(headings.file)
    found = {"file": headings.file, "label": headings.label}
    if not many:
        found |= {"start_s": headings.start, "end_s": headings.end}
    if files and headings.file == "name":  # of the tables of batch
        found["file"] = ""
    missing = [name for name in found if not found[name] and (files or name != "file")]
    missing += [group.lower()] if group and group.lower() not in names else []
    if not files and "text" in names and not (headings.start or headings.end):
        raise NoLabelsError("a table of texts with labels, not of recordings", where=path)
    columns_text = f"its columns are {', '.join(names):.300}"
    hint = "name them: --columns start='Start (s)',end='Stop (s)',label=Behavior"
    if missing and not files and not headings.label:
        what = "a table of joints" if _is_joints(names) else "a table"
        text = f"{what} without a column 'label'; {columns_text}"
        raise NoLabelsError(text, where=path, hint=None if _is_joints(names) else hint)
    if missing and files and _is_joints(names):
        raise UsageError(
            "this is a table of joints, not a list of recordings with their labels",
            where=path,
            hint=f"give a table {','.join(COLUMNS)} whose lines name it: {path.name},0,2.5,wave",
        )
    if missing:
        columns = COLUMNS if many else ("start_s", "end_s", "label")
        raise UsageError(
            f"the table has no column {' and no column '.join(missing)}; {columns_text}",
            where=f"{path}, line 1",
            hint=f"the first line names the columns: {', '.join(columns)}; or {hint}",
        )
    _report_columns(path, names, headings, group)


def _report_columns(
    path: Path, names: Sequence[str], headings: LabelHeadings, group: str | None
) -> None:
    """Warn of unused columns, and of those with other headings; UsageError for unused times."""
    known = {*headings.used, *_UNUSED, _PERSON, *([group.lower()] if group else [])}
    unknown = [name for name in names if name and name not in known]
    times = [name for name in unknown if name.startswith(_TIMES)]
    if times and not (headings.start and headings.end):
        raise UsageError(
            f"unknown column {', '.join(map(repr, times))}",
            where=f"{path}, line 1",
            hint=f"known columns: {', '.join(COLUMNS)} and a group (--group NAME); or name them:"
            " --columns start=HEADING,end=HEADING",
        )
    if headings.used - _OWN:
        roles = ("file", "start", "end", "label")
        pairs = [f"{role} {name!r}" for role in roles if (name := getattr(headings, role))]
        log.warning("%s: columns taken: %s", path, ", ".join(pairs))
    if unknown:
        log.warning("%s: unused column %s", path, ", ".join(map(repr, unknown)))
