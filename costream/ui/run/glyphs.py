"""Legend of the labels of a head: colour, letter and width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len

from costream.formatting import clean

# Black letters on these can be read on dark and light terminals alike.
_COLORS = ("green", "yellow", "cyan", "magenta", "blue", "red", "bright_green", "bright_cyan")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


class Legend:
    """Colours and letters, assigned once per run. ``first``: colours taken by other heads."""

    def __init__(self, labels: Iterable[str], events: Sequence[str], first: int = 0) -> None:
        self._color = {label: _COLORS[(first + k) % len(_COLORS)] for k, label in enumerate(events)}
        self.letter = _letters(events)
        self.width = max((cell_len(clean(label)) for label in labels), default=0)

    def color(self, label: str) -> str:
        """Return the colour of an event; '' for anything else."""
        return self._color.get(label, "")

    def block(self, label: str) -> str:
        """Return the style of the label's cells on the strip."""
        return f"black on {self._color[label]}"


def _letters(labels: Sequence[str]) -> dict[str, str]:
    """Return a unique letter for each label: one of its name if any is free."""
    out: dict[str, str] = {}
    taken: set[str] = set()
    for label in labels:
        own = [c for c in label.lower() + label.upper() if c in _LETTERS]
        letter = next((c for c in [*own, *_LETTERS] if c not in taken), "+")
        out[label] = letter
        taken.add(letter)
    return out
