"""Events of a watch at times of day, and the page that shows them."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from costream.core.clock import began_of
from costream.core.errors import SourceError
from costream.core.records import AlertNote, AnyRecord, Header, Segment, plain
from costream.sinks.event_search import find_events
from costream.sinks.event_store import event_row
from costream.sinks.result_reader import record_of

# Records that are no events, as their lines begin: most lines of a file. They are not decoded.
_NO_EVENTS = tuple(
    f'{{"type": "{kind}"'.encode() for kind in ("prediction", "objects", "compute", "level")
)
_LONGEST_LINE = 1 << 24  # bytes
_MORE = ("person", "place", "direction", "rule", "clip", "picture", "description")


@dataclass(frozen=True)
class Event:
    """Something that a feed has shown, or that happened to it."""

    feed: str  # its name
    kind: str  # "alert", "segment", "visit", "crossing", "gap" or "error"
    start_s: float  # seconds since 1970
    end_s: float  # the same as the start for what takes no time
    label: str  # what was seen or heard; of gaps and errors: why
    score: float | None = None
    more: dict[str, Any] = field(default_factory=dict)  # further fields of the record

    def to_json(self) -> dict[str, Any]:
        """Return the event as the page reads it; what is unknown is left out."""
        values = {"feed": self.feed, "kind": self.kind, "start": round(self.start_s, 3)}
        values |= {"end": round(self.end_s, 3), "label": self.label}
        if self.score is not None:
            values["score"] = round(self.score, 3)
        return {**values, **{k: v for k, v in plain(self.more).items() if v is not None}}


def event_of(record: AnyRecord, feed: str, began_s: float) -> Event | None:
    """Return the event that a record of a feed states; None if it states none that is over.

    ``began_s``: time of day at 0 s of the run, seconds since 1970.
    """
    row = event_row(record, began_s)
    if row is None or row["ended"] is None:
        return None
    more = {name: row.get(name) for name in _MORE}
    if isinstance(record, Segment):
        more["count"] = record.count
    label, span = row.get("label") or row.get("reason", ""), (row["began"], row["ended"])
    return Event(feed, row["kind"], *span, label, row.get("score"), more)


def known_by(note: AlertNote) -> dict[str, str]:
    """Return the fields of an event that a note adds."""
    values = {"clip": note.clip, "description": note.description}
    return {name: value for name, value in values.items() if value is not None}


def add_note(
    events: MutableSequence[Event], note: AlertNote, feed: str, began_s: float
) -> Event | None:
    """Add a note to its alert, which is one of the newest events; return the alert, if found.

    ``began_s``: as for ``event_of``.
    """
    about = (note.label, note.rule, note.person)
    for k in range(len(events) - 1, -1, -1):
        event = events[k]
        is_near = event.kind == "alert" and abs(event.start_s - began_s - note.time_s) < 1e-3
        of = (event.label, event.more.get("rule"), event.more.get("person"))
        if is_near and event.feed == feed and of == about:
            events[k] = replace(event, more={**event.more, **known_by(note)})
            return events[k]
    return None


def stored_events(path: Path, feeds: Sequence[str], since_s: float, most: int) -> list[Event]:
    """Return the newest events of these feeds in a store. Raises as ``find_events``."""
    found = find_events(path, since_s=since_s, feeds=feeds, newest=most)
    events = []
    for each in found:
        end_s = each.began_s if each.ended_s is None else each.ended_s
        more = {name: getattr(each, name) for name in _MORE}
        label = each.label or each.reason or ""
        events.append(Event(each.feed, each.kind, each.began_s, end_s, label, each.score, more))
    return events


def events_in(path: Path, feed: str) -> list[Event]:
    """Return the events in a file of a watch, in its order; damaged lines are left out.

    Raise SourceError if the file cannot be read.
    """
    began_s: float | None = None
    events: list[Event] = []
    try:
        with path.open("rb") as file:
            for line in iter(lambda: file.readline(_LONGEST_LINE), b""):
                record = None if line.startswith(_NO_EVENTS) else record_of(line)
                if isinstance(record, Header):
                    began_s = began_of(record)
                elif isinstance(record, AlertNote) and began_s is not None:
                    add_note(events, record, feed, began_s)
                elif record is not None and began_s is not None:
                    event = event_of(record, feed, began_s)
                    if event is not None:
                        events.append(event)
    except OSError as error:
        raise SourceError(f"cannot be read ({error.strerror})", where=path) from error
    return events


def event_page(data: Mapping[str, Any], style: str = "") -> tuple[str, str, str]:
    """Return a page for ``data`` in two parts, and its content security policy.

    ``data``: what the script of the page reads. HTML between the two parts is shown below the
    events; ``style``: CSS for it.
    """
    template = files("costream.sinks").joinpath("events.html").read_text("utf-8")
    script = template.partition("<script>")[2].partition("</script>")[0]
    digest = b64encode(sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = (
        "default-src 'none'; img-src 'self' data: file:; connect-src 'self'; "
        f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")  # no text ends the script
    head, _, tail = template.partition("{{BODY}}")
    head = head.replace("{{POLICY}}", policy).replace("{{STYLE}}", style)
    return head, tail.replace("{{DATA}}", text), policy
