"""Labelled lines of text."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from costream.core.errors import UsageError
from costream.core.spelling import composed
from costream.labels.collector import abbreviate, read_text
from costream.labels.examples import Example
from costream.labels.formats.csv_files import read_rows

log = logging.getLogger("costream")


def read_lines(data: Path | None, group: str | None) -> list[Example]:
    """Return the lines of a table with the columns text and label, or of files LABEL.txt.

    The source of such an example is the line itself, and so is its group, unless there is a column
    ``group``. Raises UsageError that names file and line.
    """
    if data is None:
        hint = "a table with the columns text and label, or a folder of files LABEL.txt"
        raise UsageError("lines are needed", where="--data", hint=hint)
    if data.is_dir():
        return [
            Example(text, composed(path.stem), 0.0, None, text, f"{path}, line {number}")
            for path in sorted(data.glob("*.txt"))
            for number, line in enumerate(read_text(path).splitlines(), 1)
            if (text := line.strip())
        ]
    return list(_rows(data, group))


def _rows(data: Path, group: str | None) -> Iterator[Example]:
    names, rows = read_rows(data)
    needed = [name.lower() for name in ("text", "label", group) if name is not None]
    missing = [name for name in needed if name not in names]
    if missing:
        columns = f"its columns are {', '.join(names):.300}"
        raise UsageError(f"has no column {', '.join(missing)}; {columns}", where=data)
    empty, long = [], []
    for line, row in rows:
        cells = dict(zip(names, row, strict=False))
        text, label = cells.get("text", ""), composed(cells.get("label", ""))
        if len(row) > len(names):
            long.append(str(line))
        elif not (text and label):
            empty.append(str(line))
        else:
            group_name = text if group is None else cells.get(group.lower(), "")
            yield Example(text, label, 0.0, None, group_name, f"{data}, line {line}")
    if empty:
        raise UsageError(f"lines without text or label: {abbreviate(empty)}", where=data)
    if long:
        hint = "put text that holds the delimiter in quotes"
        what = f"lines with more cells than columns: {abbreviate(long)}"
        raise UsageError(what, where=data, hint=hint)
