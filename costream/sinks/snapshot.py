"""Still pictures: a step as JPEG, a frame with a grid, and a page to click places on."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
from PIL import Image

from costream.core.errors import OutputError
from costream.core.places import NO_NAME, Place
from costream.core.records import Box, PixelSize
from costream.draw.box_overlay import draw_boxes, draw_places
from costream.draw.canvas import DARK, GREY, WHITE, Canvas, draw_line
from costream.draw.lettering import line_height, write
from costream.draw.palette import Palette
from costream.sinks.atomic import replace_file

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
    out = io.BytesIO()
    Image.fromarray(page).save(out, "PNG")
    _write(path, out.getvalue())


def write_zones_page(path: Path, picture: Canvas, places: Sequence[Place], source: str) -> None:
    """Write a page with a frame on which places are clicked; ``source``: the feed's address.

    The page is one file without any links. Raises OutputError if it cannot be written.
    """
    size = (picture.shape[1], picture.shape[0])
    image = base64.b64encode(jpeg_of(picture, size, (), ())).decode("ascii")
    data = {
        "image": f"data:image/jpeg;base64,{image}",
        "width": size[0],
        "height": size[1],
        "source": source,
        "no_name": NO_NAME.pattern,
        "places": [
            {"name": place.name, "kind": place.kind, "points": place.within(size).tolist()}
            for place in places
        ],
    }
    text = json.dumps(data).replace("<", "\\u003c")  # so that no text ends the script
    page = files("costream.sinks").joinpath("zones.html").read_text("utf-8")
    _write(path, page.replace("DATA", text, 1).encode("utf-8"))


def _write(path: Path, data: bytes) -> None:
    try:
        replace_file(path, data)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OutputError(f"cannot be written ({reason})", where=path) from error
