"""Labelled examples for training and evaluation."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from costream.core.errors import SourceError, UsageError
from costream.core.spelling import composed, folded
from costream.labels.collector import abbreviate, read_text
from costream.labels.formats.csv_files import read_rows
from costream.labels.recording import BACKGROUNDS, Label, Recording
from costream.sources.uris import expand

log = logging.getLogger("costream")


@dataclass(frozen=True)
class Example:
    """A stretch of a source that belongs to one class."""

    source: str  # as on the command line; of text the line itself
    label: str
    start_s: float
    end_s: float | None  # None: to the end of the source
    group: str  # unit that a split keeps together; default: the file
    where: str  # table and line, or file, for messages


def to_examples(recordings: Iterable[Recording], background: str | None) -> list[Example]:
    """Return every labelled stretch, in the order of the recordings.

    If a recording is labelled completely and ``background`` is not None, time without a label
    becomes examples of it, except slivers and, if the duration of the recording is unknown, the
    time after the last label. Without ``background`` that time is left out with a warning.
    """
    examples: list[Example] = []
    left_out: list[str] = []
    for recording in recordings:
        source, group = recording.source, recording.group
        found = [
            Example(source, label.label, label.start_s, label.end_s, group, label.where)
            for label in recording.labels
        ]
        if recording.whole and background is None:
            times = recording.unlabelled()
            left_out += [f"{source} from {begin:g} to {end:g} s" for begin, end in times]
        elif recording.whole and background is not None:
            found += [
                Example(source, background, start_s, end_s, group, source)
                for start_s, end_s in recording.unlabelled()
            ]
        examples += sorted(found, key=lambda example: example.start_s)
    if left_out:
        log.warning(
            "unlabelled time left out, as there is no background class: %s", abbreviate(left_out)
        )
    return examples


def fit_labels(
    examples: Sequence[Example], names: Sequence[str], background: str | None = None
) -> list[Example]:
    """Return the examples with their labels spelled as in ``names``; see ``name_matcher``.

    Raises UsageError for labels that match none of the names.
    """
    called = name_matcher(names, background)
    fitted = _fitted(((example.label, example.where) for example in examples), called)
    return [replace(example, label=fitted[example.label]) for example in examples]


def _fitted(
    found: Iterable[tuple[str, str]], called: Callable[[str], str | None]
) -> dict[str, str]:
    """Return the name of each label; UsageError with the place of an unknown one."""
    fitted: dict[str, str] = {}
    unknown: dict[str, str] = {}
    for label, where in found:
        name = called(label)
        if name is None:
            unknown.setdefault(label, where)
        else:
            fitted[label] = name
    if unknown:
        labels = sorted(unknown)
        raise UsageError(
            f"the model has no label {', '.join(map(repr, labels[:5]))}",
            where=next(iter(unknown.values())),
            hint="'costream models show NAME' lists its labels",
        )
    return fitted


def name_matcher(
    names: Sequence[str], background: str | None = None
) -> Callable[[str], str | None]:
    """Return a function that maps a label to the equal or equally spelled one of ``names``.

    Case and the word separator (space, "_" or "-") are ignored if a label is not among the names as
    it is. Without a name of their own, all BACKGROUNDS are the ``background``, if there is one.
    """
    alike = {} if background is None else dict.fromkeys(BACKGROUNDS, background)
    alike |= {normalise_label(name): name for name in reversed(names)}
    return lambda label: label if label in names else alike.get(normalise_label(label))


def located(error: SourceError, example: Example) -> SourceError:
    """Return the error with the place of the example: its line in the table, or its file."""
    text = str(error)
    return error if text.startswith(example.where) else SourceError(text, where=example.where)


def normalise_label(label: str) -> str:
    """Return a label normalised for comparison: lower case, words separated by single spaces."""
    return " ".join(folded(label).replace("_", " ").replace("-", " ").split())


def split(
    examples: Sequence[Example], share: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """Return training and validation examples, with no group on both sides.

    Groups are drawn until every class has about ``share`` of its examples in validation; each
    class keeps at least one for training. A class with a single group is only used for training.
    """
    left = Counter(e.label for e in examples)
    wanted = {label: share * count for label, count in left.items()}
    held: set[str] = set()
    groups = sorted({e.group for e in examples})
    for k in np.random.default_rng(seed).permutation(len(groups)):
        counts = Counter(e.label for e in examples if e.group == groups[k])
        fits = all(left[label] > count for label, count in counts.items())
        # Half an example too many is as far from the share as half an example too few.
        if fits and any(wanted[label] >= count / 2 for label, count in counts.items()):
            held.add(groups[k])
            for label, count in counts.items():
                left[label] -= count
                wanted[label] -= count
    train = [e for e in examples if e.group not in held]
    return train, [e for e in examples if e.group in held]


def read_classes(data: Path) -> Iterator[Recording]:
    """Yield the recordings in the folder of each class, in order of names.

    Raises UsageError for a class without recordings, and for files next to the folders.
    """
    inside = [path for path in sorted(data.iterdir()) if not path.name.startswith(".")]
    classes = [path for path in inside if path.is_dir()]
    stray = [path.name for path in inside if not path.is_dir()]
    if stray and classes:
        raise UsageError(
            f"files next to the class folders: {abbreviate(stray)}",
            where=data,
            hint="move each into the folder of its class",
        )
    for folder in classes:
        files = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
        if not files:
            raise UsageError("a class without recordings", where=folder)
        for file in files:
            for source in _sources(file):
                label = Label(0.0, None, composed(folder.name), source)
                yield Recording(source, (label,), str(file), False, None)


def _sources(file: Path) -> list[str]:
    """Return the sources in a file, or in a folder of keypoints; UsageError for another folder.

    What cannot be used is a source, too: reading it reports why.
    """
    try:
        return expand(str(file))
    except SourceError as error:
        if not file.is_dir():
            return [str(file)]
        hint = "move its recordings into the folder of their class"
        raise UsageError("a folder in that of a class", where=file, hint=hint) from error


def read_lines(data: Path | None, group: str | None) -> list[Example]:
    """Return the lines of a table with the columns text and label, or of files LABEL.txt.

    The source of such an example is the line itself, and so is its group, unless a column
    ``group`` says it. Raises UsageError that names file and line.
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
        seen = f"its columns are {', '.join(names):.300}"
        raise UsageError(f"has no column {', '.join(missing)}; {seen}", where=data)
    empty, long = [], []
    for line, row in rows:
        cells = dict(zip(names, row, strict=False))
        text, label = cells.get("text", ""), composed(cells.get("label", ""))
        if len(row) > len(names):
            long.append(str(line))
        elif not (text and label):
            empty.append(str(line))
        else:
            own = text if group is None else cells.get(group.lower(), "")
            yield Example(text, label, 0.0, None, own, f"{data}, line {line}")
    if empty:
        raise UsageError(f"lines without text or label: {abbreviate(empty)}", where=data)
    if long:
        hint = "put text that holds the delimiter in quotes"
        what = f"lines with more cells than columns: {abbreviate(long)}"
        raise UsageError(what, where=data, hint=hint)
