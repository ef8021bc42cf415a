"""Drawing of areas, lines and stick figures on images: uint8 [H, W, 3] arrays, changed in place.

Coordinates are pixels, x to the right and y down; anything outside is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costream.draw.palette import Color
from costream.draw.skeleton import Figure

Canvas = npt.NDArray[np.uint8]
WHITE: Color = (240, 240, 240)
GREY: Color = (150, 150, 150)
DARK: Color = (21, 22, 26)
LEFT: Color = (86, 180, 233)  # of bodies
RIGHT: Color = (255, 159, 64)
_SIDES = {-1: LEFT, 0: WHITE, 1: RIGHT}


def fill(canvas: Canvas, x: float, y: float, width: float, height: float, color: Color) -> None:
    """Fill a rectangle."""
    left, top, right, bottom = (max(0, round(v)) for v in (x, y, x + width, y + height))
    canvas[top:bottom, left:right] = color


def draw_line(
    canvas: Canvas,
    start: npt.NDArray[np.float64],
    end: npt.NDArray[np.float64],
    color: Color,
    width: float,
) -> None:
    """Draw a line with round ends and smooth edges; a dot if the ends (x, y) are equal."""
    for stroke in _strokes(canvas, [(start, end)], width):
        stroke.paint(canvas, color, width)


def draw_figure(canvas: Canvas, figure: Figure, width: int, height: int) -> None:
    """Draw stick figures in the upper left ``width`` x ``height`` of ``canvas``.

    A figure without an image is drawn in a square in the middle. The body's left is blue, its
    right orange, with a dark rim that is visible on any background.
    """
    side = min(width, height)
    size, corner = (width, height), (0.0, 0.0)
    if figure.square:
        size, corner = (side, side), ((width - side) / 2, (height - side) / 2)
    pen = max(2.0, side / 130)
    rim = max(2.0, pen / 2)
    points = figure.points.astype(np.float64) * size + corner
    for person, seen in zip(points, figure.seen, strict=True):
        bones = [(a, b) for a, b in figure.bones if seen[a] and seen[b]]
        joints = np.flatnonzero(seen).tolist()
        colors = [_SIDES[figure.sides[k]] for k in (*(a for a, _ in bones), *joints)]
        widths = [pen] * len(bones) + [1.8 * pen] * len(joints)
        paths = [(person[a], person[b]) for a, b in (*bones, *((k, k) for k in joints))]
        strokes = list(_strokes(canvas, paths, 1.8 * pen + rim))
        for stroke in strokes:
            stroke.paint(canvas, DARK, widths[stroke.index] + rim)
        for stroke in strokes:
            stroke.paint(canvas, colors[stroke.index], widths[stroke.index])


@dataclass(frozen=True)
class _Stroke:
    """Pixels around a line, with their distances from it."""

    index: int  # of the line
    rows: slice
    columns: slice
    distances: npt.NDArray[np.float32]  # [rows, columns]

    def paint(self, canvas: Canvas, color: Color, width: float) -> None:
        """Paint the pixels that a line of this width covers; those at its edge partly."""
        share = np.clip(width / 2 + 0.5 - self.distances, 0, 1)[..., None]
        part = canvas[self.rows, self.columns]
        part[:] = np.rint(part + (np.array(color, np.float32) - part) * share)


def _strokes(
    canvas: Canvas,
    paths: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]],
    width: float,
) -> Iterator[_Stroke]:
    """Yield the pixels up to ``width`` around each path that is on the canvas."""
    height, wide = canvas.shape[:2]
    far, reach = 4 * max(canvas.shape), width / 2 + 1
    for index, (start, end) in enumerate(paths):
        ends = np.stack([start, end])
        if not (np.abs(ends) < far).all():  # false for NaN
            continue
        left, top = (max(0, math.floor(v - reach)) for v in ends.min(0))
        right, bottom = (math.ceil(v + reach) + 1 for v in ends.max(0))
        right, bottom = min(right, wide), min(bottom, height)
        if left >= right or top >= bottom:
            continue
        x = np.arange(left, right, dtype=np.float32)[None] - np.float32(start[0])
        y = np.arange(top, bottom, dtype=np.float32)[:, None] - np.float32(start[1])
        dx, dy = (np.float32(v) for v in end - start)
        along = np.clip((x * dx + y * dy) / max(dx * dx + dy * dy, np.float32(1e-6)), 0, 1)
        distances = np.hypot(x - along * dx, y - along * dy)
        yield _Stroke(index, slice(top, bottom), slice(left, right), distances)
