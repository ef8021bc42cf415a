"""Drawing of dots, areas and text on images: uint8 [H, W, 3] arrays, changed in place.

Coordinates are pixels, x to the right and y down; anything outside is clipped.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

from costream.draw.skeleton import Figure
from costream.sinks.font import text_mask

Canvas = npt.NDArray[np.uint8]
Color = tuple[int, int, int]  # red, green, blue

WHITE: Color = (240, 240, 240)
GREY: Color = (150, 150, 150)
DARK: Color = (24, 24, 24)
# Distinguishable for most colour-blind people (Okabe and Ito).
COLORS: tuple[Color, ...] = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
)
_SIDES = {-1: COLORS[1], 0: WHITE, 1: COLORS[0]}  # left, middle, right


def fill(canvas: Canvas, x: float, y: float, width: float, height: float, color: Color) -> None:
    """Fill a rectangle."""
    left, top, right, bottom = (max(0, round(v)) for v in (x, y, x + width, y + height))
    canvas[top:bottom, left:right] = color


def write(canvas: Canvas, x: int, y: int, text: str, color: Color, scale: int = 2) -> None:
    """Write one line of text with its upper left corner at ``x``, ``y``."""
    mask = text_mask(text, scale)
    page = canvas[max(0, y) : y + mask.shape[0], max(0, x) : max(0, x + mask.shape[1])]
    page[mask[max(0, -y) :, max(0, -x) :][: page.shape[0], : page.shape[1]]] = color


def dots(canvas: Canvas, points: npt.NDArray[np.float64], color: Color, width: int) -> None:
    """Draw round dots of diameter ``width`` at ``points`` [N, 2] (x, y)."""
    # Extreme coordinates must not overflow an integer.
    near = (np.abs(points) < 4 * max(canvas.shape)).all(1)  # false for NaN
    places = (np.rint(points[near]).astype(np.intp)[:, None] + _disk(width)).reshape(-1, 2)
    inside = ((places >= 0) & (places < (canvas.shape[1], canvas.shape[0]))).all(1)
    x, y = places[inside].T
    canvas[y, x] = color


def path(
    start: npt.NDArray[np.float64], end: npt.NDArray[np.float64], spacing: float
) -> npt.NDArray[np.float64]:
    """Return points [N, 2] from ``start`` to ``end`` inclusive, at most ``spacing`` apart."""
    length = float(np.abs(end - start).max())
    count = 2 + int(min(length, 1e4) / spacing) if math.isfinite(length) else 2
    return start + (end - start) * np.linspace(0, 1, count)[:, None]


def draw_figure(canvas: Canvas, figure: Figure, width: int, height: int) -> None:
    """Draw stick figures in the upper left ``width`` x ``height`` of ``canvas``.

    A figure without an image is drawn in a square in the middle. The body's left is blue, its
    right orange, with a dark rim that is visible on any background.
    """
    side = min(width, height)
    size, corner = (width, height), (0.0, 0.0)
    if figure.square:
        size, corner = (side, side), ((width - side) / 2, (height - side) / 2)
    pen = max(2, round(side / 160))
    points = figure.points.astype(np.float64) * size + corner
    sides = np.array(figure.sides)
    for person, seen in zip(points, figure.seen, strict=True):
        paths = {
            a: path(person[a], person[b], pen / 2) for a, b in figure.bones if seen[a] and seen[b]
        }
        if paths:
            dots(canvas, np.concatenate(list(paths.values())), DARK, pen + 2)
        for side, color in _SIDES.items():
            mine = [points for a, points in paths.items() if sides[a] == side]
            if mine:
                dots(canvas, np.concatenate(mine), color, pen)
            dots(canvas, person[seen & (sides == side)], color, pen + 3)


@cache
def _disk(width: int) -> npt.NDArray[np.intp]:
    """Return the offsets [N, 2] of a round brush of this diameter."""
    radius = width / 2
    reach = np.arange(-(width // 2), width // 2 + 1)
    grid = np.stack(np.meshgrid(reach, reach), -1).reshape(-1, 2)
    inside: npt.NDArray[np.intp] = grid[(grid**2).sum(1) <= radius**2 + 0.25]
    return inside
