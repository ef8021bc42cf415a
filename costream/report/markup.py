"""HTML and SVG from values. All that is not ``Html`` is escaped: labels and names are data."""

from __future__ import annotations

import html
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import TypeAlias

# Joiners, needed by some scripts and emoji; other invisible characters could reverse a line or
# hide text.
_JOINERS = "\u200c\u200d"
_VOID = {"img", "meta", "br", "link"}
_SELF_CLOSING = {"rect", "path", "line", "circle", "use"}


class Html(str):
    """Text that is markup."""

    __slots__ = ()


Child: TypeAlias = "str | Iterable[Html] | None"


def text(value: str) -> Html:
    """Return ``value`` escaped, on one line, without invisible characters."""
    if value.isprintable():  # the usual case; curves are long
        return Html(html.escape(value, quote=True))
    line = "".join(" " if c.isspace() else c for c in value)
    shown = "".join(c if c.isprintable() or c in _JOINERS else "\ufffd" for c in line)
    return Html(html.escape(shown, quote=True))


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """Return an element.

    Of attribute names, ``_`` at the end is dropped and other ``_`` become ``-``; those that are
    None or False are left out, True has no value.
    """
    parts = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(key)
        elif value is not None and value is not False:
            parts.append(f'{key}="{value if isinstance(value, Html) else text(str(value))}"')
    opening = " ".join(parts)
    if name in _VOID:
        return Html(f"<{opening}>")
    inner = join(*children)
    if not inner and name in _SELF_CLOSING:
        return Html(f"<{opening}/>")
    return Html(f"<{opening}>{inner}</{name}>")


def join(*children: Child) -> Html:
    """Return the children, concatenated."""
    out: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            out.append(child)
        elif isinstance(child, str):
            out.append(text(child))
        else:
            out.extend(child)
    return Html("".join(out))


def name(value: str) -> Html:
    """Return a label or file name, isolated from the text direction around it."""
    return tag("bdi", value)


def note(words: str) -> Html | None:
    """Return a remark in small letters; None if there is nothing to say."""
    return tag("p", words, class_="note") if words else None


def unlisted(count: int) -> Html | None:
    """Return the remark that ``count`` more are not listed; None if there are none."""
    return note(f"{count:,} more are not listed." if count > 0 else "")


def folded(words: str, inner: Html) -> Html:
    """Return content that is shown on demand, under ``words``."""
    return tag("details", tag("summary", words), inner)


def percent(share: float) -> str:
    """Return a share of 1 in per cent."""
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"


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
