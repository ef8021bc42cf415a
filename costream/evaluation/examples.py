"""Labelled examples of a user: a folder of classes, or a table.

A folder has one folder a class, with any sources in it. A table is CSV with the columns ``file``
and ``label`` and, if wanted, ``start`` and ``end`` (seconds or HH:MM:SS) and a group; files are
named relative to the table. Works for every kind of source.
"""

from __future__ import annotations

import csv
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from costream.clock import parse_time
from costream.errors import CostreamError, SourceError, UsageError
from costream.sources.registry import expand

log = logging.getLogger("costream")

_COLUMNS = ("file", "start", "end", "label")
_TIMES = ("start", "begin", "onset", "end", "stop", "offset")  # how columns of times begin
_SHOWN = 3  # bad lines that a message quotes


@dataclass(frozen=True)
class Example:
    """A stretch of a source that shows, or sounds like, one class."""

    source: str  # as on the command line
    label: str
    start_s: float
    end_s: float | None  # None: to the end of the source
    group: str  # what may never be on both sides of a split; default: the file
    where: str  # table and line, or file, for messages


def read_examples(path: Path, group: str | None = None) -> list[Example]:
    """Give the examples of a folder or a table, in the order of names or lines.

    ``group`` names the column that says what may never be split; without it that is a column
    "group", and else every file is its own group. Columns of a table that mean nothing are named
    in a warning. Raises UsageError when there is nothing, or
    that names what is wrong in which line, SourceError for a recording that is not there.
    """
    if not path.exists():
        raise UsageError("there is no such data", where=path)
    if path.is_dir() and group is not None:
        raise UsageError("--group names a column of a table", where=path, hint="give a table")
    examples = _folder(path) if path.is_dir() else _table(path, group)
    if not examples:
        raise UsageError(
            "no examples",
            where=path,
            hint="make a folder for each class, with recordings in it, or a table with the"
            f" columns {', '.join(_COLUMNS)}",
        )
    return examples


def fit_labels(examples: Sequence[Example], names: Sequence[str]) -> list[Example]:
    """Give the examples with their labels as ``names`` spell them.

    Case, and whether words are joined by a blank, "_" or "-", make no difference where a label is
    not among the names as it is. UsageError for labels that are none of them.
    """
    alike = {spelling(name): name for name in reversed(names)}
    fitted: list[Example] = []
    unknown: list[Example] = []
    for example in examples:
        name = example.label if example.label in names else alike.get(spelling(example.label))
        if name is None:
            unknown.append(example)
        else:
            fitted.append(replace(example, label=name))
    if unknown:
        labels = sorted({e.label for e in unknown})
        raise UsageError(
            f"the model has no label {', '.join(map(repr, labels[:5]))}",
            where=unknown[0].where,
            hint="'costream models show NAME' lists its labels",
        )
    return fitted


def located(error: SourceError, example: Example) -> SourceError:
    """Give an error of a source that names the example: its line in the table, or its file."""
    told = str(error)
    return error if told.startswith(example.where) else SourceError(told, where=example.where)


def spelling(label: str) -> str:
    """Give a label as it is compared: lower case, words apart by blanks."""
    return " ".join(label.casefold().replace("_", " ").replace("-", " ").split())


def split(
    examples: Sequence[Example], share: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """Give the examples to train on and those to validate with, no group on both sides.

    Groups are drawn until every class has about ``share`` of its examples in validation; each
    keeps at least one to train on. A class of a single group is trained on only.
    """
    left = Counter(e.label for e in examples)
    wanted = {label: share * count for label, count in left.items()}
    held: set[str] = set()
    groups = sorted({e.group for e in examples})
    for k in np.random.default_rng(seed).permutation(len(groups)):
        counts = Counter(e.label for e in examples if e.group == groups[k])
        fits = all(left[label] > count for label, count in counts.items())
        # Half of an example too many is as far from the share as half of one too few.
        if fits and any(wanted[label] >= count / 2 for label, count in counts.items()):
            held.add(groups[k])
            for label, count in counts.items():
                left[label] -= count
                wanted[label] -= count
    train = [e for e in examples if e.group not in held]
    return train, [e for e in examples if e.group in held]


def _folder(path: Path) -> list[Example]:
    stray = [p.name for p in sorted(path.iterdir()) if p.is_file() and not _hidden(p)]
    classes = [p for p in sorted(path.iterdir()) if p.is_dir() and not _hidden(p)]
    if stray and classes:
        raise UsageError(
            f"files beside the folders of classes: {', '.join(stray[:_SHOWN])}",
            where=path,
            hint="put each into the folder of its class",
        )
    out: list[Example] = []
    for folder in classes:
        files = [p for p in sorted(folder.iterdir()) if not _hidden(p)]
        if not files:
            raise UsageError("a class without a recording", where=folder)
        for file in files:
            out += [
                Example(source, folder.name, 0.0, None, str(file), source)
                for source in expand(str(file))
            ]
    return out


def _table(path: Path, group: str | None) -> list[Example]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.DictReader(file, strict=True, skipinitialspace=True)
            names = [name.strip().lower() for name in lines.fieldnames or ()]
            _check_columns(path, names, group)
            lines.fieldnames = names
            rows = [(lines.line_num, row) for row in lines]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"cannot be read as a CSV table ({error})", where=path) from error
    out: list[Example] = []
    wrong: list[str] = []
    for number, row in rows:
        try:
            out.extend(_line(path, number, row, group))
        except (CostreamError, ValueError) as error:
            wrong.append(f"line {number}: {error}")
    if wrong:
        more = f" (and {len(wrong) - _SHOWN} more lines)" if len(wrong) > _SHOWN else ""
        raise UsageError("; ".join(wrong[:_SHOWN]) + more, where=path)
    return out


def _check_columns(path: Path, names: Sequence[str], group: str | None) -> None:
    needed = ["file", "label", *([group.lower()] if group else [])]
    lacking = [name for name in needed if name not in names]
    if lacking:
        raise UsageError(
            f"the table has no column {' and no column '.join(lacking)}",
            where=f"{path}, line 1",
            hint=f"the first line names the columns: {', '.join(_COLUMNS)}",
        )
    unknown = [n for n in names if n not in (*_COLUMNS, *needed, "group")]
    times = [n for n in unknown if n.startswith(_TIMES)]
    if times:
        raise UsageError(
            f"unknown column {', '.join(map(repr, times))}",
            where=f"{path}, line 1",
            hint=f"known are {', '.join(_COLUMNS)} and a group (--group NAME)",
        )
    if unknown:
        log.warning("%s: not used: column %s", path, ", ".join(map(repr, unknown)))


def _line(
    path: Path, number: int, row: dict[str, str | None], group: str | None
) -> Iterator[Example]:
    if None in row:
        raise ValueError("more cells than columns")
    cells = {name: (value or "").strip() for name, value in row.items()}
    file, label = cells["file"], cells["label"]
    if not file or not label:
        raise ValueError("no label" if file else "no file")
    start = parse_time(cells["start"]) if cells.get("start") else 0.0
    end = parse_time(cells["end"]) if cells.get("end") else None
    if end is not None and end <= start:
        raise ValueError(f"the end ({end:g} s) is not after the start ({start:g} s)")
    own = cells.get(group.lower() if group else "group") or file
    full = path.parent / file
    for source in expand(str(full)):
        yield Example(source, label, start, end, own, f"{path}, line {number}")


def _hidden(path: Path) -> bool:
    return path.name.startswith(".")
