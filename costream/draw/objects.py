"""Bounding boxes on images, with label, score and track id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from costream.draw.canvas import DARK, GREY, WHITE, Canvas, Color, fill, write
from costream.records import Box
from costream.sinks.font import HEIGHT, text_width

PixelSize = tuple[int, int]  # width, height


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
