"""Drawing of dots, areas and text on images: uint8 [H, W, 3] arrays, changed in place.

Coordinates are pixels, x to the right and y down; anything outside is clipped.
"""

from __future__ import annotations

import math
import unicodedata
from functools import cache

import numpy as np
import numpy.typing as npt

from costream.draw.skeleton import Figure

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


# Bitmap font of 5 x 7 pixels, to write text on images without a font library.

WIDTH, HEIGHT = 5, 7
# One character: seven rows from top to bottom, two hexadecimal digits each, the highest of five
# bits at the left. From space to tilde.
_TEXT = """
00000000000000 04040404040004 0A0A0A00000000 0A0A1F0A1F0A0A 040F140E051E04 18190204081303
0C12140815120D 06020400000000 02040808080402 08040202020408 04150E1F0E1504 0004041F040400
00000000060204 0000001F000000 0000000000060C 00010204081000
0E11131519110E 040C040404040E 0E11010204081F 1F02040201110E 02060A121F0202 1F101E0101110E
0608101E11110E 1F010204080808 0E11110E11110E 0E11110F01020C
00060600060600 00060600060204 02040810080402 00001F001F0000 08040201020408 0E110102040004
0E11010D15150E
0E11111F111111 1E11111E11111E 0E11101010110E 1C12111111121C 1F10101E10101F 1F10101E101010
0E11101711110F 1111111F111111 0E04040404040E 0702020202120C 11121418141211 1010101010101F
111B1515111111 11111915131111 0E11111111110E 1E11111E101010 0E11111115120D 1E11111E141211
0F10100E01011E 1F040404040404 1111111111110E 11111111110A04 1111111515150A 11110A040A1111
1111110A040404 1F01020408101F
0E08080808080E 00100804020100 0E02020202020E 040A1100000000 0000000000001F 08040200000000
00000E010F110F 10101619111E00 00000E1010110E 01010D1311110F 00000E111F100E 0609081C080808
000F11110F010E 10101619111111 04000C0404040E 0200060202120C 10101214181412 0C04040404040E
00001A15151111 00001619111111 00000E1111110E 00001E111E1010 00000D130F0101 00001619101010
00000E100E011E 08081C08080906 0000111111130D 00001111110A04 0000111115150A 0000110A040A11
000011110F010E 00001F0204081F
02040408040402 04040404040404 08040402040408 00000815020000
"""
_ROWS = _TEXT.split()
_UNKNOWN = ord("?") - ord(" ")


def text_width(text: str, scale: int = 1) -> int:
    """Return the width in pixels of ``text``."""
    return max(0, scale * ((WIDTH + 1) * len(plain_text(text)) - 1))


def text_mask(text: str, scale: int = 1) -> npt.NDArray[np.bool_]:
    """Return the ink mask of ``text``, bool [7 * scale, text_width]."""
    mask = np.zeros((HEIGHT, text_width(text)), np.bool_)
    for k, character in enumerate(plain_text(text)):
        mask[:, (WIDTH + 1) * k : (WIDTH + 1) * k + WIDTH] = _glyph(character)
    return mask.repeat(scale, 0).repeat(scale, 1)


def plain_text(text: str) -> str:
    """Return ``text`` in ASCII on one line: without accents, other characters replaced by ?."""
    parts = unicodedata.normalize("NFKD", " ".join(text.replace("ß", "ss").split()))
    return "".join(c if " " <= c <= "~" else "?" for c in parts if not unicodedata.combining(c))


@cache
def _glyph(character: str) -> npt.NDArray[np.bool_]:
    k = ord(character) - ord(" ")
    rows = bytes.fromhex(_ROWS[k if 0 <= k < len(_ROWS) else _UNKNOWN])
    return np.array([[row >> (WIDTH - 1 - x) & 1 for x in range(WIDTH)] for row in rows], np.bool_)
