"""``costream search``: find events of watches in their store."""

from __future__ import annotations

import csv
import os
import sys
from datetime import datetime
from pathlib import Path

import click

from costream.cli.click_command import Command
from costream.cli.printing import print_json, print_table
from costream.core.errors import UsageError, say
from costream.core.formatting import short_time
from costream.core.moments import parse_moment
from costream.options.click_options import json_option, option
from costream.options.completers import file_names
from costream.sinks.event_search import StoredEvent, find_events, stored_feeds
from costream.sinks.tables import csv_cell

_STORE = "events.sqlite"
_COLUMNS = ("time", "feed", "kind", "what", "length", "score", "clip", "picture", "description")


@click.command(cls=Command)
@click.argument("query", required=False, default="")
@option(
    "--db",
    heading="Input",
    default=_STORE,
    metavar="FILE",
    shell_complete=file_names,
    help="Store that 'costream watch --db' wrote.",
)
@option(
    "--feed", heading="Selection", multiple=True, metavar="NAME", help="Only this feed. Repeatable."
)
@option(
    "--label",
    heading="Selection",
    multiple=True,
    metavar="LABEL",
    help="Only this label. Repeatable.",
)
@option(
    "--since",
    heading="Selection",
    metavar="MOMENT",
    help="From then on: today, yesterday, 22:00, 2h (ago), 7d, 2026-11-28, '2026-11-28 22:00'.",
)
@option("--until", heading="Selection", metavar="MOMENT", help="Up to then.")
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
def command(
    query: str,
    db: str,
    feed: tuple[str, ...],
    label: tuple[str, ...],
    since: str | None,
    until: str | None,
    as_json: bool,
    as_csv: bool,
) -> int:
    """Find events that 'costream watch --db' has stored.

    QUERY is words that must all occur, in any order: of the kind, label, zone, line, rule, reason
    or description. "..." is a phrase, 'or' separates alternatives, 'not' excludes. Without QUERY
    all events are printed, in the order of their times, with clips and pictures if they still
    exist.

    \b
    costream search 'fall or "person in door"' --since yesterday --feed cam1
    costream search alert --since 22:00 --db /var/lib/costream/events.sqlite
    costream search gap --since 7d --csv > gaps.csv
    """
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other")
    path = Path(db)
    since_s = None if since is None else parse_moment(since, "--since")
    until_s = None if until is None else parse_moment(until, "--until")
    events = find_events(path, query, since_s=since_s, until_s=until_s, feeds=feed, labels=label)
    if as_json:
        print_json([event.to_json() for event in events])
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows([csv_cell(cell) for cell in _cells(event)] for event in events)
    elif events:
        _print(events)
    if not events:
        say(f"no event found; feeds in {path}: {', '.join(stored_feeds(path)) or 'none'}")
    return 0


def _print(events: list[StoredEvent]) -> None:
    """Print a table without the columns that are empty."""
    rows = [_COLUMNS, *map(_cells, events)]
    used = [k for k in range(len(_COLUMNS)) if any(row[k] for row in rows[1:])]
    print_table([tuple(row[k] for k in used) for row in rows])


def _cells(event: StoredEvent) -> tuple[str, ...]:
    began = datetime.fromtimestamp(event.began_s)
    length = ""
    if event.ended_s is None:
        length = "not over"
    elif event.ended_s > event.began_s:
        length = short_time(event.ended_s - event.began_s)
    what = event.title if event.kind != "alert" else f"{event.title}: {event.rule}"
    score = "" if event.score is None else f"{event.score:.2f}"
    last = (_shown(event.clip), _shown(event.picture), event.description or "")
    return (f"{began:%Y-%m-%d %H:%M:%S}", event.feed, event.kind, what, length, score, *last)


def _shown(file: str | None) -> str:
    """Return a path, relative if that is shorter; "missing" if it does not exist (any more)."""
    if file is None:
        return ""
    if not os.path.exists(file):
        return "missing"
    near = os.path.relpath(file)
    return near if len(near) < len(file) else file
