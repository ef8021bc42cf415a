"""A download that is not complete: ``NAME.part``, and ``NAME.part.json`` with its version."""

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
    """What has come of ``url`` so far, which is to become ``target``.

    OutputError from all that writes, when the system does not.
    """

    def __init__(self, target: Path, url: str) -> None:
        self._target, self._url = target, url
        self.path = target.with_name(f"{target.name}.part")
        self._note = target.with_name(f"{target.name}.part.json")

    def size(self) -> int:
        """Give the bytes that are here."""
        return self.path.stat().st_size if self.path.exists() else 0

    def version(self) -> str | None:
        """Give what names the version of the file; None: what is here is of no use."""
        try:
            note = json.loads(self._note.read_text("utf-8"))
            version = note["version"] if note["url"] == self._url else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return version if isinstance(version, str) and self.size() else None

    def begin(self, version: str | None) -> None:
        """Forget what is here and note the version of what comes."""

        def write() -> None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(b"")
            note = {"url": self._url, "version": version}
            self._note.write_text(json.dumps(note), encoding="utf-8")

        self._do(write)

    def open(self) -> FileIO:
        """Open it to write on; without a buffer, which would be written once more by ``close``."""
        return self._do(lambda: FileIO(self.path, "ab"))

    def write(self, file: FileIO, block: bytes) -> None:
        """Append a block, so that it stays whatever becomes of this process."""
        left = memoryview(block)
        while left:
            left = left[self._do(partial(file.write, left)) :]

    def digest(self, algorithm: str) -> str:
        """Give the digest of what is here, hexadecimal."""
        found = hashlib.new(algorithm, usedforsecurity=False)
        with self.path.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
        return found.hexdigest()

    def delete(self) -> None:
        """Leave nothing behind."""
        for path in (self.path, self._note):
            with suppress(OSError):
                path.unlink()

    def finish(self) -> None:
        """Give it its name."""

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
            kept = "what has come is kept" if self.size() else None
            reason = error.strerror or str(error)
            raise OutputError(
                f"cannot be written ({reason})", where=self.path, hint=kept
            ) from error
