"""Dashboard of a watch: redrawn at the bottom of the terminal, removed when the watch ends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from costream.core.formatting import counted
from costream.core.records import Alert
from costream.core.status import FeedStatus, WatchStatus
from costream.draw.palette import Palette
from costream.ui.run.glyphs import Legend
from costream.ui.screen import Screen, Viewport
from costream.ui.watch.lines import NewAlerts
from costream.ui.watch.rows import (
    STATES,
    FeedRows,
    alert_line,
    display_text,
    fitted,
    health,
    recent_strip,
    uptime,
    watch_palette,
)
from costream.ui.watch.totals import print_totals


class Dashboard:
    """Display of the status of a watch on ``console``.

    ``show`` draws, so it is called a few times a second; there is no thread and nothing to lock.
    ``close`` prints the totals of each feed. Only one may be open at a time.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._board = Board()
        self._status: WatchStatus | None = None
        self._screen = Screen(console)

    def show(self, status: WatchStatus) -> None:
        """Draw the current status."""
        if self._status is None:
            self._screen.open()
        self._status = status
        self._screen.draw(self._board.lines(status, self._screen.viewport))

    def close(self) -> None:
        """Remove the dashboard from the screen and print the totals of each feed."""
        self._screen.close()
        status, self._status = self._status, None
        if status is not None:
            print_totals(self._console, status)


_ALERTS = 5  # maximum number of lines of alerts
_FIXED = 3  # title, names of the columns, totals
_FEWEST_CELLS = 10  # minimum width of a strip in the row of its feed
_RECENT_S = 60  # minimum time shown by a strip in a row
_ROW = 100  # full width of a row; the rest goes to the strip
_ROOM_FOR_STRIP = 60  # minimum width of a row with a strip
_LABEL = 13  # width of a person's label


@dataclass(frozen=True)
class _Seen:
    """An alert and the time of day at which it was first seen here."""

    clock: str
    feed: str
    alert: Alert


class Board:
    """A watch status as lines of text. It remembers labels seen so far and times of alerts."""

    def __init__(self) -> None:
        self._new = NewAlerts()
        self._alerts: deque[_Seen] = deque(maxlen=_ALERTS)
        self._legend = Legend(Palette())  # of no labels
        self._labels: dict[str, None] = {}  # seen so far, in order of appearance

    def lines(self, status: WatchStatus, viewport: Viewport) -> list[Text]:
        """Return at most ``viewport.height`` lines, none wider than ``viewport.width``."""
        clock = time.strftime("%H:%M:%S")
        self._alerts.extend(_Seen(clock, *pair) for pair in self._new.take(status))
        self._learn(status)
        shown, left_out = _chosen(status.feeds, _room(viewport.height))
        more = [_more(left_out, viewport)] if left_out else []
        spare = viewport.height - _FIXED - len(shown) - len(more)
        alerts = self._alert_lines(viewport)
        places = _place_lines(shown, viewport)[: max(0, spare - len(alerts))]
        spare -= len(places)
        persons = self._person_lines(shown, viewport, max(0, spare - len(alerts)))
        spare -= len(persons)
        table, strips = self._feeds(status, shown, viewport, spare - min(1, len(alerts)))
        spare -= len(strips)
        del alerts[max(0, spare) :]
        spare -= len(alerts)
        title = _title(status, viewport)
        groups = [[title], [*table, *more], persons, places, strips, [_totals(status)], alerts]
        lines = _spaced(groups, spare)
        if viewport.height < _FIXED + 2:  # the most important lines only
            lines = [title, *table[1:]]
        for line in lines:
            line.truncate(viewport.width, overflow="ellipsis" if viewport.unicode else "crop")
        return lines[: viewport.height]

    def _learn(self, status: WatchStatus) -> None:
        """Add the labels that are new."""
        if not self._labels:
            self._legend = Legend(watch_palette(status))
        for feed in status.feeds:
            seconds = [status.strips.get(feed.name, ()), *(p.strip for p in feed.persons or ())]
            labels = [feed.active, *(label for strip in seconds for label in strip)]
            self._labels |= dict.fromkeys(label for label in labels if label is not None)

    def _feeds(
        self, status: WatchStatus, feeds: Sequence[FeedStatus], viewport: Viewport, spare: int
    ) -> tuple[list[Text], list[Text]]:
        """Return the table and the lines below it, at most ``spare``: strips and legend.

        The strips are in the rows if a minute fits there or there is no room below.
        """
        names = [feed.name for feed in status.feeds]
        strips = [status.strips.get(feed.name, ()) for feed in feeds]
        longest = max(_RECENT_S, *map(len, status.strips.values())) if status.strips else 0
        cells = min(max(_FEWEST_CELLS, viewport.width - _ROW), longest)
        below = cells < min(longest, _RECENT_S - 1) and spare > len(feeds)
        if below or viewport.width < _ROOM_FOR_STRIP:
            cells = 0
        width = viewport.width - (cells + 1 if cells else 0)
        rows = FeedRows(names, width, unicode=viewport.unicode)
        table = [rows.head(), *(rows.row(feed, self._legend) for feed in feeds)]
        if below:
            return table, self._strips_below(feeds, strips, longest, viewport)
        if not cells:
            return table, []
        each_s = max(1, round(_RECENT_S / cells))
        strips = [strip[-cells * each_s :] for strip in strips]
        table[0].append(f" last {min(longest, cells * each_s)} s"[: cells + 1], "dim")
        for line, strip in zip(table[1:], strips, strict=True):
            cut = recent_strip(strip, self._legend, cells, each_s, unicode=viewport.unicode)
            line.append(" ").append_text(cut)
        legend = self._words(strips, viewport)
        return table, [legend] if legend and spare > 0 else []

    def _strips_below(
        self,
        feeds: Sequence[FeedStatus],
        strips: Sequence[Sequence[str | None]],
        longest: int,
        viewport: Viewport,
    ) -> list[Text]:
        """Return a line for each feed, one cell per second, and the legend.

        Each person has a further line.
        """
        widest = max(cell_len(display_text(feed.name, unicode=viewport.unicode)) for feed in feeds)
        name = min(widest, 24, viewport.width // 3)
        cells = min(longest, viewport.width - name - 1)
        strips = [strip[-cells:] for strip in strips]
        lines = []
        for feed, strip in zip(feeds, strips, strict=True):
            if feed.persons:
                continue
            line = Text(fitted(feed.name, name, unicode=viewport.unicode) + " ")
            cut = recent_strip(strip, self._legend, cells, 1, unicode=viewport.unicode)
            lines.append(line.append_text(cut))
        strips += [person.strip for feed in feeds for person in feed.persons or ()]
        return [*lines, self._words(strips, viewport)]

    def _person_lines(
        self, feeds: Sequence[FeedStatus], viewport: Viewport, most: int
    ) -> list[Text]:
        """Return a line for each person: number, label with its score, and the strip.

        ``most``: lines; the last one counts the persons that do not fit.
        """
        there = [(feed, person) for feed in feeds for person in feed.persons or ()]
        shown = there if len(there) <= most else there[: max(0, most - 1)]
        names = [f"{feed.name} {person.number}" for feed, person in shown]
        widest = max(
            (cell_len(display_text(n, unicode=viewport.unicode)) for n in names), default=0
        )
        width = min(widest, 24, viewport.width // 3)
        lines = []
        for name, (_, person) in zip(names, shown, strict=True):
            label, score = next(iter(person.top), ("", 0.0))
            label = person.active or label
            score = dict(person.top).get(label, score)
            text = f"{fitted(label, _LABEL, unicode=viewport.unicode)} {score:.2f} "
            line = Text(fitted(name, width, unicode=viewport.unicode) + " ")
            line.append(text, "bold" if person.active else "dim")
            cells = min(max(_RECENT_S, len(person.strip)), viewport.width - line.cell_len)
            if cells >= _FEWEST_CELLS:
                strip, unicode = person.strip[-cells:], viewport.unicode
                line.append_text(recent_strip(strip, self._legend, cells, 1, unicode=unicode))
            lines.append(line)
        if len(shown) < len(there) and most:
            lines.append(Text(f"and {counted(len(there) - len(shown), 'more person')}", "dim"))
        return lines

    def _words(self, seconds: Sequence[Sequence[str | None]], viewport: Viewport) -> Text:
        """Return the legend of these strips."""
        there = {label for strip in seconds for label in strip}
        line = Text()
        for label in self._labels:
            if label in there:
                line.append(*self._legend.mark(label))
                line.append(f" {display_text(label, unicode=viewport.unicode)}  ")
        return line

    def _alert_lines(self, viewport: Viewport) -> list[Text]:
        """Return the newest alerts, the newest first."""
        lines = []
        for seen in reversed(self._alerts):
            name = display_text(seen.feed, unicode=viewport.unicode)
            line = Text.assemble((f"{seen.clock}  ", "dim"), (name, "bold"), "  ")
            lines.append(line.append(alert_line(seen.alert, unicode=viewport.unicode), "red"))
        return lines


def _room(height: int) -> int:
    """Return the number of lines for feeds; the legend and two alerts need some as well."""
    return max(1, height - _FIXED - min(3, height // 6))


def _chosen(
    feeds: Sequence[FeedStatus], room: int
) -> tuple[Sequence[FeedStatus], Sequence[FeedStatus]]:
    """Return the feeds to show and those left out; if not all fit, the worst come first."""
    if len(feeds) <= room:
        return feeds, ()
    worst = sorted(feeds, key=lambda feed: STATES.index(feed.state))
    fit = max(1, room - 1)
    return worst[:fit], worst[fit:]


def _more(left_out: Sequence[FeedStatus], viewport: Viewport) -> Text:
    states = {feed.state for feed in left_out}
    what = f"all {states.pop()}" if len(states) == 1 else health(left_out)
    dots = "…" if viewport.unicode else "..."
    is_bad = any(feed.state == "lost" for feed in left_out)
    return Text(f"{dots} and {len(left_out)} more, {what}", "red" if is_bad else "dim")


def _place_lines(feeds: Sequence[FeedStatus], viewport: Viewport) -> list[Text]:
    """Return a line for each feed with places: ``door  hall 2 person, gate 3 in 1 out car``."""
    lines = []
    for feed in feeds:
        parts = [
            f"{count.place} {count.now} {count.label}"
            if count.kind == "zone"
            else f"{count.place} {count.ins} in {count.outs} out {count.label}"
            for count in feed.places
            if count.now or count.kind == "line"
        ]
        if parts:
            name = display_text(feed.name, unicode=viewport.unicode)
            text = display_text(", ".join(parts), unicode=viewport.unicode)
            lines.append(Text.assemble((name, "bold"), f"  {text}"))
    return lines


def _title(status: WatchStatus, viewport: Viewport) -> Text:
    states = {feed.state for feed in status.feeds}
    style = "black on green" if states <= {"live", "ended"} else "black on cyan"
    if states & {"waiting", "stalled"}:
        style = "black on yellow"
    if "lost" in states:
        style = "bold white on red"
    return Text.assemble(
        (f" {health(status.feeds)} ", style),
        f"  up {uptime(status.uptime_s)}",
        (f"  {display_text(status.model, unicode=viewport.unicode)}", "dim"),
    )


def _totals(status: WatchStatus) -> Text:
    feeds = status.feeds
    alerts = sum(feed.alerts for feed in feeds)
    line = Text.assemble((counted(alerts, "alert"), "bold" if alerts else "dim"))
    if status.failed_actions:
        line.append(f"  {counted(status.failed_actions, 'action')} failed", "red")
    dropped, steps_hz = sum(feed.dropped for feed in feeds), sum(feed.steps_hz for feed in feeds)
    rest = f"  {dropped} dropped  {steps_hz:.0f} steps/s  network {100 * status.load:.0f}% busy"
    return line.append(f"{rest}  {status.memory_mb:.0f} MB", "dim")


def _spaced(groups: Sequence[Sequence[Text]], spare: int) -> list[Text]:
    """Return all lines, with blank ones between groups while there are lines to spare."""
    lines: list[Text] = []
    for group in groups:
        if lines and group and spare > 0:
            lines.append(Text(""))
            spare -= 1
        lines += group
    return lines
