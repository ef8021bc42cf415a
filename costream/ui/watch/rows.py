"""Feeds of a watch as the rows of a table of a given width."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from costream.core.formatting import clean, counted, saving, short_time
from costream.core.records import Alert, FeedState
from costream.core.status import FeedStatus, WatchStatus
from costream.core.urls import redact
from costream.draw.palette import Palette
from costream.ui.console import is_unicode, print_line
from costream.ui.run.glyphs import Legend

# The worst first. A feed that ended by itself needs no attention.
STATES: tuple[FeedState, ...] = ("lost", "waiting", "stalled", "connecting", "live", "ended")
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
_COUNTS = ("steps", "dropped", "reconnects", "gaps", "errors", "alerts")  # of the totals
_TOTALS_FIRST = ("reconnects", "errors", "gaps", "alerts", "dropped")  # order of their removal


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


def display_text(text: str, *, unicode: bool = True) -> str:
    """Return ``text`` for display: on one line, without credentials, in ASCII if required."""
    text = clean(redact(text))
    return text if unicode else text.encode("ascii", "replace").decode()


def state_word(state: FeedState) -> str:
    """Return the word for a state; one that needs somebody is in capitals, without colours too."""
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


def print_totals(console: Console, status: WatchStatus) -> None:
    """Print the table of the feeds and a line for all of them, from the last status.

    Nothing if there is nothing to tell: the watch has ended before it began.
    """
    if not any(feed.steps or feed.errors or feed.message for feed in status.feeds):
        return
    unicode = is_unicode(console)
    model = display_text(status.model, unicode=unicode)
    feeds = counted(len(status.feeds), "feed")
    print_line(console, f"{feeds} watched for {uptime(status.uptime_s)} with {model}", "bold")
    console.print(_table(status.feeds, console.width, unicode=unicode))
    for feed in status.feeds:
        if feed.message and feed.state != "live":
            name, why = (display_text(text, unicode=unicode) for text in (feed.name, feed.message))
            print_line(console, f"{name}: {state_word(feed.state).lower()} ({why})", _style(feed))
    if any(feed.seen for feed in status.feeds):
        console.print(_seen_table(status, unicode=unicode))
    elif any(feed.steps for feed in status.feeds):
        print_line(console, "No label was seen.")
    parts = [counted(sum(feed.steps for feed in status.feeds), "step")]
    macs, dense = (sum(getattr(f, n) for f in status.feeds) for n in ("macs", "dense_macs"))
    if less := saving(macs, dense):
        parts.append(f"{less} computation than computing everything anew")
    if status.failed_actions:
        parts.append(f"{counted(status.failed_actions, 'action')} of alerts failed")
    print_line(console, ", ".join(parts), "dim")


_APART = 2  # columns between those of the table


def _table(feeds: tuple[FeedStatus, ...], width: int, *, unicode: bool) -> Table:
    """Return the totals of all feeds; on narrow terminals columns go, never the names."""
    counts = {name: [str(getattr(feed, name)) for feed in feeds] for name in _COUNTS}
    widths = {name: max(map(len, (name, *counts[name]))) + _APART for name in _COUNTS}
    longest = max((cell_len(display_text(feed.name, unicode=unicode)) for feed in feeds), default=0)
    room = width - min(longest, _NAME) - _STATE - 2 * _APART
    for name in _TOTALS_FIRST:
        if sum(widths.values()) > room:
            del widths[name]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("feed", overflow="fold")
    for name in widths:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for k, feed in enumerate(feeds):
        name = display_text(feed.name, unicode=unicode)
        cells = [counts[column][k] for column in widths]
        table.add_row(Text(name), *cells, Text(state_word(feed.state), _style(feed)))
    return table


_MOST_SEEN = 12  # labels of one feed


def _seen_table(status: WatchStatus, *, unicode: bool) -> Table:
    """Return the table of the labels seen by each feed, the most frequent first."""
    table, palette = (
        Table(box=None, padding=(0, 2, 0, 0), header_style="dim"),
        watch_palette(status),
    )
    table.add_column("feed", overflow="fold")
    table.add_column("label seen", overflow="fold")
    table.add_column("times", justify="right", no_wrap=True)
    table.add_column("last until", justify="right", no_wrap=True)
    for feed in status.feeds:
        seen = sorted(feed.seen, key=lambda entry: -entry.count)
        for k, entry in enumerate(seen[:_MOST_SEEN]):
            mark = ("● " if unicode else "* ", palette.paint(entry.label).style)
            label = Text.assemble(mark, display_text(entry.label, unicode=unicode))
            name = display_text(feed.name, unicode=unicode) if k == 0 else ""
            table.add_row(Text(name), label, str(entry.count), short_time(entry.last_s))
        if len(seen) > _MOST_SEEN:
            table.add_row("", Text(f"and {counted(len(seen) - _MOST_SEEN, 'other')}", "dim"))
    return table


def watch_palette(status: WatchStatus) -> Palette:
    """Return the colours of the labels of a watch's model."""
    palette = Palette()
    palette.add(status.labels, status.labels, ())
    return palette


def _style(feed: FeedStatus) -> str:
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
