"""Boxes from YOLO text files: lines ``class x y width height``, relative, x and y of the centre."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from costream.core.errors import UsageError
from costream.labels.collector import read_text
from costream.labels.formats.rectangles import Rectangles, finite

log = logging.getLogger("costream")
NAMES = ("classes.txt", "obj.names")


def find_names(folder: Path) -> Path | None:
    """Return the file of class names in a label folder or up to two levels above it, or None."""
    places = (folder, *list(folder.absolute().parents)[:2])
    return next((p / name for p in places for name in NAMES if (p / name).is_file()), None)


def class_names(folder: Path) -> list[str]:
    """Return the class names; UsageError without a file of class names."""
    path = find_names(folder)
    if path is None:
        raise UsageError(
            "no file of class names",
            where=folder,
            hint=f"put {NAMES[0]}, with one name per line, into this folder or above it",
        )
    return [line.strip() for line in read_text(path).split("\n") if line.strip()]


def read_lines(path: Path, names: Sequence[str]) -> Rectangles:
    """Return the boxes of an image, as fractions of its width and height.

    Raises UsageError that names the line of an invalid box.
    """
    found = Rectangles()
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            kind, *numbers = line.split()
            x, y, width, height = finite(numbers[:4])
            label = names[_index(kind, len(names))]
        except ValueError as error:
            raise UsageError(f"not 'class x y width height' ({error})", where=where) from error
        corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        found.add(corners, label, where)
    return found


def _index(text: str, count: int) -> int:
    if not 0 <= int(text) < count:
        raise ValueError(f"there are {count} classes")
    return int(text)
