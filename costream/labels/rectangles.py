"""Boxes as files say them: a rectangle and a label, or nothing that could be one."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from costream.errors import UsageError


@dataclass
class Rectangles:
    """The boxes of one picture, as they come."""

    corners: list[list[float]] = field(default_factory=list)  # x1, y1, x2, y2
    labels: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)  # where boxes are without width or height

    def add(self, corners: Sequence[float], label: str, where: str) -> None:
        """Take a box, unless it has no width or no height."""
        x1, y1, x2, y2 = corners
        if x1 < x2 and y1 < y2:
            self.corners.append([x1, y1, x2, y2])
            self.labels.append(label)
        else:
            self.empty.append(where)


def finite(values: Sequence[Any]) -> list[float]:
    """Give numbers, or texts of such, as floats; ValueError for infinity and what is no number."""
    numbers = [float(value) for value in values]
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a number is not finite")
    return numbers


def frame_number(name: str, where: object) -> int:
    """Give the number that a file's name ends in; UsageError when it does not."""
    digits = re.search(r"(\d+)$", PurePosixPath(name).stem)
    if digits is None:
        raise UsageError("its name does not end in the number of a frame", where=where)
    return int(digits[1])
