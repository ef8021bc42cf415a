"""Bounding boxes on images, with label, score and track id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from costream.draw.canvas import DARK, GREY, HEIGHT, WHITE, Canvas, Color, fill, text_width, write
from costream.records import Box, PixelSize

# Translucent grid of the tokens that a step has computed.

_TINT = np.array([0, 220, 255], np.uint8)


def draw_tokens(
    canvas: Canvas, updated: npt.NDArray[np.bool_], seen: PixelSize, page: PixelSize
) -> None:
    """Tint the updated tokens, bool [h, w], translucently, and more strongly at the rim.

    The model's input had the size ``seen``, padded on the right and at the bottom to whole
    tokens; it is shown with the size ``page`` in the upper left corner of ``canvas``.
    """
    side = token_side(updated, seen)
    down = _edges(updated.shape[0], page[1], seen[1], side, canvas.shape[0])
    across = _edges(updated.shape[1], page[0], seen[0], side, canvas.shape[1])
    for row, begin, end in _runs(updated):
        top, left = down[row], across[begin]
        part = canvas[top : down[row + 1], left : across[end]]
        begins = [x - left for x in across[begin:end] if x < across[end]]
        part[:] = _tinted(part, 6)
        part[:1] = _tinted(part[:1], 2)
        part[:, begins] = _tinted(part[:, begins], 2)


def _runs(updated: npt.NDArray[np.bool_]) -> list[tuple[int, int, int]]:
    """Return row, first column and end column of each run of adjacent tokens."""
    padded = np.pad(updated, ((0, 0), (1, 1))).astype(np.int8)
    change = np.diff(padded, axis=1)
    rows, begins = np.nonzero(change > 0)
    ends = np.nonzero(change < 0)[1]
    return list(zip(rows.tolist(), begins.tolist(), ends.tolist(), strict=True))


def _tinted(part: Canvas, share: int) -> Canvas:
    """Return the pixels with one part in ``share`` replaced by the tint."""
    return part - part // share + _TINT // share


def token_side(updated: npt.NDArray[np.bool_], seen: PixelSize) -> int:
    """Return the side of a token in pixels: the smallest with which [h, w] tokens cover a frame.

    Padding adds less than a token, so nothing else is possible if there are as many tokens along
    one of the sides as a token has pixels.
    """
    rows, columns = int(updated.shape[0]), int(updated.shape[1])
    return max(-(-seen[0] // columns), -(-seen[1] // rows))


def _edges(count: int, page: int, seen: int, side: int, most: int) -> list[int]:
    """Return where the tokens along a side of the page begin, and where the last one ends."""
    return [min(round(k * side * page / seen), page, most) for k in range(count + 1)]


def draw_boxes(
    canvas: Canvas,
    boxes: Sequence[Box],
    colors: Mapping[str, Color],
    source: PixelSize,
    page: PixelSize,
) -> None:
    """Draw boxes in the colour of their label, the first ones on top.

    Coordinates are pixels of an image of size ``source``, shown with the size ``page`` in the
    upper left corner of ``canvas``. A dark rim makes them visible on any background.
    """
    pen = max(2, round(min(page) / 240))
    scale = max(1, round(min(page) / 360))
    for box in reversed(boxes):
        left, right = (round(x * page[0] / source[0]) for x in (box.x1, box.x2))
        top, bottom = (round(y * page[1] / source[1]) for y in (box.y1, box.y2))
        color = colors.get(box.label, GREY)
        _frame(canvas, left - 1, top - 1, right + 1, bottom + 1, pen + 2, DARK)
        _frame(canvas, left, top, right, bottom, pen, color)
        _tag(canvas, box_caption(box), left, top, color, scale, page)


def box_caption(box: Box) -> str:
    """Return the caption ``car 0.92``, or with an id ``car #3 0.92``."""
    name = box.label if box.id is None else f"{box.label} #{box.id}"
    return f"{name} {box.score:.2f}"


def _frame(
    canvas: Canvas, left: int, top: int, right: int, bottom: int, pen: int, color: Color
) -> None:
    """Draw the outline of a rectangle, inside its edges."""
    width, height = right - left, bottom - top
    across, down = min(pen, width), min(pen, height)
    fill(canvas, left, top, width, down, color)
    fill(canvas, left, bottom - down, width, down, color)
    fill(canvas, left, top, across, height, color)
    fill(canvas, right - across, top, across, height, color)


def _tag(
    canvas: Canvas, text: str, left: int, top: int, color: Color, scale: int, page: PixelSize
) -> None:
    """Write a caption on the colour of the box, above it; inside it at the top of the image."""
    width, height = text_width(text, scale) + 4 * scale, (HEIGHT + 4) * scale
    x = max(0, min(left, page[0] - width))
    y = top - height if top >= height else top
    fill(canvas, x - 1, y - 1, width + 2, height + 2, DARK)
    fill(canvas, x, y, width, height, color)
    write(canvas, x + 2 * scale, y + 2 * scale, text, _ink(color), scale)


def _ink(color: Color) -> Color:
    """Return a text colour that is legible on ``color`` (ITU-R BT.601 luma)."""
    red, green, blue = color
    return DARK if 0.299 * red + 0.587 * green + 0.114 * blue > 110 else WHITE
