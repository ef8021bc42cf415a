"""Still pictures: a step with its boxes and places as JPEG, and a frame with a grid as PNG."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from costream.draw.canvas import DARK, GREY, WHITE, Canvas, draw_line
from costream.draw.objects import draw_boxes, draw_places
from costream.draw.palette import Palette
from costream.draw.text import line_height, write
from costream.errors import OutputError
from costream.places import Place
from costream.records import Box, PixelSize
from costream.sinks.atomic import part_path

_QUALITY = 85
_CELLS = 10  # of a grid, along each side


def jpeg_of(
    picture: Canvas, source: PixelSize, boxes: Sequence[Box], places: Sequence[Place]
) -> bytes:
    """Return a picture [H, W, 3] as JPEG, with boxes and places of frames of size ``source``."""
    page, palette = picture.copy(), Palette()
    labels = sorted({box.label for box in boxes})
    palette.add(labels, labels, ())
    size = (page.shape[1], page.shape[0])
    draw_places(page, places, source, size)
    draw_boxes(page, boxes, palette.paint, source, size)
    out = io.BytesIO()
    Image.fromarray(page).save(out, "JPEG", quality=_QUALITY)
    return out.getvalue()


def write_grid(path: Path, picture: Canvas, places: Sequence[Place]) -> None:
    """Write a frame as PNG, with a grid of tenths of the picture, and places.

    OutputError when it cannot be written.
    """
    page = picture.copy()
    height, width = page.shape[:2]
    size = max(10, min(height, width) // 45)
    for number in range(1, _CELLS):
        x, y = number * width / _CELLS, number * height / _CELLS
        for start, end in (((x, 0), (x, height)), ((0, y), (width, y))):
            for ink, pen in ((DARK, 2.0), (GREY, 1.0)):
                draw_line(page, np.array(start, float), np.array(end, float), ink, pen)
        for left, top, text in (
            (round(x) + 3, 2, f"{number / _CELLS:g}"),
            (3, round(y) + 2, f"{number / _CELLS:g}"),
            (round(x) + 3, height - line_height(size) - 2, f"{round(x)}"),
            (width - 4 * size, round(y) + 2, f"{round(y)}"),
        ):
            write(page, left + 1, top + 1, text, DARK, size)
            write(page, left, top, text, WHITE, size)
    draw_places(page, places, (width, height), (width, height))
    part = part_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(page).save(part, "PNG")
        os.replace(part, path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OutputError(f"cannot be written ({reason})", where=path) from error
