"""Text on images, in DejaVu Sans (a part of it is in ``fonts``, with its licence).

Other scripts are written in a font of this machine, if it has one of those named here.
"""

from __future__ import annotations

import math
import unicodedata
from functools import cache, lru_cache
from itertools import accumulate, groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from costream.draw.palette import Color

_FONT = Path(__file__).with_name("fonts") / "DejaVuSans-Latin-Greek-Cyrillic.ttf"
# For what it lacks: Linux (with Noto, WenQuanYi or Droid fonts), Windows, macOS.
_OTHERS = (
    *("DejaVuSans.ttf", "NotoSansCJK-Regular.ttc", "wqy-zenhei.ttc", "DroidSansFallbackFull.ttf"),
    *("msgothic.ttc", "msyh.ttc", "malgun.ttf", "arial.ttf"),
    *("PingFang.ttc", "Hiragino Sans GB.ttc", "Arial Unicode.ttf"),
)
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
    parts = [
        (_font(size, number), "".join(characters))
        for number, characters in groupby(plain_text(text), lambda c: _font_of(c) or 0)
    ]
    widths = [font.getlength(part) for font, part in parts]
    image = Image.new("L", (math.ceil(sum(widths)), line_height(size)))
    draw, baseline = ImageDraw.Draw(image), _font(size).getmetrics()[0]
    for (font, part), x in zip(parts, accumulate(widths, initial=0.0), strict=False):
        draw.text((x, baseline), part, 255, font, anchor="ls")
    return np.asarray(image)


def plain_text(text: str) -> str:
    """Return ``text`` on one line, with characters that no font has replaced.

    Letters lose their accents, other characters become ``?``.
    """
    line = unicodedata.normalize("NFC", " ".join(text.split()))
    return "".join(c if _font_of(c) is not None else _substitute(c) for c in line)


def _substitute(character: str) -> str:
    parts = unicodedata.normalize("NFKD", character)
    drawable = (c for c in parts if _font_of(c) is not None and not unicodedata.combining(c))
    return "".join(drawable) or "?"


@cache
def _font_of(character: str) -> int | None:
    """Return the number of the first font that has a character; None if none has."""
    if not character.isprintable():
        return None
    return next((k for k in range(len(_fonts())) if _has(_font(16, k), character)), None)


def _has(font: ImageFont.FreeTypeFont, character: str) -> bool:
    return bytes(font.getmask(character)) != bytes(font.getmask("\uffff"))


@cache
def _fonts() -> list[str]:
    """Return the fonts to look for a character in: ours, then those that this machine has."""
    return [str(_FONT), *filter(_is_here, _OTHERS)]


def _is_here(name: str) -> bool:
    try:
        ImageFont.truetype(name, 16)  # looks in the folders of this operating system
    except OSError:
        return False
    return True


@cache
def _font(size: int, number: int = 0) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(_fonts()[number], size, layout_engine=ImageFont.Layout.BASIC)
