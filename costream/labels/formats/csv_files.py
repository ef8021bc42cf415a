"""Labels from CSV: a timeline, timelines of several recordings, or a table file,start,end,label.

The first line determines the kind. Cells are separated by commas, semicolons or tabs, and times may
have a decimal comma, as written by spreadsheets in many countries.
"""

from __future__ import annotations

import csv
import io
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from costream.core.errors import UsageError
from costream.labels.collector import LabelCollector, LabelTrack, NoLabelsError, read_text
from costream.labels.recording import Label
from costream.sources.skeletons.columns import AXES
from costream.sources.skeletons.headings import read_heading
from costream.sources.skeletons.table_schema import is_long

log = logging.getLogger("costream")

COLUMNS = ("file", "start", "end", "label")
_FILE, _NAME = "file", "name"  # column of the recording in user tables, in those of batch
_STARTS, _ENDS = ("start_s", "start"), ("end_s", "end")
_PERSON = "person"  # column of the number of the person
_UNUSED = ("length_s", "score", "count")  # other columns of timelines
_TIMES = ("start", "begin", "onset", "end", "stop", "offset")  # prefixes of time columns

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
    names, rows = read_rows(path)
    _check_columns(path, names, group, files=files)
    of = next((name for name in (_FILE, _NAME) if name in names), "")
    start, end = (next((n for n in options if n in names), "") for options in (_STARTS, _ENDS))
    found: dict[tuple[str, str], list[Label]] = {} if of else {("", ""): []}
    for line, row in rows:
        cells = dict(zip(names, row, strict=False))
        name, group_name = cells.get(of, ""), cells.get(group.lower() if group else "group", "")
        if len(row) > len(names) or (of and not name):
            what = "more cells than columns" if len(row) > len(names) else "no file"
            collector.error(path, f"line {line}", what)
            continue
        labels = found.setdefault((name, group_name) if of else ("", ""), [])
        if collector.wants(cells.get("model") or None):
            times = cells.get(start) or 0.0, cells.get(end)
            label, cut = cells.get("label", ""), of != _FILE
            read = collector.label(path, f"line {line}", *times, label, cut=cut)
            number = cells.get(_PERSON, "") if group != _PERSON else ""
            person = int(number) if number.isdecimal() else None
            labels += [replace(one, person=person) for one in read]
    for (name, group_name), labels in found.items():
        yield LabelTrack(
            path,
            (name,) if of else (),
            tuple(labels),
            whole=of != _FILE,
            group=group_name or None,
            single=not of,
            has_parts="model" in names,
        )


def read_rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the column names in lower case, and line number and cells of rows that are not empty.

    Cells are separated by commas, semicolons or tabs, whichever give a column that labels have.
    Raises UsageError when the file cannot be read.
    """
    text = read_text(path)
    skipped = text[:4].lower() == "sep="  # Excel's line for the separator
    if skipped:
        text = text.partition("\n")[2]
    names: list[str] = []
    try:
        for delimiter in ",;\t":
            read = partial(csv.reader, skipinitialspace=True, delimiter=delimiter)
            # Not strict: with commas, "start";"end" is not a table, and not an error either.
            names = [name.strip().lower() for name in next(read(io.StringIO(text)), [])]
            if not {"label", "text", _FILE}.isdisjoint(names):
                break
        lines = read(io.StringIO(text, newline=""), strict=True)
        next(lines, [])
        rows = ((lines.line_num + skipped, _cells(row)) for row in lines)
        return names, [(line, row) for line, row in rows if row]
    except csv.Error as error:
        raise UsageError(f"cannot be read as a CSV table ({error})", where=path) from error


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


def _check_columns(path: Path, names: Sequence[str], group: str | None, *, files: bool) -> None:
    many = files or _FILE in names or _NAME in names
    group_column = [group.lower()] if group else []
    needed = [_FILE, "label"] if files else ["label"] if many else [_STARTS[0], _ENDS[0], "label"]
    aliases = {_STARTS[1]: _STARTS[0], _ENDS[1]: _ENDS[0]}
    present = {*names, *(aliases.get(name, name) for name in names)}
    missing = [name for name in (*needed, *group_column) if name not in present]
    if missing == [_STARTS[0], _ENDS[0]] and "text" in names and not files:
        raise NoLabelsError("a table of texts with labels, not of recordings", where=path)
    if missing and not files and "label" not in names:
        what = "a table of joints" if _is_joints(names) else "a table"
        columns_text = f"its columns are {', '.join(names):.300}"
        raise NoLabelsError(f"{what} without a column 'label'; {columns_text}", where=path)
    if missing and files and _is_joints(names):
        raise UsageError(
            "this is a table of joints, not a list of recordings with their labels",
            where=path,
            hint=f"give a table {','.join(COLUMNS)} whose lines name it: {path.name},0,2.5,wave",
        )
    if missing:
        columns = COLUMNS if many else (_STARTS[0], _ENDS[0], "label")
        raise UsageError(
            f"the table has no column {' and no column '.join(missing)}; its columns are"
            f" {', '.join(names):.300}",
            where=f"{path}, line 1",
            hint=f"the first line names the columns: {', '.join(columns)}",
        )
    expected = {
        _FILE,
        _NAME,
        *_STARTS,
        *_ENDS,
        "label",
        "group",
        "model",
        _PERSON,
        *_UNUSED,
        *group_column,
    }
    unknown = [name for name in names if name and name not in expected]
    times = [name for name in unknown if name.startswith(_TIMES)]
    if times:
        raise UsageError(
            f"unknown column {', '.join(map(repr, times))}",
            where=f"{path}, line 1",
            hint=f"known columns: {', '.join(COLUMNS)} and a group (--group NAME)",
        )
    if unknown:
        log.warning("%s: unused column %s", path, ", ".join(map(repr, unknown)))
