"""Colours of labels, the same in terminals, reports, pictures and videos."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from costream.core.records import Header, heads_of

Color = tuple[int, int, int]  # red, green, blue

# No two of the first eight are closer than 14 in CIEDE2000, also as people with protanopia,
# deuteranopia or tritanopia see them (Machado, Oliveira and Fernandes 2009), and no two of all
# closer than 7; tests/draw/test_palette.py measures it. On a dark page all have a contrast of 3
# or more.
COLORS = (
    *("#6c72dc", "#ffa94c", "#0b7350", "#fb607e"),
    *("#73c3b1", "#b02a80", "#627f16", "#caabf7"),
    *("#b8d088", "#58a0b8", "#f03018", "#d02858"),
    *("#8828e8", "#8858a0", "#28a040", "#b87088"),
)
PATTERNS = ("plain", "stripes", "dots", "bars")
_OF_A_PATTERN = 8  # labels; reports draw patterns, terminals and videos cannot
_SLOTS = _OF_A_PATTERN * len(PATTERNS)
_GREY = "#808080"  # of the background, halfway between black and white


@dataclass(frozen=True)
class Paint:
    """Colour and pattern of a label. ``color`` None: the background, which is grey."""

    color: str | None
    pattern: int = 0  # index into PATTERNS
    ink: str = "#111111"  # for letters on top of it

    @property
    def rgb(self) -> Color:
        """The colour as numbers."""
        return rgb_of(self.color or _GREY)

    @property
    def style(self) -> str:
        """The colour as a style of rich, for bars and marks on a terminal."""
        return self.color or _GREY

    @property
    def block(self) -> str:
        """The style of rich for letters on the colour."""
        return f"{self.ink} on {self.style}"


BACKGROUND = Paint(None)


class Palette:
    """Assignment of paints by the index of a label in its model's list, if still free.

    The background has no index. A label has the same colour wherever its model is shown; with
    more labels than paints, some paints are reused.
    """

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._taken: set[int] = set()

    @classmethod
    def of(cls, header: Header) -> Palette:
        """Return the palette of all labels of a run."""
        palette, backgrounds = cls(), {head.background for head in heads_of(header).values()}
        palette.add(header.labels, header.labels, backgrounds)
        return palette

    def add(
        self, labels: Iterable[str], shown: Iterable[str], backgrounds: Container[str | None]
    ) -> None:
        """Assign paints to the labels in ``shown``; ``labels``: all labels of the model."""
        events = dict.fromkeys(label for label in labels if label not in backgrounds)
        places = {label: k for k, label in enumerate(events)}
        for label in shown:
            if label not in self._slots and label not in backgrounds:
                self._slots[label] = self._free(places.get(label, len(self._slots)))

    def paint(self, label: str) -> Paint:
        """Return the paint of a label; the background's if none was assigned."""
        slot = self._slots.get(label)
        if slot is None:
            return BACKGROUND
        color = COLORS[slot % len(COLORS)]
        return Paint(color, slot // _OF_A_PATTERN, _ink(color))

    def _free(self, wish: int) -> int:
        """Return a free slot: if possible of the colour of ``wish``, with another pattern."""
        count = len(COLORS)
        for k in (other + begin for other in range(count) for begin in range(0, _SLOTS, count)):
            slot = (wish + k) % _SLOTS
            if slot not in self._taken:
                self._taken.add(slot)
                return slot
        return wish % _SLOTS


def rgb_of(color: str) -> Color:
    """Return the numbers of a colour ``#rrggbb``."""
    red, green, blue = bytes.fromhex(color[1:])
    return red, green, blue


def _ink(color: str) -> str:
    """Return black or white, by contrast with ``color`` (WCAG 2, relative luminance)."""
    parts = [part / 255 for part in rgb_of(color)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    light = 0.2126 * r + 0.7152 * g + 0.0722 * b
    return "#ffffff" if light < 0.179 else "#111111"
