"""The inputs of a batch: arguments expanded in a stable order, without duplicates."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from costream.core.errors import UsageError
from costream.core.spelling import stored_path
from costream.core.urls import is_store_url, local_path
from costream.runtime.batch.folders import (
    PRIVATE,
    FolderWalk,
    FoundPath,
    Patterns,
    Refusal,
    each_once,
    parents,
)
from costream.runtime.batch.stores import (
    absolute,
    check_url,
    is_folder,
    place,
    safe,
    search_store,
)
from costream.runtime.batch.tables import TABLES
from costream.sinks.registry import FORMATS
from costream.sources.skeletons.frame_files import is_frame_folder
from costream.sources.uris import recordings_in


@dataclass(frozen=True)
class Input:
    """One input: a file, a folder that is one recording, or FILE#VIDEO."""

    uri: str  # absolute path or URL, valid in every process and on every machine
    name: str  # base name of its results, relative to the output folder; "/" between folders
    refusal: Refusal | None = None  # why it is not run


@dataclass
class Inputs:
    """The inputs that the arguments name."""

    root: str  # the folder that is mirrored, absolute; for URLs as in ``place``
    items: list[Input] = field(default_factory=list)


def read_list(argument: str, stdin: BinaryIO | None) -> list[str]:
    """Return the paths in ``@FILE``, or on ``stdin`` for "-": one per line, or NUL-terminated.

    ``stdin`` None: it is closed.
    """
    if argument == "-" and stdin is None:
        raise UsageError("standard input is closed", where="stdin")
    try:
        data = (
            stdin.read()
            if stdin and argument == "-"
            else Path(stored_path(argument[1:])).read_bytes()
        )
    except OSError as error:
        raise UsageError(f"the list cannot be read ({error.strerror})", where=argument) from error
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\0" if b"\0" in data else b"\n")
    return [os.fsdecode(line.removesuffix(b"\r")) for line in lines if line.strip()]


def collect(
    arguments: Sequence[str],
    output: Path,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    stdin: BinaryIO | None,
) -> Inputs:
    """Return the inputs for files, folders, URLs and lists, in the order of the arguments.

    Folders are searched in order of names. Inputs reached a second time are left out; ``output``
    is not searched. Names are relative to the deepest folder that holds all arguments. UsageError
    for URLs that cannot be opened.
    """
    paths: list[str] = []
    for argument in arguments:
        is_list = argument == "-" or (argument.startswith("@") and len(argument) > 1)
        named = read_list(argument, stdin) if is_list else [argument]
        paths += [_absolute(path) for path in named]
    paths = list(dict.fromkeys(paths))
    if not paths:
        raise UsageError("the list is empty")
    folders = {path for path in paths if _is_searched(path)}
    root = _root(paths, folders)
    patterns = Patterns(include, exclude)
    walk = FolderWalk(patterns, output)

    def search(path: str) -> Iterator[FoundPath]:
        if is_store_url(path):
            return search_store(path, patterns, is_folder=path in folders)
        if path in folders:
            return walk.folder(path)
        return walk.file(path, os.path.basename(path))

    entries = each_once(item for path in paths for item in search(path))
    return Inputs(root, ResultNames().give(_expanded(_below(item, root) for item in entries)))


def _absolute(argument: str) -> str:
    if is_store_url(argument):
        check_url(argument)
        return absolute(argument)
    return os.path.abspath(stored_path(local_path(argument)))


def _is_searched(path: str) -> bool:
    if is_store_url(path):
        return is_folder(path)
    return os.path.isdir(path) and not is_frame_folder(path)


def _root(paths: Sequence[str], folders: Container[str]) -> str:
    try:
        if any(is_store_url(path) for path in paths):
            places = {path: _place(path) for path in paths}
            return posixpath.commonpath(
                [at if path in folders else posixpath.dirname(at) for path, at in places.items()]
            )
        return os.path.commonpath([p if p in folders else os.path.dirname(p) for p in paths])
    except ValueError:
        hint = "run them into separate output folders"
        what = "the inputs have no folder in common (drives, stores)"
        raise UsageError(what, hint=hint) from None


def _below(entry: FoundPath, root: str) -> FoundPath:
    if is_store_url(entry.path):
        at = place(entry.path)
        relative = posixpath.relpath(at, root) if at != root else posixpath.basename(at)
        return replace(entry, relative=relative)
    return replace(entry, relative=os.path.relpath(entry.path, root).replace(os.sep, "/"))


def _place(path: str) -> str:
    return place(path) if is_store_url(path) else path.replace(os.sep, "/")


def _expanded(entries: Iterable[FoundPath]) -> Iterator[Input]:
    """Yield one input for each recording of a file."""
    for item in entries:
        if item.refusal is not None:
            yield Input(item.path, item.relative, item.refusal)
            continue
        for uri in [item.path] if is_store_url(item.path) else recordings_in(item.path):
            yield Input(uri, item.relative + safe(uri[len(item.path) :]))


_SUFFIXES = tuple(suffix for format in FORMATS.values() for suffix in format.files)


class ResultNames:
    """Assigns each input a name under which its files, in any format, are unique.

    The name is the input's path below the root. Where its files would clash with files of another
    input, with a folder or with a table over all inputs, ``~2`` is appended.
    """

    def __init__(self) -> None:
        self._taken: set[str] = {*TABLES, PRIVATE}
        self._folders: set[str] = set()

    def give(self, inputs: Iterable[Input]) -> list[Input]:
        """Return the inputs in the same order, each with a unique name."""
        items = []
        for item in inputs:
            first, slash, rest = item.name.partition("/")
            clashes = slash and first in self._taken
            items.append(replace(item, name=f"{first}~2/{rest}") if clashes else item)
        self._folders = {folder for item in items for folder in parents(item.name)}
        return [self._named(item) for item in items]

    def _named(self, item: Input) -> Input:
        name, number = item.name, 1
        while any(f in self._taken or f in self._folders for f in _files(name)):
            number += 1
            name = f"{item.name}~{number}"
        if item.refusal is None:
            self._taken.update(_files(name))
        return replace(item, name=name)


def _files(name: str) -> list[str]:
    return [f"{name}.{suffix}" for suffix in _SUFFIXES]
