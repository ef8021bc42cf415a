"""Frame numbers in the names of pictures and of files with one frame each."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

_DIGITS = re.compile(r"\d+")


def numbered(names: Sequence[str]) -> list[tuple[str, int | None]]:
    """Return recording and frame number for each name; None for a name without a number.

    If names contain several numbers, the frame number is the one that varies most between names.
    The others (camera, size, date) identify recordings, unless all frame numbers are different.
    """
    forms: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        forms.setdefault(_DIGITS.sub("0", name), []).append(name)
    found: dict[str, tuple[str, int | None]] = {}
    for form, alike in forms.items():
        columns = list(zip(*map(_DIGITS.findall, alike), strict=True))
        if not columns:
            found |= dict.fromkeys(alike, (form, None))
            continue
        counts = [len(set(column)) for column in columns]
        most = max(counts)
        # If two vary equally, frame numbers increase in smaller steps than times.
        k = min(
            (k for k, count in enumerate(counts) if count == most),
            key=lambda k: (_span(columns[k]), -k),
        )
        for name in alike:
            number = int(_DIGITS.findall(name)[k])
            found[name] = _without(alike[0] if most == len(alike) else name, k), number
    return [found[name] for name in names]


def beginning(names: Sequence[str]) -> str:
    """Return the longest common beginning of the names."""
    return os.path.commonprefix(names)  # noqa: RUF071 - of characters, not of path components


def _span(column: Sequence[str]) -> int:
    numbers = list(map(int, column))
    return max(numbers) - min(numbers)


def _without(name: str, k: int) -> str:
    """Return ``name`` without its k-th number."""
    match = list(_DIGITS.finditer(name))[k]
    return name[: match.start()] + name[match.end() :]
