"""Feeds of a watch as the rows of a table of a given width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from costream.status import FeedState, FeedStatus
from costream.ui.feedtext import (
    count5,
    display_text,
    figure4,
    fitted,
    score_of,
    seconds5,
    share,
    state_word,
    trouble,
)
from costream.ui.run.glyphs import Legend

_STYLES: dict[FeedState, str] = {
    "lost": "bold white on red",
    "waiting": "black on yellow",
    "stalled": "black on yellow",
    "connecting": "cyan",
    "live": "green",
    "ended": "dim",
}

# name of a column -> its width, its text
_COLUMNS: dict[str, tuple[int, Callable[[FeedStatus], str]]] = {
    "drops": (5, lambda feed: count5(feed.dropped)),
    "recon": (5, lambda feed: count5(feed.reconnects)),
    "fps": (4, lambda feed: figure4(feed.frames_hz)),
    "lag": (5, lambda feed: seconds5(feed.lag_s)),
    "macs": (4, lambda feed: share(feed.macs, feed.dense_macs)),
    "ms": (4, lambda feed: figure4(feed.network_ms) if feed.steps else ""),
}
_LIVE_ONLY = ("fps", "lag", "macs", "ms")  # replaced by the reason if the feed is not live
_LAST_FIRST = ("ms", "macs", "recon", "drops", "fps", "lag")  # order of removal on narrow terminals

_STATE = 10  # the longest is "connecting"
_NAME, _MOST_NAME = 10, 24
_NOW, _MOST_NOW = 13, 28
_SCORE = 5


class FeedRows:
    """Layout of the columns, computed once for ``width``; ``names``: those of all feeds."""

    def __init__(self, names: Sequence[str], width: int, *, unicode: bool) -> None:
        self.width = width
        self._unicode = unicode
        longest = max((cell_len(display_text(name, unicode=unicode)) for name in names), default=0)
        self._name, self._now = max(len("feed"), min(longest, _NAME)), _NOW
        self.columns = list(_COLUMNS)
        for column in _LAST_FIRST:
            if width < self._least():
                self.columns.remove(column)
        if width < self._least():
            self._now = 0
        if width < self._least():
            self._name = max(1, width - _STATE - 1)
        self._name += max(0, min(min(longest, _MOST_NAME) - self._name, width - self._least()))
        if self._now:
            self._now += max(0, min(_MOST_NOW - _NOW, width - self._least()))

    def head(self) -> Text:
        """Return the names of the columns."""
        words = [set_cell_size("feed", self._name), f"{'state':<{_STATE}}"]
        words += [f"{column:>{_COLUMNS[column][0]}}" for column in self.columns]
        words += [f"{'now':<{self._now}}"] if self._now else []
        return Text.assemble((set_cell_size(" ".join(words), self.width), "dim"))

    def row(self, feed: FeedStatus, legend: Legend) -> Text:
        """Return the row of one feed, ``width`` wide."""
        style = _STYLES[feed.state]
        base = style if feed.state in ("lost", "ended") else ""  # of the whole row
        name = fitted(feed.name, self._name, unicode=self._unicode)
        word = f"{state_word(feed.state):<{_STATE}}"
        line = Text.assemble((f"{name} ", base), (word, style), (" ", base))
        columns = self.columns
        if feed.state != "live":
            columns = [column for column in columns if column not in _LIVE_ONLY]
        cells = (f"{value(feed):>{width}} " for width, value in map(_COLUMNS.__getitem__, columns))
        line.append("".join(cells), base)
        if feed.state != "live":
            why = Text(" " + trouble(feed, unicode=self._unicode))
            left = max(0, self.width - line.cell_len)
            why.truncate(left, overflow="ellipsis" if self._unicode else "crop", pad=True)
            line.append(why.plain, base)
        elif self._now:
            self._append_now(line, feed, legend)
        line.truncate(self.width, pad=True)
        return line

    def _append_now(self, line: Text, feed: FeedStatus, legend: Legend) -> None:
        """Append the label and its score; the score of an active one is a bar behind the text."""
        best = score_of(feed)
        if best is None:
            return
        label, score = best
        number = " " * _SCORE if score is None else f"{score:>{_SCORE}.2f}"
        width = self._now - _SCORE
        text = fitted(label, width, unicode=self._unicode)
        if feed.active is None:
            line.append(text + number, "dim")
            return
        full = set_cell_size(text, round(min(1.0, max(0.0, score or 0.0)) * width))
        line.append(full, legend.block(label)).append(text[len(full) :] + number, "bold")

    def _least(self) -> int:
        """Return the width of a row with the current columns."""
        widths = [self._name, _STATE, *(_COLUMNS[column][0] for column in self.columns)]
        widths += [self._now] if self._now else []
        return sum(widths) + len(widths) - 1
