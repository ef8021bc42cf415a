"""Boxes of one image, as label files give them."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from costream.core.errors import UsageError
from costream.core.spelling import composed

log = logging.getLogger("costream")


@dataclass
class Rectangles:
    """Boxes of one image, in file order."""

    corners: list[list[float]] = field(default_factory=list)  # x1, y1, x2, y2
    labels: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)  # places of boxes without width or height

    def add(self, corners: Sequence[float], label: str, where: str) -> None:
        """Add a box, or record its place if it has no width or height."""
        x1, y1, x2, y2 = corners
        if x1 < x2 and y1 < y2:
            self.corners.append([x1, y1, x2, y2])
            self.labels.append(composed(label))
        else:
            self.empty.append(where)


def finite(values: Sequence[Any]) -> list[float]:
    """Return numbers, or their texts, as floats; ValueError if one is invalid or not finite."""
    numbers = [float(value) for value in values]
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a number is not finite")
    return numbers


def frame_number(name: str, where: object) -> int:
    """Return the number at the end of a file's name; UsageError if there is none."""
    digits = re.search(r"(\d+)$", PurePosixPath(name).stem)
    if digits is None:
        raise UsageError("its name does not end in a frame number", where=where)
    return int(digits[1])
