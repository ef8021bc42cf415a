"""Bounding boxes on images, with label, score and track id, and places."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from costream.core.places import Place
from costream.core.records import Box, PixelSize
from costream.draw.canvas import DARK, GREY, Canvas, draw_line, fill
from costream.draw.lettering import line_height, text_width, write
from costream.draw.palette import Color, Paint, rgb_of
from costream.draw.skeleton import Figure

# Translucent grid of the tokens that a step has computed.

_TINT = np.array([0, 220, 255], np.uint8)
_PLACES: dict[str, Color] = {"zone": (255, 214, 10), "line": (255, 95, 86), "mask": GREY}


def draw_tokens(
    canvas: Canvas, updated: npt.NDArray[np.bool_], seen: PixelSize, page: PixelSize
) -> None:
    """Tint the updated tokens, bool [h, w], slightly, and outline the areas that they form.

    The model's input had the size ``seen``, padded on the right and at the bottom to complete
    tokens; it is shown with the size ``page`` in the upper left corner of ``canvas``.
    """
    side = token_side(updated, seen)
    down = _edges(updated.shape[0], page[1], seen[1], side, canvas.shape[0])
    across = _edges(updated.shape[1], page[0], seen[0], side, canvas.shape[1])
    inside = canvas[: down[-1], : across[-1]]
    covered = updated.repeat(np.diff(down), 0).repeat(np.diff(across), 1)
    inside[covered] = _tinted(inside[covered], 12)
    rim = covered.copy()  # those next to a pixel that is not covered
    rim[1:-1, 1:-1] &= ~(
        covered[:-2, 1:-1] & covered[2:, 1:-1] & covered[1:-1, :-2] & covered[1:-1, 2:]
    )
    inside[rim] = _tinted(inside[rim], 2)


def _tinted(pixels: Canvas, share: int) -> Canvas:
    """Return the pixels with one part in ``share`` replaced by the tint."""
    return pixels - pixels // share + _TINT // share


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


def draw_places(
    canvas: Canvas, places: Sequence[Place], source: PixelSize, page: PixelSize
) -> None:
    """Draw zones, lines and masks with their names; sizes as for ``draw_boxes``.

    A line has a stroke at its middle, to the side where "in" leads.
    """
    pen, size = max(1.5, min(page) / 300), max(9, round(min(page) / 40))
    for place in places:
        points = place.within(source) * page
        color = _PLACES[place.kind]
        ends = points[1:] if place.kind == "line" else np.roll(points, -1, 0)
        paths = list(zip(points, ends, strict=False))
        if place.kind == "line":
            start, end = paths[len(paths) // 2]
            middle, along = (start + end) / 2, end - start
            to_right = np.array([-along[1], along[0]]) / max(1e-9, float(np.hypot(*along)))
            paths.append((middle, middle + to_right * min(page) / 20))
        for width, ink in ((pen + 2, DARK), (pen, color)):
            for start, end in paths:
                draw_line(canvas, start, end, ink, width)
        x, y = points[points.sum(1).argmin()].round().astype(int).tolist()
        edge, height = size // 3, line_height(size) + 2
        width = text_width(place.name, size) + 2 * edge
        x, y = max(0, min(x, page[0] - width)), max(0, min(y, page[1] - height))
        fill(canvas, x, y, width, height, DARK)
        write(canvas, x + edge, y + 1, place.name, color, size)


def draw_boxes(
    canvas: Canvas,
    boxes: Sequence[Box],
    paint: Callable[[str], Paint],
    source: PixelSize,
    page: PixelSize,
    action_of: Callable[[int], str] = lambda person: "",
) -> None:
    """Draw boxes in the colour of their label, the first ones on top.

    ``action_of``: what the thing with an id does; if that is known, it replaces the box's score.

    Coordinates are pixels of an image of size ``source``, shown with the size ``page`` in the
    upper left corner of ``canvas``. A dark rim makes them visible on any background.
    """
    pen = max(2, round(min(page) / 240))
    size = max(10, round(min(page) / 36))
    for box in reversed(boxes):
        left, right = (round(x * page[0] / source[0]) for x in (box.x1, box.x2))
        top, bottom = (round(y * page[1] / source[1]) for y in (box.y1, box.y2))
        color = paint(box.label)
        _frame(canvas, left - 1, top - 1, right + 1, bottom + 1, pen + 2, DARK)
        _frame(canvas, left, top, right, bottom, pen, color.rgb)
        action = "" if box.id is None else action_of(box.id)
        text = f"{box.label} #{box.id}: {action}" if action else box_caption(box)
        _tag(canvas, text, left, top, color, size, page)


def name_persons(
    canvas: Canvas, figure: Figure, names: Sequence[str], paint: Paint, page: PixelSize
) -> None:
    """Write the name of each person of a figure above its highest joint; empty ones are left out.

    The figure is shown with the size ``page`` in the upper left corner of ``canvas``.
    """
    size = max(10, round(min(page) / 36))
    for points, seen, name in zip(figure.points, figure.seen, names, strict=True):
        if name and seen.any():
            left, top = (points[seen].min(0) * page).round().astype(int).tolist()
            _tag(canvas, name, left, top - size, paint, size, page)


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
    canvas: Canvas, text: str, left: int, top: int, paint: Paint, size: int, page: PixelSize
) -> None:
    """Write a caption on the colour of the box, above it; inside it at the top of the image."""
    edge = size // 3
    width, height = text_width(text, size) + 2 * edge, line_height(size) + 2
    x = max(0, min(left, page[0] - width))
    y = top - height if top >= height else max(0, top)
    fill(canvas, x - 1, y - 1, width + 2, height + 2, DARK)
    fill(canvas, x, y, width, height, paint.rgb)
    write(canvas, x + edge, y + 1, text, rgb_of(paint.ink), size)
