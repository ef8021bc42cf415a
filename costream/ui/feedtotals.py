"""Totals of each feed, printed as a table at the end of a watch."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from costream.formatting import counted, si
from costream.status import FeedStatus, WatchStatus
from costream.ui.console import is_unicode
from costream.ui.feedtext import display_text, share, state_word, uptime

_COUNTS = ("steps", "dropped", "reconnects", "gaps", "errors", "alerts")


def print_totals(console: Console, status: WatchStatus) -> None:
    """Print the table of the feeds and a line for all of them, from the last status."""
    unicode = is_unicode(console)
    model = display_text(status.model, unicode=unicode)
    feeds = counted(len(status.feeds), "feed")
    _line(console, f"{feeds} watched for {uptime(status.uptime_s)} with {model}", "bold")
    console.print(_table(status.feeds, unicode=unicode))
    for feed in status.feeds:
        if feed.message and feed.state != "live":
            name, why = (display_text(text, unicode=unicode) for text in (feed.name, feed.message))
            _line(console, f"{name}: {feed.state} ({why})", _style(feed))
    parts = [counted(sum(feed.steps for feed in status.feeds), "step")]
    macs, dense = (sum(getattr(f, n) for f in status.feeds) for n in ("macs", "dense_macs"))
    if macs:
        part = share(macs, dense)
        parts.append(si(macs, "MAC") + (f" of {si(dense, 'MAC')} dense ({part})" if part else ""))
    if status.failed_actions:
        parts.append(f"{counted(status.failed_actions, 'action')} of alerts failed")
    _line(console, ", ".join(parts), "dim")


def _table(feeds: tuple[FeedStatus, ...], *, unicode: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("feed", overflow="fold")
    for name in _COUNTS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for feed in feeds:
        counts = [str(getattr(feed, field)) for field in _COUNTS]
        name = display_text(feed.name, unicode=unicode)
        table.add_row(Text(name), *counts, Text(state_word(feed.state), _style(feed)))
    return table


def _style(feed: FeedStatus) -> str:
    return "red" if feed.state == "lost" else ""


def _line(console: Console, text: str, style: str) -> None:
    console.print(Text(text, style), soft_wrap=True)
