"""The totals of each feed, printed when a watch has ended."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from costream.core.formatting import counted, saving, short_time
from costream.core.status import FeedStatus, WatchStatus
from costream.ui.console import is_unicode, print_line
from costream.ui.watch.rows import (
    display_text,
    state_style,
    state_word,
    uptime,
    watch_palette,
)

_COUNTS = ("steps", "dropped", "reconnects", "gaps", "errors", "alerts")
_REMOVED_FIRST = ("reconnects", "errors", "gaps", "alerts", "dropped")  # on narrow terminals
_APART = 2  # blanks between the columns
_MOST_SEEN = 12  # labels of one feed


def print_totals(console: Console, status: WatchStatus) -> None:
    """Print the table of the feeds and a line for all of them, from the last status.

    Prints nothing if the watch ended before its first step.
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
            print_line(
                console, f"{name}: {state_word(feed.state).lower()} ({why})", state_style(feed)
            )
    if any(feed.seen for feed in status.feeds):
        console.print(_seen_table(status, unicode=unicode))
    elif any(feed.steps for feed in status.feeds):
        print_line(console, "No label was seen.")
    parts = [counted(sum(feed.steps for feed in status.feeds), "step")]
    macs, dense = (sum(getattr(f, n) for f in status.feeds) for n in ("macs", "dense_macs"))
    if less := saving(macs, dense):
        parts.append(f"{less} computation than without continual inference")
    if status.failed_actions:
        parts.append(f"{counted(status.failed_actions, 'action')} of alerts failed")
    print_line(console, ", ".join(parts), "dim")


def _table(feeds: tuple[FeedStatus, ...], width: int, *, unicode: bool) -> Table:
    """Return the totals of all feeds.

    Where the terminal is too narrow for the names, columns are left out: zeros first.
    """
    counts = {name: [str(getattr(feed, name)) for feed in feeds] for name in _COUNTS}
    widths = {name: max(map(len, (name, *counts[name]))) + _APART for name in _COUNTS}
    longest = max((cell_len(display_text(feed.name, unicode=unicode)) for feed in feeds), default=0)
    words = max((len(state_word(feed.state)) for feed in feeds), default=0)
    room = width - min(longest, width // 2) - words - 2 * _APART
    for name in sorted(_REMOVED_FIRST, key=lambda name: any(n != "0" for n in counts[name])):
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
        table.add_row(Text(name), *cells, Text(state_word(feed.state), state_style(feed)))
    return table


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
