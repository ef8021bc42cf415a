"""Recursive folder search: name patterns, cyclic links, unreadable folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from costream.core.errors import ExitCode, UsageError
from costream.core.spelling import folded
from costream.sources.features.feature_arrays import PARTS
from costream.sources.skeletons.frame_files import is_frame_folder

PRIVATE = ".costream"  # folder for a batch's internal files, below its output folder
KEYPOINTS = "_keypoints.json"  # a folder of these files is one input
_FIRST = f"_{PARTS[0]}.npy"  # the part of a recording's features that is the input


@dataclass(frozen=True)
class FoundPath:
    """A path that is an input, or the reason why it is not."""

    path: str  # absolute
    relative: str  # to the argument; "/" between folders
    refusal: Refusal | None = None


class Patterns:
    """``--include`` and ``--exclude``: globs on relative paths, where ``*`` also matches "/".

    A pattern without "/" also matches the last part of a path. Case is ignored, because cameras
    write ``.MP4``.
    """

    def __init__(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        self._include = [folded(p) for p in include]
        self._exclude = [folded(p).rstrip("/") for p in exclude]

    def takes(self, relative: str) -> bool:
        """Return whether a file is included."""
        wanted = not self._include or _fits(relative, self._include)
        return wanted and not _fits(relative, self._exclude)

    def enters(self, relative: str) -> bool:
        """Return whether a folder is searched."""
        return not _fits(relative, self._exclude)


def _fits(relative: str, patterns: Sequence[str]) -> bool:
    path = folded(relative)
    last = path.rpartition("/")[2]
    return any(fnmatchcase(path, p) or ("/" not in p and fnmatchcase(last, p)) for p in patterns)


class FolderWalk:
    """Yields the files below folders in order of names, each folder once.

    Hidden files and folders, ``output`` and the outputs of other batches are left out. Links are
    followed; a folder that was visited under another name is reported as skipped.
    """

    def __init__(self, patterns: Patterns, output: Path) -> None:
        self._patterns = patterns
        self._output = _identity(str(output))
        self._seen: dict[tuple[int, int], str] = {}
        self._above: set[tuple[int, int] | None] = set()  # parents of the searched folder

    def folder(self, path: str, relative: str = "") -> Iterator[FoundPath]:
        """Yield the files below a folder."""
        before = self._visit(path)
        if before is None and relative and _identity(path) in self._above:
            before = os.path.realpath(path)
        if before is not None:
            if before != path:
                yield FoundPath(path, relative, _again("folder", before))
            return
        if not relative:
            self._begin(path)
        try:
            names = sorted(name for name in os.listdir(path) if not name.startswith("."))
        except OSError as error:
            reason = f"the folder cannot be read ({error.strerror})"
            yield FoundPath(path, relative, Refusal("failed", reason, int(ExitCode.INPUT)))
            return
        for name in names:
            inner, inner_relative = os.path.join(path, name), f"{relative}/{name}".lstrip("/")
            if not os.path.isdir(inner) or is_frame_folder(inner):
                yield from self.file(inner, inner_relative)
            elif self._patterns.enters(inner_relative) and not self._is_output(inner):
                yield from self.folder(inner, inner_relative)

    def file(self, path: str, relative: str) -> Iterator[FoundPath]:
        """Yield a file if the patterns include it."""
        if self._patterns.takes(relative):
            yield FoundPath(path, relative, _unfit(path))

    def _begin(self, path: str) -> None:
        """Check the folder that a search begins in. Raises UsageError for the output folder."""
        if self._output is not None and _identity(path) == self._output:
            what = "the output folder cannot be an input folder"
            raise UsageError(what, where=path, hint="name another one")
        self._above = {_identity(str(parent)) for parent in Path(path).parents}

    def _visit(self, path: str) -> str | None:
        """Return the path under which this was visited before; remember it if it was not."""
        identity = _identity(path)
        if identity is None:
            return None
        if identity in self._seen:
            return self._seen[identity]
        self._seen[identity] = path
        return None

    def _is_output(self, path: str) -> bool:
        if os.path.exists(os.path.join(path, PRIVATE, "batch.json")):
            return True
        return self._output is not None and _identity(path) == self._output


def each_once(entries: Iterable[FoundPath]) -> list[FoundPath]:
    """Remove repeated paths, and mark further names of the same file as skipped.

    Of a file and links to it, the file itself is used, else the first name.
    """
    paths = {item.path: item for item in entries}
    first: dict[tuple[int, int], str] = {}
    for path in sorted(paths, key=lambda path: os.path.realpath(path) != path):
        identity = _identity(path)
        if identity is not None:
            first.setdefault(identity, path)
    return [_but_first(item, first) for item in paths.values()]


def _but_first(item: FoundPath, first: dict[tuple[int, int], str]) -> FoundPath:
    identity = _identity(item.path)
    taken = item.path if identity is None else first[identity]
    if item.refusal is not None or taken == item.path:
        return item
    return FoundPath(item.path, item.relative, _again("file", taken))


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if status.st_ino else None


def _again(what: str, first: str) -> Refusal:
    return Refusal("skipped", f"the same {what} as an earlier input: {os.path.basename(first)}")


def _unfit(path: str) -> Refusal | None:
    """Return a refusal for parts of another input, and for pipes and devices; else None.

    Reading a pipe or a device may block for ever.
    """
    first = first_part(path)
    if first is not None and os.path.exists(first):
        return part_refusal(first)
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return None  # opening it will say why
    special = not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
    return Refusal("skipped", "neither a file nor a folder") if special else None


def first_part(path: str) -> str | None:
    """Return the file that features are opened by, for another part of them; else None."""
    for part in PARTS[1:]:
        if path.endswith(f"_{part}.npy"):
            return path.removesuffix(f"_{part}.npy") + _FIRST
    return None


def further_parts(path: str) -> list[str]:
    """Return the files that may be read together with features."""
    stem = path.removesuffix(_FIRST)
    return [f"{stem}_{part}.npy" for part in PARTS[1:]] if stem != path else []


def part_refusal(first: str) -> Refusal:
    """Return why a part of features is not a separate input."""
    return Refusal("skipped", f"read together with {os.path.basename(first)}")


def parents(name: str) -> list[str]:
    """Return the folders that contain a file, the outermost first."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[: k + 1]) for k in range(len(parts))]


# done: read to its end; partial: a fatal error ended it early, the results so far are there;
# failed: no results; skipped: not for this model; interrupted: the run was stopped meanwhile.
Status = Literal["done", "partial", "failed", "skipped", "interrupted"]


@dataclass(frozen=True)
class Refusal:
    """The reason why an input is not run."""

    status: Literal["failed", "skipped"]
    reason: str
    exit: int = 0  # of ExitCode, as if it were the only input


@dataclass(frozen=True)
class Outcome:
    """The outcome of one input."""

    name: str
    status: Status
    reason: str = ""  # also decode errors of an input that is done
    exit: int = 0  # of ExitCode, as if it were the only input
    kind: str | None = None  # "video", ...; None when not opened
    summary: dict[str, Any] = field(default_factory=dict)  # the summary record
    files: dict[str, int] = field(default_factory=dict)  # path below the output folder: bytes
    fatal: bool = False  # it concerns every input (model, full disk), so the batch must end


def failure(name: str, reason: str) -> Outcome:
    """Return the outcome of an input that could not be read."""
    return Outcome(name, "failed", reason, int(ExitCode.INPUT))
