"""Reading of the events in a store (``--db``), for ``costream search`` and other readers.

``find_events`` opens the file for reading only, while watches may write to it; each call sees what
was committed before it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from costream.core.clock import utc
from costream.core.errors import SourceError, UsageError
from costream.core.records import plain
from costream.core.schema import schema_of
from costream.sinks.event_store import open_store, words_of

KINDS = ("segment", "alert", "visit", "crossing", "gap", "error")
_TERM = re.compile(r"\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"']+))")


@dataclass(frozen=True)
class StoredEvent:
    """An event of a store. Fields that its kind does not have are None."""

    id: int  # number in the store; later events have higher ones
    feed: str  # name of the feed
    kind: str  # one of KINDS
    began_s: float  # seconds since 1970, UTC
    ended_s: float | None  # None: a visit that is not over
    label: str | None
    score: float | None
    model: str | None  # of several
    person: int | None
    object_id: int | None  # track id
    place: str | None  # zone or line
    direction: str | None  # of a crossing: in or out
    rule: str | None  # of an alert
    reason: str | None  # of a gap or an error
    clip: str | None  # path of the file, which may have been deleted since
    picture: str | None
    description: str | None = None  # of the picture, by a model

    @property
    def title(self) -> str:
        """What happened, in words: ``person in door``, ``car crosses gate in``, ``fall``."""
        if self.kind == "visit":
            return f"{self.label} in {self.place}"
        if self.kind == "crossing":
            return f"{self.label} crosses {self.place} {self.direction}"
        return self.reason or self.label or self.kind

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are not None, with ISO 8601 times in UTC."""
        values: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if name in ("began_s", "ended_s") and value is not None:
                values[name.removesuffix("_s")] = utc(value)
            elif value is not None:
                values[name] = plain(value)
        return values


def event_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of an event, as ``StoredEvent.to_json`` returns it."""
    schema = schema_of(StoredEvent, described=(StoredEvent,))
    found = schema["$defs"]["StoredEvent"]
    for name in ("began", "ended"):
        found["properties"].pop(f"{name}_s")
        found["properties"][name] = {"type": "string", "description": "ISO 8601, UTC"}
    found["required"] = ["id", "feed", "kind", "began"]
    return schema


_SELECT = """
SELECT events.id, feed, kind, events.began, events.ended, label, score, events.model, person,
  object, place, direction, rule, reason, folder, clip, pictures, picture,
  description
FROM events JOIN runs ON run = runs.id
"""


def find_events(
    path: Path,
    query: str = "",
    *,
    since_s: float | None = None,
    until_s: float | None = None,
    feeds: Sequence[str] = (),
    labels: Sequence[str] = (),
    kinds: Sequence[str] = (),
    newest: int | None = None,
) -> list[StoredEvent]:
    """Return the events of a store in the order of their starts.

    ``query``: words and quoted phrases, which must occur at the beginnings of words of an event, in
    any order; ``or`` separates alternatives, ``not`` excludes the next one. Words of an event are
    its kind, label, place, rule, reason and description. ``since_s``, ``until_s``: seconds since
    1970; an event that overlaps this time is among them. ``feeds``, ``labels``, ``kinds``: only
    these; () for all. ``newest``: only so many of the newest ones.

    Raises SourceError if the file cannot be read, UsageError if it is not a store or for a query
    with an open quote.
    """
    condition, values = _condition(query)
    conditions = [condition] if condition else []
    for bound, text in (
        (since_s, "coalesce(events.ended, 1e12) >= ?"),
        (until_s, "events.began < ?"),
    ):
        if bound is not None:
            conditions.append(text)
            values.append(bound)
    columns = (("feed", feeds), ("label COLLATE NOCASE", labels), ("kind", kinds))
    for column, wanted in columns:
        if wanted:
            conditions.append(f"{column} IN ({', '.join('?' * len(wanted))})")
            values += wanted
    where = f" WHERE {' AND '.join(f'({each})' for each in conditions)}" if conditions else ""
    limit = "" if newest is None else f" LIMIT {newest}"
    rows = _rows(
        path, f"{_SELECT}{where} ORDER BY events.began DESC, events.id DESC{limit}", values
    )
    return [_event(row) for row in reversed(rows)]


def stored_feeds(path: Path) -> list[str]:
    """Return the names of the feeds in a store. Raises as ``find_events``."""
    return [row[0] for row in _rows(path, "SELECT DISTINCT feed FROM runs ORDER BY feed", [])]


def _rows(path: Path, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    if not path.is_file():
        raise SourceError("no such file", where=path, hint="watch --db FILE makes a store")
    try:
        with closing(open_store(path, readonly=True)) as base:
            return base.execute(statement, values).fetchall()
    except sqlite3.Error as error:
        raise SourceError(f"cannot be read ({error})", where=path) from error


def _event(row: tuple[Any, ...]) -> StoredEvent:
    *values, folder, clip, pictures, picture, description = row
    files = _joined(folder, clip), _joined(pictures, picture)
    return StoredEvent(*(*values, *files, description))


def _joined(folder: str | None, name: str | None) -> str | None:
    return name if folder is None or name is None else str(Path(folder) / name)


def _condition(query: str) -> tuple[str, list[Any]]:
    """Return a condition for a query, and its values; "" for an empty one."""
    groups: list[list[str]] = [[]]
    values: list[Any] = []
    negated = False
    for text, quoted in _terms(query):
        word = "" if quoted else text.lower()
        if word == "or":
            groups.append([])
        elif word == "not":
            negated = True
        elif word != "and":
            pattern = re.sub(r"([%_\\])", r"\\\1", words_of(text))
            groups[-1].append(f"words {'NOT ' if negated else ''}LIKE ? ESCAPE '\\'")
            values.append(f"%{pattern}%")
            negated = False
    wanted = [" AND ".join(group) for group in groups if group]
    return " OR ".join(f"({group})" for group in wanted), values


def _terms(query: str) -> Iterator[tuple[str, bool]]:
    """Yield the words and phrases of a query, and whether they are quoted."""
    at, end = 0, len(query.rstrip())
    while at < end:
        match = _TERM.match(query, at)
        if match is None:
            hint = "write phrases in quotes, as in 'fall or \"person in door\"'"
            raise UsageError("expected a closing quote", where=f"query {query!r}", hint=hint)
        double, single, word = match.groups()
        text = word or double or single or ""
        if words_of(text):
            yield text, word is None
        at = match.end()
