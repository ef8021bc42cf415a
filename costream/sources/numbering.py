"""Frame numbers in the names of pictures and of files that hold a frame each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

_DIGITS = re.compile(r"\d+")


def numbered(names: Sequence[str]) -> list[tuple[str, int | None]]:
    """Return, for each name, the recording that it is of, and the number of its frame.

    Of several numbers in a name, that of the frame is the one that varies most from name to name;
    the others (a camera, a size, a date) tell recordings apart, unless no two frames of all have
    the same number. None: there is no number in the name.
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
        # Of two that vary alike, frames are counted in smaller steps than times.
        k = min(
            (k for k, count in enumerate(counts) if count == most),
            key=lambda k: (_span(columns[k]), -k),
        )
        for name in alike:
            number = int(_DIGITS.findall(name)[k])
            found[name] = _without(alike[0] if most == len(alike) else name, k), number
    return [found[name] for name in names]


def beginning(names: Sequence[str]) -> str:
    """Return what all names begin with."""
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in same)


def _span(column: Sequence[str]) -> int:
    numbers = list(map(int, column))
    return max(numbers) - min(numbers)


def _without(name: str, k: int) -> str:
    """Return a name without its number ``k``."""
    match = list(_DIGITS.finditer(name))[k]
    return name[: match.start()] + name[match.end() :]
