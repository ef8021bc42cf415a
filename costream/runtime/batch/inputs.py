"""From the arguments of ``batch`` to its inputs, each once and in a stable order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from costream.errors import SourceError, UsageError
from costream.runtime.batch.folders import FolderWalk, Found, Patterns, each_once, is_recording
from costream.runtime.batch.names import Names
from costream.runtime.batch.outcome import Refusal
from costream.sources.opening import shown
from costream.sources.registry import expand


@dataclass(frozen=True)
class Input:
    """One input: a file, a folder that is one recording, or FILE#VIDEO."""

    uri: str  # absolute, so that it means the same in every process and on every machine
    name: str  # its results are called after this below the output folder; "/" between folders
    refusal: Refusal | None = None  # why it is not even tried


@dataclass
class Inputs:
    """What the arguments came to."""

    root: str  # the folder that is mirrored, absolute
    items: list[Input] = field(default_factory=list)


def read_list(argument: str, stdin: BinaryIO) -> list[str]:
    """Give the paths in ``@FILE``, or on ``stdin`` for "-": one a line, or ended by NUL bytes."""
    try:
        data = stdin.read() if argument == "-" else Path(argument[1:]).read_bytes()
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
    stdin: BinaryIO,
) -> Inputs:
    """Give the inputs that files, folders and lists stand for, in the order of the arguments.

    Folders are searched in order of names. What is reached a second time is left out; ``output``
    is not searched. Names are those below the deepest folder that holds all arguments.
    """
    paths: list[str] = []
    for argument in arguments:
        is_list = argument == "-" or (argument.startswith("@") and len(argument) > 1)
        named = read_list(argument, stdin) if is_list else [argument]
        paths += [os.path.abspath(path) for path in named]
    paths = list(dict.fromkeys(paths))
    if not paths:
        raise UsageError("the list is empty")
    root = _root(paths)
    walk = FolderWalk(Patterns(include, exclude), output)
    found = each_once(item for path in paths for item in _search(walk, path))
    return Inputs(root, Names().give(_expanded(_below(item, root) for item in found)))


def _search(walk: FolderWalk, path: str) -> Iterator[Found]:
    if os.path.isdir(path) and not is_recording(path):
        yield from walk.folder(path)
    else:
        yield from walk.file(path, os.path.basename(path))


def _root(paths: Sequence[str]) -> str:
    folders = [
        path if os.path.isdir(path) and not is_recording(path) else os.path.dirname(path)
        for path in paths
    ]
    try:
        return os.path.commonpath(folders)
    except ValueError:
        raise UsageError(
            "the inputs lie on different drives", hint="give each drive an output folder"
        ) from None


def _below(found: Found, root: str) -> Found:
    relative = os.path.relpath(found.path, root).replace(os.sep, "/")
    return Found(found.path, relative, found.refusal)


def _expanded(found: Iterable[Found]) -> Iterator[Input]:
    """Give a pickle of many videos as one input a video; everything else as it is."""
    for item in found:
        if item.refusal is not None:
            yield Input(item.path, item.relative, item.refusal)
            continue
        try:
            uris = expand(item.path) if _may_hold_many(item.path) else [item.path]
        except (SourceError, UsageError) as error:
            reason = str(error).removeprefix(f"{shown(item.path)}: ")
            yield Input(item.path, item.relative, Refusal("failed", reason, int(error.exit_code)))
            continue
        for uri in uris:
            yield Input(uri, item.relative + _safe(uri[len(item.path) :]))


def _may_hold_many(path: str) -> bool:
    return path.lower().endswith((".pickle", ".pkl", ".p", ".npy"))


def _safe(video: str) -> str:
    """Give "#VIDEO" with the characters replaced that a file name must not have."""
    return "".join("_" if c in '/\\:*?"<>|' or not c.isprintable() else c for c in video)
