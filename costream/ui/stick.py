"""Stick figures in a terminal: braille characters, eight dots each."""

from __future__ import annotations

import numpy as np

from costream.draw.skeleton import Figure

# Unicode numbers the dots of a braille cell [4 rows, 2 columns] in this order.
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
_BLANK = 0x2800


def stick_lines(figure: Figure, rows: int) -> list[str]:
    """Return the persons as ``rows`` lines of ``2 * rows`` characters, which is about a square."""
    side = 4 * rows  # dots, equally spaced across and down
    dots = np.zeros((side, side), np.bool_)
    points = figure.points * (side - 1)
    for person, seen in zip(points, figure.seen, strict=True):
        for a, b in figure.bones:
            if seen[a] and seen[b]:
                way = person[a] + (person[b] - person[a]) * np.linspace(0, 1, side)[:, None]
                x, y = np.rint(way.clip(0, side - 1)).astype(np.intp).T
                dots[y, x] = True
    cells = dots.reshape(rows, 4, 2 * rows, 2).transpose(0, 2, 1, 3)
    codes = _BLANK + (cells * _BITS).sum((2, 3))
    return ["".join(map(chr, row)) for row in codes.tolist()]
