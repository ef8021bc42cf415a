"""Recursive search of folders in stores, by the same rules as for local folders."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from costream.errors import ExitCode
from costream.runtime.batch.folders import PRIVATE, FoundPath, Patterns
from costream.runtime.batch.outcome import Refusal
from costream.runtime.batch.stores import list_files, place

_FRAMES = "_keypoints.json"  # a folder of these files is one input
_PARTS = ("_flow.npy", "_audio.npy")


def search_store(url: str, patterns: Patterns, *, is_folder: bool) -> Iterator[FoundPath]:
    """Yield a file, or the files below a folder in order of names, as ``FolderWalk`` does."""
    if not is_folder:
        if patterns.takes(posixpath.basename(place(url))):
            yield FoundPath(url, "")
        return
    try:
        pairs = [(posixpath.relpath(place(file), place(url)), file) for file in list_files(url)]
    except OSError as error:
        reason = f"the folder cannot be read ({error.strerror or error})"
        yield FoundPath(url, "", Refusal("failed", reason, int(ExitCode.INPUT)))
        return
    names = {name for name, _ in pairs}
    outputs = {_folder(name, 2) for name in names if f"/{name}".endswith(f"/{PRIVATE}/batch.json")}
    recordings = {_folder(name) for name in names if name.endswith(_FRAMES)}
    if "" in recordings:
        yield FoundPath(url, "")
        return
    told: set[str] = set()
    for name, file in sorted(pairs, key=lambda pair: pair[0].split("/")):
        folders = _folders(name)
        hidden = any(part.startswith(".") for part in name.split("/"))
        if hidden or outputs & {"", *folders} or not all(map(patterns.enters, folders)):
            continue
        recording = next((folder for folder in folders if folder in recordings), None)
        if recording is None:
            if patterns.takes(name):
                yield FoundPath(file, name, _part_of_another(name, names))
        elif recording not in told:
            told.add(recording)
            if patterns.takes(recording):
                yield FoundPath(_folder_of(file, name.count("/") - recording.count("/")), recording)


def _folder(name: str, up: int = 1) -> str:
    return "/".join(name.split("/")[:-up])


def _folder_of(url: str, up: int) -> str:
    """Return the URL of a folder above a file."""
    head, colons, chain = url.partition("::")
    return _folder(head, up) + colons + chain


def _folders(name: str) -> list[str]:
    """Return the folders that contain a file, the outermost first."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[: k + 1]) for k in range(len(parts))]


def _part_of_another(name: str, names: set[str]) -> Refusal | None:
    for ending in _PARTS:
        first = name.removesuffix(ending) + "_rgb.npy"
        if name.endswith(ending) and first in names:
            return Refusal("skipped", f"read together with {posixpath.basename(first)}")
    return None
