"""File fingerprints: size and modification time, or content hash."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from costream.runtime.batch.stores import fetch, is_url, stored_files
from costream.sources.features.arrays import PARTS, split_video

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Fingerprint:
    """The fingerprint of one input; equal fingerprints mean equal content."""

    size: int  # bytes
    mtime_ns: int | None  # newest of its files; None with a content hash, and in a store
    sha256: str | None = None  # content hash, if requested
    version: str | None = None  # version from a store: a checksum, a modification time


def fingerprint(uri: str, *, content: bool = False, fresh: bool = False) -> Fingerprint:
    """Return the fingerprint of an input. OSError when it cannot be read.

    ``content``: hash the content, so that a copy or a touched file counts as the same. ``fresh``:
    bypass the cache of a store.
    """
    if is_url(uri):
        if content:
            with tempfile.TemporaryDirectory() as folder:
                return fingerprint(fetch(uri, Path(folder)), content=True)
        stored = stored_files(uri, fresh=fresh)
        versions = " ".join(file.version for file in stored)
        return Fingerprint(sum(file.size for file in stored), None, version=versions)
    files = _files(split_video(uri)[0])
    stats = [os.stat(file) for file in files]
    size = sum(status.st_size for status in stats)
    if not content:
        return Fingerprint(size, max(status.st_mtime_ns for status in stats))
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb") as opened:
            while block := opened.read(_BLOCK):
                digest.update(block)
    return Fingerprint(size, None, digest.hexdigest())


def _files(path: str) -> list[str]:
    """Return all files that belong to an input."""
    if os.path.isdir(path):
        inside = [os.path.join(path, name) for name in sorted(os.listdir(path))]
        return [file for file in inside if os.path.isfile(file)] or [path]
    stem = path.removesuffix("_rgb.npy")
    others = [f"{stem}_{part}.npy" for part in PARTS[1:]] if stem != path else []
    return [path, *(file for file in others if os.path.exists(file))]
