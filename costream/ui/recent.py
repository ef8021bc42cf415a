"""Newest seconds of a feed as a strip of cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from costream.ui.feedtext import display_text
from costream.ui.run.glyphs import Legend


def recent_strip(
    seconds: Sequence[str | None], legend: Legend, width: int, each_s: int, *, unicode: bool
) -> Text:
    """Return ``width`` cells of ``each_s`` seconds each, the newest at the right.

    A run of cells of one label shows its name if it fits, else its letter in every cell. A cell
    without a label is a dot, time before the feed began is blank. A cell of several seconds has
    their most frequent label, and none only if no second has one: short events stay visible.
    """
    begins = range(len(seconds) % each_s - each_s, len(seconds), each_s)
    parts = [seconds[max(0, k) : k + each_s] for k in begins]
    cells = [_most(part) for part in parts if part]
    strip = Text(" " * (width - len(cells)))
    for label, run in groupby(cells):
        length = len(list(run))
        if label is None:
            strip.append(("·" if unicode else ".") * length, "dim")
            continue
        name = display_text(label, unicode=unicode)
        fits = cell_len(name) <= length
        text = set_cell_size(name, length) if fits else legend.letter[label] * length
        strip.append(text, legend.block(label))
    return strip


def _most(labels: Sequence[str | None]) -> str | None:
    counts = Counter(label for label in labels if label is not None)
    return max(counts, key=counts.__getitem__) if counts else None
