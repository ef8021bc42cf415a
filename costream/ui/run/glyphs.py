"""Glyphs of the live view: colours and letters of labels, level meter, spectrogram, skeletons."""

from __future__ import annotations

from functools import cache
from itertools import groupby

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Span, Text

from costream.core.formatting import clean
from costream.draw.audio_meter import AudioMeter
from costream.draw.palette import Palette
from costream.draw.skeleton import Figure

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_FEWEST = 4  # cells of an abbreviated name; below, there is a letter


class Legend:
    """Colours of labels from the palette of their model, and letters for cells too short for names.

    A label gets its letter when it is first shown: its initial if that is free.
    """

    def __init__(self, palette: Palette) -> None:
        self._palette = palette
        self._letters: dict[str, str] = {}

    def color(self, label: str) -> str:
        """Return the style of the label's bars and marks."""
        return self._palette.paint(label).style

    def block(self, label: str) -> str:
        """Return the style of the label's cells on the strip."""
        return self._palette.paint(label).block

    def letter(self, label: str) -> str:
        """Return the letter of the label, which is unique (``+`` if no letter is left)."""
        if label not in self._letters:
            taken = set(self._letters.values())
            free = (c for c in _candidates(label) if c in _LETTERS and c not in taken)
            self._letters[label] = next(free, "+")
        return self._letters[label]

    def cells(self, label: str, width: int, *, unicode: bool) -> str:
        """Return ``width`` cells of a strip: the name, abbreviated, or the letter before blanks."""
        name = clean(label) if unicode else clean(label).encode("ascii", "replace").decode()
        if cell_len(name) <= width:
            return set_cell_size(name, width)
        if width < _FEWEST:
            return set_cell_size(self.letter(label), width)
        return set_cell_size(name, width - 1) + ("…" if unicode else "~")

    def mark(self, label: str) -> tuple[str, str]:
        """Return the letter between blanks and its style, for the line that explains letters."""
        return f" {self.letter(label)} ", self.block(label)


def _candidates(label: str) -> str:
    """Return letters for a label, the best first: for ``stand up`` s, u, S, U, t, a ..."""
    initials = "".join(word[0] for word in label.split())
    return (
        "".join(part for text in (initials, label) for part in (text.lower(), text.upper()))
        + _LETTERS
    )


_FLOOR_DB = -60.0  # left end of the meter
_FULL_DB = -1.0  # from here on the recording is likely to clip
_MARKS = ("█", "━", "│"), ("#", "-", "|")
# From quiet to loud. Silence is the terminal's own background; the others are visible on black
# and on white, so the spectrogram is legible on dark and light terminals.
_SOUND_COLORS = (None, *(Style(color=f"color({k})") for k in (61, 97, 133, 168, 203, 208, 214)))
_ASCII = " .:-=+*#%@"


def level_line(meter: AudioMeter, name: Text, width: int, *, unicode: bool) -> Text:
    """Return the meter, ``width`` wide with its ``name``: level, held peak as a mark, numbers."""
    rms, held = round(meter.rms_db), round(meter.held_db)
    numbers = f" {rms:4d} dBFS, peak {held:3d}" if width >= 60 else f" {rms:4d} dBFS"
    room = max(4, width - name.cell_len - len(numbers))
    full, rest, mark = _MARKS[0] if unicode else _MARKS[1]
    level, peak = _place(meter.rms_db, room), min(_place(meter.held_db, room), room - 1)
    level = min(level, peak)  # not above the peak
    style = "red" if meter.held_db >= _FULL_DB else "yellow"
    line = name.append(full * level, "green").append(rest * (peak - level), "dim")
    return line.append(mark, style).append(rest * (room - peak - 1), "dim").append(numbers)


def spectrum_lines(meter: AudioMeter, width: int, height: int, *, unicode: bool) -> list[Text]:
    """Return the spectrogram as ``height`` lines, time from left to right, the newest last."""
    if not unicode:
        shades = (meter.levels(width, height) * (len(_ASCII) - 0.01)).astype(int).tolist()
        return [Text("".join(_ASCII[level] for level in row)) for row in shades]
    rows = (meter.levels(width, 2 * height) * (len(_SOUND_COLORS) - 0.01)).astype(int)
    if len(rows) % 2:  # fewer bands than rows
        rows = rows.repeat(2, axis=0)
    codes = (rows[0::2] * len(_SOUND_COLORS) + rows[1::2]).tolist()
    return [_line(row) for row in codes[:height]]


def _line(codes: list[int]) -> Text:
    """Return a line of half blocks; a code combines the upper and the lower level."""
    text: list[str] = []
    spans: list[Span] = []
    end = 0
    for code, run in groupby(codes):
        block, style = _cell(code)
        begin, end = end, end + len(list(run))
        text.append(block * (end - begin))
        if style is not None:
            spans.append(Span(begin, end, style))
    return Text("".join(text), spans=spans)


@cache
def _cell(code: int) -> tuple[str, Style | None]:
    above, below = (_SOUND_COLORS[k] for k in divmod(code, len(_SOUND_COLORS)))
    if above is None:
        return (" ", None) if below is None else ("▄", below)
    if below is None:
        return "▀", above
    return ("█", above) if above == below else ("▀", above + Style(bgcolor=below.color))


def _place(db: float, width: int) -> int:
    return round(width * min(1.0, max(0.0, 1 - db / _FLOOR_DB)))


# Unicode numbers the dots of a braille cell [4 rows, 2 columns] in this order.
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
_BLANK = 0x2800


def stick_lines(figure: Figure, rows: int) -> list[str]:
    """Return the persons as ``rows`` lines of ``2 * rows`` characters, which is about a square."""
    side = 4 * rows  # dots, equally spaced across and down
    dots = np.zeros((side, side), np.bool_)
    points = figure.points * (side - 1)
    for person, seen in zip(points, figure.seen, strict=True):
        for a, b in figure.bones:
            if seen[a] and seen[b]:
                way = person[a] + (person[b] - person[a]) * np.linspace(0, 1, side)[:, None]
                x, y = np.rint(way.clip(0, side - 1)).astype(np.intp).T
                dots[y, x] = True
    cells = dots.reshape(rows, 4, 2 * rows, 2).transpose(0, 2, 1, 3)
    codes = _BLANK + (cells * _BITS).sum((2, 3))
    return ["".join(map(chr, row)) for row in codes.tolist()]
