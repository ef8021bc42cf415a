"""The files that labels are in: which format each is read as, and what it is named after."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from costream.errors import UsageError
from costream.labels.intake import Intake, NoLabelsError, Track, some
from costream.labels.results import read_results
from costream.labels.tables import read_table
from costream.sinks.registry import FORMATS

log = logging.getLogger("costream")

Reader = Callable[[Path, Intake], Iterator[Track]]

READERS: dict[str, Reader] = {
    ".jsonl": read_results,
    ".json": read_results,
    ".csv": read_table,
    ".tsv": read_table,
}
# What runs write besides timelines.
_OTHERS = ("predictions.csv", "objects.csv", "compute.csv", "failures.csv", "summary.json")
_SUFFIXES = sorted((f".{s}" for f in FORMATS.values() for s in f.files), key=len, reverse=True)


def read_files(labels: Path, intake: Intake, group: str | None) -> list[Track]:
    """Give what a file of labels says, or those in a folder and below, in order of names.

    Files of a folder that hold no labels are passed by with a warning. UsageError when nothing
    is left, or the only file is none of labels.
    """
    if not labels.exists():
        raise UsageError("there are no such labels", where=labels)
    if not labels.is_dir():
        return list(_read(labels, intake, group))
    tracks: list[Track] = []
    passed: list[str] = []
    for path in _files(labels):
        try:
            tracks += _read(path, intake, group)
        except NoLabelsError:
            passed.append(str(path))
    if passed:
        log.warning("no labels in %s", some(passed))
    if not tracks:
        hint = f"it may hold {', '.join(FORMATS)} and more"
        raise UsageError("no labels in it", where=labels, hint=hint)
    return tracks


def recording_name(path: Path) -> str:
    """Give the name that a file of labels has after its recording: without the format's ending."""
    for suffix in _SUFFIXES:
        if path.name.lower().endswith(suffix) and len(path.name) > len(suffix):
            return path.name[: -len(suffix)]
    return path.stem


def _read(path: Path, intake: Intake, group: str | None) -> Iterator[Track]:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        hint = f"labels end in {', '.join(READERS)}"
        raise NoLabelsError("nothing that labels are read from", where=path, hint=hint)
    return read_table(path, intake, group) if reader is read_table else reader(path, intake)


def _files(folder: Path) -> Iterator[Path]:
    """Yield what may hold labels."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.suffix.lower() in READERS and not path.name.endswith(_OTHERS):
            yield path
