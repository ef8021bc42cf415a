"""Text on images, in DejaVu Sans (a part of it is in ``fonts``, with its licence)."""

from __future__ import annotations

import math
import unicodedata
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from costream.draw.palette import Color

_FONT = Path(__file__).with_name("fonts") / "DejaVuSans-Latin-Greek-Cyrillic.ttf"
_KEPT = 256  # masks of texts: most are drawn again on the next picture


def write(
    canvas: npt.NDArray[np.uint8], x: int, y: int, text: str, color: Color, size: int
) -> None:
    """Write one line of text with its upper left corner at ``x``, ``y``, ``size`` pixels high."""
    mask = text_mask(text, size)
    page = canvas[max(0, y) : max(0, y + mask.shape[0]), max(0, x) : max(0, x + mask.shape[1])]
    ink = mask[max(0, -y) :, max(0, -x) :][: page.shape[0], : page.shape[1], None]
    ink = ink.astype(np.uint16)
    page[:] = (page * (255 - ink) + np.array(color, np.uint16) * ink + 127) // 255


def text_width(text: str, size: int) -> int:
    """Return the width of ``text`` in pixels."""
    return int(text_mask(text, size).shape[1])


def line_height(size: int) -> int:
    """Return the height of a line of text in pixels."""
    return sum(_font(size).getmetrics())


def fit_text(text: str, width: float, size: int) -> str:
    """Return ``text``, shortened to fit into ``width`` pixels; '' if nothing does."""
    if text_width(text, size) <= width:
        return text
    fitting = (f"{text[:k].rstrip()}…" for k in range(len(text) - 1, 0, -1))
    return next((cut for cut in fitting if text_width(cut, size) <= width), "")


@lru_cache(_KEPT)
def text_mask(text: str, size: int) -> npt.NDArray[np.uint8]:
    """Return the coverage of each pixel by ``text``, 0 to 255, [line_height, text_width]."""
    font, shown = _font(size), plain_text(text)
    image = Image.new("L", (math.ceil(font.getlength(shown)), line_height(size)))
    ImageDraw.Draw(image).text((0, 0), shown, 255, font)
    return np.asarray(image)


def plain_text(text: str) -> str:
    """Return ``text`` on one line, with characters that the font lacks replaced.

    Letters lose their accents, other characters become ``?``.
    """
    line = unicodedata.normalize("NFC", " ".join(text.split()))
    return "".join(c if _is_known(c) else _substitute(c) for c in line)


def _substitute(character: str) -> str:
    parts = unicodedata.normalize("NFKD", character)
    return "".join(c for c in parts if _is_known(c) and not unicodedata.combining(c)) or "?"


@cache
def _is_known(character: str) -> bool:
    if not character.isprintable():
        return False
    font = _font(16)
    return bytes(font.getmask(character)) != bytes(font.getmask("\uffff"))


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(_FONT), size, layout_engine=ImageFont.Layout.BASIC)
