"""Incomplete downloads: ``NAME.part``, and ``NAME.part.json`` with the version of the file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TypeVar

from costream.errors import OutputError

_T = TypeVar("_T")


class PartFile:
    """The part of ``url`` received so far, which will become ``target``.

    All writing methods raise OutputError when the system cannot write.
    """

    def __init__(self, target: Path, url: str) -> None:
        self._target, self._url = target, url
        self.path = target.with_name(f"{target.name}.part")
        self._note = target.with_name(f"{target.name}.part.json")

    def size(self) -> int:
        """Return the number of stored bytes."""
        return self.path.stat().st_size if self.path.exists() else 0

    def version(self) -> str | None:
        """Return the version identifier of the file; None: the stored part cannot be used."""
        try:
            note = json.loads(self._note.read_text("utf-8"))
            version = note["version"] if note["url"] == self._url else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return version if isinstance(version, str) and self.size() else None

    def begin(self, version: str | None) -> None:
        """Discard the stored part and record the version of the new one."""

        def write() -> None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(b"")
            note = {"url": self._url, "version": version}
            self._note.write_text(json.dumps(note), encoding="utf-8")

        self._do(write)

    def open(self) -> FileIO:
        """Open it for appending, unbuffered: ``close`` would write a buffer once more."""
        return self._do(lambda: FileIO(self.path, "ab"))

    def write(self, file: FileIO, block: bytes) -> None:
        """Append a block so that it survives the end of this process."""
        left = memoryview(block)
        while left:
            left = left[self._do(partial(file.write, left)) :]

    def digest(self, algorithm: str) -> str:
        """Return the hexadecimal digest of the stored part."""
        found = hashlib.new(algorithm, usedforsecurity=False)
        with self.path.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
        return found.hexdigest()

    def delete(self) -> None:
        """Delete the part and its version file."""
        for path in (self.path, self._note):
            with suppress(OSError):
                path.unlink()

    def finish(self) -> None:
        """Rename the part to the target and delete the version file."""

        def rename() -> None:
            with self.path.open("ab") as file:
                os.fsync(file.fileno())
            os.replace(self.path, self._target)

        self._do(rename)
        self.delete()

    def _do(self, action: Callable[[], _T]) -> _T:
        try:
            return action()
        except OSError as error:
            kept = "the data received so far are kept" if self.size() else None
            reason = error.strerror or str(error)
            raise OutputError(
                f"cannot be written ({reason})", where=self.path, hint=kept
            ) from error
