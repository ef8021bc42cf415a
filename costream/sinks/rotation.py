"""Rotation of journals by time or size, and deletion of old parts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from costream.errors import UsageError

Period = Literal["hour", "day"]

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT])(i?)B", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_SECONDS: dict[Period, int] = {"hour": 3600, "day": 86400}
_PART = r"\.([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2})(?:~([0-9]+))?\.jsonl"


@dataclass(frozen=True)
class Rotation:
    """Rule for when the file of a journal becomes a part, and how many parts are kept."""

    size: int | None = None  # maximum bytes of a file
    every: Period | None = None  # in UTC
    keep: int | None = None  # bytes of all parts, the oldest are deleted first; None: no limit

    @classmethod
    def parse(cls, rotate: str | None, keep: str | None = None) -> Rotation:
        """Parse ``hour``, ``day`` or a size ("100MB", "64MiB"), and the total size of parts.

        Raise UsageError for anything else, and for ``keep`` without ``rotate``.
        """
        kept = None if keep is None else _bytes(keep, "--keep", "a size, like 10GB")
        if rotate is None:
            if kept is not None:
                raise UsageError("needs --rotate", where="--keep", hint="add --rotate day")
            return cls()
        for period in _SECONDS:
            if rotate == period:
                return cls(every=period, keep=kept)
        return cls(_bytes(rotate, "--rotate", "hour, day or a size, like 100MB"), keep=kept)

    def due(self, begun_s: float, now_s: float, size: int) -> bool:
        """Return whether a file started at ``begun_s`` is rotated before it has this size."""
        if self.every is not None:
            length_s = _SECONDS[self.every]
            return begun_s // length_s != now_s // length_s
        return self.size is not None and size > self.size

    def finish(self, directory: Path, name: str, begun_s: float) -> None:
        """Rename NAME.jsonl to a part named after its start; delete parts beyond ``keep``.

        No part is ever overwritten. Raises OSError.
        """
        stamp = _stamp(begun_s)
        same = [number for other, number, _ in _listed(directory, name) if other == stamp]
        again = f"~{max(same) + 1}" if same else ""
        (directory / f"{name}.jsonl").rename(directory / f"{name}.{stamp}{again}.jsonl")
        left = self.keep
        for old in reversed(list(parts(directory, name))):
            if left is not None:
                left -= old.stat().st_size
                if left < 0:
                    old.unlink()


def parts(directory: Path, name: str) -> Iterator[Path]:
    """Yield the finished parts of NAME, the oldest first."""
    for *_, file in _listed(directory, name):
        yield directory / file


def _listed(directory: Path, name: str) -> list[tuple[str, int, str]]:
    """Return the start of each part, its number among those of that second, and its file."""
    pattern = re.compile(re.escape(name) + _PART)
    matches = [m for file in os.listdir(directory) if (m := pattern.fullmatch(file))]
    return sorted((m[1], int(m[2] or 1), m[0]) for m in matches)


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H-%M-%S")


def _bytes(text: str, where: str, wanted: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    size = 0.0
    if match is not None:
        size = float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].lower()]
    if size < 1:
        raise UsageError(f"{text!r} is not {wanted}", where=where)
    return int(size)
