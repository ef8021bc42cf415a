"""Which files below a folder are results, and what each is called."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from costream.errors import SourceError
from costream.sources.opening import shown

# Of one run that was written in several formats, the first of these is read. What a crash left
# behind (.part) is read where nothing better is there.
SUFFIXES = (".jsonl", ".json", ".jsonl.part", ".json.part")
_BOXES = (".coco.json", ".coco.json.part")  # nothing that a report shows


@dataclass(frozen=True)
class Found:
    """A file that may hold results."""

    path: Path
    name: str  # path below the folder, "/" between the parts, without the suffix: "a/clip.mp4"


def find_results(argument: Path) -> list[Found]:
    """Give the file itself, or the result files below a folder in the order of their names.

    Hidden files and folders are passed by; links to folders are not followed. SourceError when
    it does not exist or holds none.
    """
    where = shown(os.fspath(argument))
    if argument.is_dir():
        found = sorted(_below(argument), key=lambda f: f.name)
        if not found:
            hint = "results are .jsonl or .json files, as 'costream detect -o' writes them"
            raise SourceError("there are no results in this folder", where=where, hint=hint)
        return found
    if not argument.exists():
        raise SourceError("no such file or folder", where=where)
    if not argument.is_file():  # reading a pipe or a device may wait for ever
        raise SourceError("neither a file nor a folder", where=where)
    return [Found(argument, without_suffix(argument.name))]


def without_suffix(name: str) -> str:
    """Give the name of a result file without what says its format."""
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.endswith(suffix) and name != suffix:
            return name.removesuffix(suffix)
    return name


def _below(folder: Path) -> Iterator[Found]:
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
                yield Found(path, (path.parent.relative_to(folder) / stem).as_posix())
