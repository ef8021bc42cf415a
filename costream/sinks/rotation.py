"""Rotation of journals by time or size, and deletion of old parts and clips."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from costream.core.clock import parse_time
from costream.core.errors import UsageError
from costream.core.urls import redact

Period = Literal["hour", "day"]

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT])(i?)B", re.IGNORECASE)
_AGE = re.compile(r"\d[dh]")  # not minutes: "500m" may be meant as a size
_CLIP = r"_[0-9]{8}T[0-9]{6}Z_.*\.(?:mkv|jpg)"
_NAME_BYTES = 80  # limit for a feed or a label in the file name of a clip
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_SECONDS: dict[Period, int] = {"hour": 3600, "day": 86400}
_STAMP = "%Y-%m-%dT%H-%M-%S"
_PART = r"\.([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2})(?:~([0-9]+))?\.jsonl"


@dataclass(frozen=True)
class Rotation:
    """Rule for when the file of a journal becomes a part, and how many parts are kept."""

    size: int | None = None  # maximum bytes of a file
    every: Period | None = None  # in UTC
    # Limits of all parts, clips and pictures of a feed; the oldest are deleted. None: no limit.
    keep: int | None = None  # bytes
    keep_s: float | None = None  # age, from when they were finished

    @classmethod
    def parse(
        cls, rotate: str | None, keep: str | None = None, *, stored: bool = False
    ) -> Rotation:
        """Parse ``hour``, ``day`` or a size ("100MB", "64MiB"), and the limits of ``keep``.

        These are a size, an age ("7d", "12h") or both ("10GB,7d"), for parts and clips together.
        ``stored``: events are only in a store, which has no parts. Raise UsageError for anything
        else, and for ``keep`` without ``rotate`` unless they are.
        """
        limits: dict[str, Any] = {}
        for text in () if keep is None else keep.split(","):
            before = len(limits)
            if _AGE.search(text):
                limits["keep_s"] = parse_time(text)
                if limits["keep_s"] <= 0:
                    raise UsageError(f"{text!r} is not an age above 0", where="--keep")
            else:
                limits["keep"] = _bytes(text, "--keep", "a size or an age, like 10GB or 7d")
            if len(limits) == before:
                hint = "write one size, one age or both"
                raise UsageError("two sizes or two ages", where="--keep", hint=hint)
        if rotate is None:
            if limits and not stored:
                raise UsageError("needs --rotate", where="--keep", hint="add --rotate day")
            return cls(**limits)
        for period in _SECONDS:
            if rotate == period:
                return cls(every=period, **limits)
        size = _bytes(rotate, "--rotate", "hour, day or a size, like 100MB")
        return cls(size, **limits)

    def due(self, begun_s: float, now_s: float, size: int) -> bool:
        """Return whether a file started at ``begun_s`` is rotated before it has this size."""
        if self.every is not None:
            length_s = _SECONDS[self.every]
            return begun_s // length_s != now_s // length_s
        return self.size is not None and size > self.size

    def finish(self, directory: Path, name: str, begun_s: float) -> None:
        """Rename NAME.jsonl to a part named after its start.

        No part is ever overwritten. Raises OSError.
        """
        stamp = _stamp(begun_s)
        same = [number for other, number, _ in _listed(directory, name) if other == stamp]
        again = f"~{max(same) + 1}" if same else ""
        (directory / f"{name}.jsonl").rename(directory / f"{name}.{stamp}{again}.jsonl")

    def prune(self, directory: Path, name: str, now_s: float, pictures: Path | None = None) -> None:
        """Delete the oldest parts, clips and pictures of NAME that are beyond a limit.

        ``now_s``: time of day. ``pictures``: their folder, if it is another one. Raises OSError.
        """
        if self.keep is None and self.keep_s is None:
            return
        found = []
        clip = re.compile(re.escape(safe_name(name)) + _CLIP)
        folders = {directory, *([pictures] if pictures is not None and pictures.is_dir() else [])}
        clips = [p for folder in folders for p in folder.iterdir() if clip.fullmatch(p.name)]
        for number, path in enumerate((*parts(directory, name), *clips)):
            with suppress(FileNotFoundError):
                about = path.stat()
                found.append((about.st_mtime, number, about.st_size, path))
        left = math.inf if self.keep is None else self.keep
        oldest_s = -math.inf if self.keep_s is None else now_s - self.keep_s
        for ended_s, _, size, path in sorted(found, reverse=True):
            left -= size
            if left < 0 or ended_s < oldest_s:
                path.unlink(missing_ok=True)


def safe_name(text: str) -> str:
    """Return ``text`` as a part of a file name valid on any system, without credentials."""
    name = "".join(c if c.isalnum() or c in ".-" else "_" for c in redact(text))
    return name.encode()[:_NAME_BYTES].decode(errors="ignore").strip("._") or "unnamed"


def clip_stem(feed: str, at: datetime, label: str) -> str:
    """Return the name of a clip or picture of a feed, without number and ending."""
    return f"{safe_name(feed)}_{at:%Y%m%dT%H%M%SZ}_{safe_name(label)}"


def feed_of(path: Path) -> str:
    """Return the name of the feed whose journal, or part of it, this file is."""
    return re.sub(f"(?:{_PART}|[.]jsonl)$", "", path.name)


def parts(directory: Path, name: str) -> Iterator[Path]:
    """Yield the finished parts of NAME, the oldest first."""
    for *_, file in _listed(directory, name):
        yield directory / file


def oldest_part_s(directory: Path, name: str) -> float:
    """Return the time of day at which the oldest part of NAME begins; -inf without parts."""
    with suppress(OSError, IndexError):
        stamp = _listed(directory, name)[0][0]
        return datetime.strptime(f"{stamp}+0000", f"{_STAMP}%z").timestamp()
    return -math.inf


def journal_files(directory: Path, name: str) -> Iterator[Path]:
    """Yield the parts of NAME, the oldest first, and its current file, which need not be there."""
    if directory.is_dir():
        yield from parts(directory, name)
    yield directory / f"{name}.jsonl"


def _listed(directory: Path, name: str) -> list[tuple[str, int, str]]:
    """Return the start of each part, its number among the parts of that second, and its file."""
    pattern = re.compile(re.escape(name) + _PART)
    matches = [m for file in os.listdir(directory) if (m := pattern.fullmatch(file))]
    return sorted((m[1], int(m[2] or 1), m[0]) for m in matches)


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime(_STAMP)


def _bytes(text: str, where: str, wanted: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    size = 0.0
    if match is not None:
        size = float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].lower()]
    if size < 1:
        raise UsageError(f"{text!r} is not {wanted}", where=where)
    return int(size)
