"""Feeds of a watch as the rows of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from costream.core.formatting import clean, counted
from costream.core.records import Alert, FeedState
from costream.core.status import FeedStatus, WatchStatus
from costream.core.urls import redact
from costream.draw.palette import Palette
from costream.ui.run.glyphs import Legend

# The worst first. A feed that ended by itself needs no attention.
STATES: tuple[FeedState, ...] = (
    *("lost", "waiting", "stalled", "connecting", "live", "off", "ended"),
)
_STYLES: dict[FeedState, str] = {
    "lost": "bold white on red",
    "waiting": "black on yellow",
    "stalled": "black on yellow",
    "connecting": "cyan",
    "live": "green",
    "off": "dim",
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
STATE_WIDTH = 10  # the longest is "connecting"
NAME_WIDTH = 10
_MOST_NAME = 24
_NOW = 13
_MOST_NOW = 28
_SCORE = 5


class FeedRows:
    """Layout of the columns, computed once for ``width``; ``names``: of all feeds."""

    def __init__(self, names: Sequence[str], width: int, *, unicode: bool) -> None:
        self.width = width
        self._unicode = unicode
        longest = max((cell_len(display_text(name, unicode=unicode)) for name in names), default=0)
        self._name, self._now = max(len("feed"), min(longest, NAME_WIDTH)), _NOW
        self.columns = list(_COLUMNS)
        for column in _LAST_FIRST:
            if width < self._least():
                self.columns.remove(column)
        if width < self._least():
            self._now = 0
        if width < self._least():
            self._name = max(1, width - STATE_WIDTH - 1)
        self._name += max(0, min(min(longest, _MOST_NAME) - self._name, width - self._least()))
        if self._now:
            self._now += max(0, min(_MOST_NOW - _NOW, width - self._least()))

    def head(self) -> Text:
        """Return the names of the columns."""
        words = [set_cell_size("feed", self._name), f"{'state':<{STATE_WIDTH}}"]
        words += [f"{column:>{_COLUMNS[column][0]}}" for column in self.columns]
        words += [f"{'now':<{self._now}}"] if self._now else []
        return Text.assemble((set_cell_size(" ".join(words), self.width), "dim"))

    def row(self, feed: FeedStatus, legend: Legend) -> Text:
        """Return the row of one feed, ``width`` wide."""
        style = _STYLES[feed.state]
        base = style if feed.state in ("lost", "off", "ended") else ""  # of the row
        name = fitted(feed.name, self._name, unicode=self._unicode)
        word = f"{state_word(feed.state):<{STATE_WIDTH}}"
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
        widths = [self._name, STATE_WIDTH, *(_COLUMNS[column][0] for column in self.columns)]
        widths += [self._now] if self._now else []
        return sum(widths) + len(widths) - 1


def display_text(text: str, *, unicode: bool = True) -> str:
    """Return ``text`` for display: on one line, without credentials, in ASCII if required."""
    text = clean(redact(text))
    return text if unicode else text.encode("ascii", "replace").decode()


def state_word(state: FeedState) -> str:
    """Return the word for a state, in capitals if it needs attention."""
    return "GIVEN-UP" if state == "lost" else state


def fitted(text: str, width: int, *, unicode: bool = True) -> str:
    """Return ``text`` for display in ``width`` columns.

    A long text keeps its end as well: names of cameras often differ in the last digit only.
    """
    text = display_text(text, unicode=unicode)
    if cell_len(text) <= width or width < 6:
        return set_cell_size(text, width)
    end = set_cell_size(text[::-1], width // 3).rstrip()[::-1]
    mark = "…" if unicode else "~"
    return set_cell_size(text, width - cell_len(end) - 1) + mark + end


def uptime(seconds: float) -> str:
    """Return a duration as ``01:02:03``, or ``6d 01:02:03`` from one day on."""
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    days, hours = divmod(minutes // 60, 24)
    clock = f"{hours:02d}:{minutes % 60:02d}:{rest:02d}"
    return f"{days}d {clock}" if days else clock


def age(seconds: float) -> str:
    """Return a duration as ``12 s``, or ``00:02:05`` from two minutes on."""
    return f"{max(0.0, seconds):.0f} s" if seconds < 119.5 else uptime(seconds)


def count5(number: int) -> str:
    """Return a count in at most five characters: exact up to 99999, then ``123k``, ``12M``."""
    for least, size, prefix in ((10**10, 10**9, "G"), (10**7, 10**6, "M"), (10**5, 10**3, "k")):
        if number >= least:
            return f"{number // size}{prefix}"
    return str(number)


def seconds5(seconds: float) -> str:
    """Return a lag in at most five characters: ``0.12s``, ``12.3s``, ``123s``, ``1.5h``, ``9d``."""
    if seconds >= 999.5:
        hours = seconds / 3600
        return f"{hours:.1f}h" if hours < 99.95 else f"{hours / 24:.0f}d"
    return f"{figure4(seconds)}s"


def figure4(number: float) -> str:
    """Return a number below 10000 in at most four characters: ``0.52``, ``25.0``, ``410``."""
    decimals = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{decimals}f}"


def share(macs: float, dense_macs: float) -> str:
    """Return the operations spent in per cent of the dense model's; '' if unknown."""
    if dense_macs <= 0:
        return ""
    percent = 100 * macs / dense_macs
    return f"{percent:.1f}%" if percent < 9.95 else f"{percent:.0f}%"


def trouble(feed: FeedStatus, *, unicode: bool = True) -> str:
    """Return how long a feed has not been live, and why; '' if unknown."""
    away_s = feed.away_s if feed.age_s is None else feed.age_s
    since = "" if away_s is None or feed.state == "ended" else f"for {age(away_s)}"
    return ": ".join(part for part in (since, display_text(feed.message, unicode=unicode)) if part)


def health(feeds: Iterable[FeedStatus]) -> str:
    """Return ``3/4 live, 1 waiting``: the number of live feeds, and of the others by state."""
    counts = Counter(feed.state for feed in feeds)
    rest = [f"{counts[s]} {state_word(s).lower()}" for s in STATES if s != "live" and counts[s]]
    return ", ".join([f"{counts['live']}/{counts.total()} live", *rest])


def score_of(feed: FeedStatus) -> tuple[str, float | None] | None:
    """Return the active label, else the most probable one, with its score if known."""
    if feed.active is not None:
        return feed.active, dict(feed.top).get(feed.active)
    return feed.top[0] if feed.top else None


def status_line(status: WatchStatus) -> str:
    """Return all feeds on one line: ``up 01:02:03  feeds 3/4 live  lag 0.12 s  dropped 0  ...``.

    The lag is the maximum of the live feeds.
    """
    feeds = status.feeds
    lag_s = max((feed.lag_s for feed in feeds if feed.state == "live"), default=0.0)
    parts = [f"up {uptime(status.uptime_s)}", f"feeds {health(feeds)}", f"lag {lag_s:.2f} s"]
    parts.append(f"dropped {sum(feed.dropped for feed in feeds)}")
    parts.append(f"alerts {sum(feed.alerts for feed in feeds)}")
    if status.failed_actions:
        parts.append(f"{counted(status.failed_actions, 'action')} failed")
    return "  ".join(parts)


def alert_line(alert: Alert, *, unicode: bool = True) -> str:
    """Return ``fall 0.92 (fall>=0.8 for 2s), clip door-3.mkv``."""
    clip = "" if alert.clip is None else f", clip {alert.clip}"
    text = f"{alert.label} {alert.score:.2f} ({alert.rule}){clip}"
    return display_text(text, unicode=unicode)


def watch_palette(status: WatchStatus) -> Palette:
    """Return the colours of the labels of a watch's model."""
    palette = Palette()
    palette.add(status.labels, status.labels, ())
    return palette


def state_style(feed: FeedStatus) -> str:
    """Return the style of the state of a feed in the totals."""
    return "red" if feed.state == "lost" else ""


def recent_strip(
    seconds: Sequence[str | None], legend: Legend, width: int, each_s: int, *, unicode: bool
) -> Text:
    """Return ``width`` cells of ``each_s`` seconds each, the newest at the right.

    A run of cells of one label shows its name, abbreviated if need be, or its letter. A cell
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
        else:
            name = redact(label)
            strip.append(legend.cells(name, length, unicode=unicode), legend.block(label))
    return strip


def _most(labels: Sequence[str | None]) -> str | None:
    counts = Counter(label for label in labels if label is not None)
    return max(counts, key=counts.__getitem__) if counts else None
