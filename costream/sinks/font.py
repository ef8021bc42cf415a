"""Bitmap font of 5 x 7 pixels, to write text on images without a font library."""

from __future__ import annotations

import unicodedata
from functools import cache

import numpy as np
import numpy.typing as npt

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
