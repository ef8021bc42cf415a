"""Colours and patterns of labels, consistent wherever a label occurs."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

# No two are closer than 14 in CIEDE2000, also as people with protanopia, deuteranopia or
# tritanopia see them (Machado, Oliveira and Fernandes 2009); tests/report/test_palette.py
# measures it. On a dark page all have a contrast of 3 or more.
COLORS = (
    *("#6c72dc", "#ffa94c", "#0b7350", "#fb607e"),
    *("#73c3b1", "#b02a80", "#627f16", "#caabf7"),
)
PATTERNS = ("plain", "stripes", "dots", "bars")
_SLOTS = len(COLORS) * len(PATTERNS)


@dataclass(frozen=True)
class Paint:
    """Colour and pattern of a label. ``color`` None: background, drawn in the page's grey."""

    color: str | None
    pattern: int = 0  # index into PATTERNS
    ink: str = "#111"  # for letters on top of it


BACKGROUND = Paint(None)


class Palette:
    """Assignment of paints by the index of a label in its model's list, if still free.

    So a label has the same colour in all reports on the same model. With more labels than
    paints, some paints are reused.
    """

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._taken: set[int] = set()

    def add(self, labels: Iterable[str], shown: Iterable[str], backgrounds: Container[str]) -> None:
        """Assign paints to the labels in ``shown``; ``labels`` is the model's whole list."""
        places = {lb: k for k, lb in enumerate(lb for lb in labels if lb not in backgrounds)}
        for label in shown:
            if label not in self._slots and label not in backgrounds:
                self._slots[label] = self._free(places.get(label, len(self._slots)))

    def paint(self, label: str) -> Paint:
        """Return the paint of a label; the background's if none was assigned."""
        slot = self._slots.get(label)
        if slot is None:
            return BACKGROUND
        color = COLORS[slot % len(COLORS)]
        return Paint(color, slot // len(COLORS), _ink(color))

    def _free(self, wish: int) -> int:
        for k in range(_SLOTS):
            slot = (wish + k) % _SLOTS
            if slot not in self._taken:
                self._taken.add(slot)
                return slot
        return wish % _SLOTS


def _ink(color: str) -> str:
    """Return black or white, by contrast with ``color`` (WCAG 2, relative luminance)."""
    parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    light = 0.2126 * r + 0.7152 * g + 0.0722 * b
    return "#fff" if light < 0.179 else "#111"
