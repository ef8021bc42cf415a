"""Result files, and those below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from costream.core.errors import SourceError, display_name
from costream.core.spelling import stored_path

# If a run was written in several formats, the first of these is read. A .part file, left by a
# crash, is read only if there is nothing else.
SUFFIXES = (".jsonl", ".json", ".jsonl.part", ".json.part")
_OF_A_BATCH = Path(".costream", "records")  # where a batch keeps records that it does not write
_BOXES = (".coco.json", ".coco.json.part")  # not shown by reports


@dataclass(frozen=True)
class ResultFile:
    """A file that may hold results."""

    path: Path
    name: str  # path below the folder, "/" between the parts, without the suffix: "a/clip.mp4"


def find_results(argument: Path) -> list[ResultFile]:
    """Return the file itself, or the result files below a folder, sorted by name.

    Hidden files and folders are skipped, but for the records of a batch that wrote other formats;
    links to folders are not followed. Raise SourceError if it does not exist or contains none.
    """
    argument = Path(stored_path(os.fspath(argument)))
    where = display_name(os.fspath(argument))
    if argument.is_dir():
        found = list(_below(argument)) or _below(argument / _OF_A_BATCH)
        files = sorted(found, key=lambda f: f.name)
        if not files:
            hint = "results are .jsonl or .json files, as 'costream detect -o' writes them"
            raise SourceError("no results in this folder", where=where, hint=hint)
        return files
    if not argument.exists():
        raise SourceError("no such file or folder", where=where)
    if not argument.is_file():  # reading a pipe or a device may block forever
        raise SourceError("neither a file nor a folder", where=where)
    return [ResultFile(argument, without_suffix(argument.name))]


def without_suffix(name: str) -> str:
    """Return the name of a result file without its format suffix."""
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.endswith(suffix) and name != suffix:
            return name.removesuffix(suffix)
    return name


def _below(folder: Path) -> Iterator[ResultFile]:
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        best: dict[str, tuple[int, str]] = {}
        for name in files:
            stem = without_suffix(name)
            if name.startswith(".") or stem == name or name.endswith(_BOXES):
                continue
            if name == "summary.json" and "failures.csv" in files:  # the tables of a batch
                continue
            rank = SUFFIXES.index(name[len(stem) :])
            best[stem] = min(best.get(stem, (len(SUFFIXES), "")), (rank, name))
        for stem, (_, name) in best.items():
            path = Path(here, name)
            if path.is_file():
                yield ResultFile(path, (path.parent.relative_to(folder) / stem).as_posix())
