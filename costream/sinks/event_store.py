"""``--db``: the events of a watch in an SQLite file, to which several watches may write.

Each event is committed (journal mode WAL) before the next record of its feed is processed, so a
process that is killed loses none. If the file cannot be written, events wait in memory. At its
start, a watch adds what a watch that was killed had written to its result file only.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from costream.core.clock import began_of
from costream.core.errors import OutputError, UsageError
from costream.core.formatting import counted
from costream.core.places import Crossing, ZoneEvent
from costream.core.records import (
    Alert,
    AlertNote,
    AnyRecord,
    Fault,
    Gap,
    Header,
    Record,
    Segment,
    Summary,
    dumps,
    to_json,
)
from costream.core.spelling import folded
from costream.sinks.result_reader import record_of
from costream.sinks.rotation import Rotation, journal_files, oldest_part_s

log = logging.getLogger("costream")

APPLICATION = 0x636F7374  # "cost", in the header of the file
VERSION = 2
_WAIT_S = 0.5  # for another process that is writing
_OPEN_S = 10.0  # the same at the start of a watch
_MOST_WAITING = 10_000  # events in memory while the file cannot be written
_PRUNE_S = 60.0  # interval of deleting old events
_HEADER = b'{"type": "header"'
_LAST = 1000  # lines at the end of a result file in which the newest events are
SCHEMA = """
CREATE TABLE runs (
  id INTEGER PRIMARY KEY,
  feed TEXT NOT NULL,    -- name of the feed
  source TEXT,           -- its address, without credentials
  model TEXT,            -- name of the model
  began REAL NOT NULL,   -- seconds since 1970, UTC; 0 s of the records' times
  ended REAL,            -- NULL: it is running, or was killed
  folder TEXT,           -- of its result files and clips
  pictures TEXT,         -- folder of its pictures
  header TEXT            -- the header record, JSON
);
CREATE TABLE events (
  id INTEGER PRIMARY KEY,
  run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
  kind TEXT NOT NULL,    -- segment, alert, visit, crossing, gap or error
  began REAL NOT NULL,   -- seconds since 1970, UTC
  ended REAL,            -- NULL: a visit that is not over
  label TEXT,
  score REAL,
  model TEXT,            -- of several models
  person INTEGER,        -- number of the person
  object INTEGER,        -- track id of the object
  place TEXT,            -- zone or line
  direction TEXT,        -- of a crossing: in or out
  rule TEXT,             -- of an alert
  reason TEXT,           -- of a gap or an error
  clip TEXT,             -- file in the run's folder
  picture TEXT,          -- file in the run's folder of pictures
  description TEXT,      -- what a model said that the picture shows
  words TEXT NOT NULL,   -- what costream search compares
  key TEXT NOT NULL,     -- the same for the same event
  UNIQUE (run, kind, key)
);
CREATE INDEX events_began ON events (began);
CREATE VIEW segments AS
  SELECT feed, events.began, events.ended, label, score, events.model, person
  FROM events JOIN runs ON run = runs.id WHERE kind = 'segment';
CREATE VIEW alerts AS
  SELECT feed, events.began, events.ended, label, score, rule, place, person, object, clip, picture,
    description
  FROM events JOIN runs ON run = runs.id WHERE kind = 'alert';
CREATE VIEW visits AS
  SELECT feed, events.began, events.ended, label, place, object
  FROM events JOIN runs ON run = runs.id WHERE kind = 'visit';
CREATE VIEW crossings AS
  SELECT feed, events.began, label, place, direction, object
  FROM events JOIN runs ON run = runs.id WHERE kind = 'crossing';
CREATE VIEW gaps AS
  SELECT feed, events.began, events.ended, reason
  FROM events JOIN runs ON run = runs.id WHERE kind = 'gap';
CREATE VIEW clips AS
  SELECT feed, events.began, label, folder || '/' || clip AS file
  FROM events JOIN runs ON run = runs.id WHERE clip IS NOT NULL;
"""
_COLUMNS = (
    *("run", "kind", "began", "ended", "label", "score", "model", "person", "object", "place"),
    *("direction", "rule", "reason", "clip", "picture", "words", "key"),
)
# A visit is written when it begins, and again when it is over.
_INSERT = (
    f"INSERT INTO events ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
    " ON CONFLICT (run, kind, key) DO UPDATE SET ended = coalesce(excluded.ended, ended)"
)
_NOTE = """
UPDATE events SET clip = coalesce(:clip, clip), description = coalesce(:description, description),
  words = words || CASE WHEN description IS NULL THEN :words ELSE '' END
WHERE run = :run AND kind = 'alert' AND abs(began - :began) < 5e-4 AND label IS :label
  AND rule IS :rule AND person IS :person AND object IS :object
"""
_NEWEST = "SELECT max(max(began, coalesce(ended, began))) FROM events WHERE run = ?"
_NEW_RUN = (
    "INSERT INTO runs (feed, source, model, began, folder, pictures, header)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)


def open_store(path: Path, *, readonly: bool = False) -> sqlite3.Connection:
    """Return a connection to the store; a new file gets the tables of SCHEMA.

    Raises UsageError if it is not a store or of a later version, sqlite3.Error or OSError if it
    cannot be opened.
    """
    if readonly:
        base = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", timeout=_WAIT_S, uri=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        base = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
    try:
        _check(base, path, create=not readonly)
    except BaseException:
        base.close()
        raise
    return base


def _check(base: sqlite3.Connection, path: Path, *, create: bool) -> None:
    """Raise UsageError for a file that is not a store; fill a new one."""
    try:
        if create:
            if base.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                base.execute("PRAGMA journal_mode = WAL")
            base.execute("PRAGMA synchronous = NORMAL")
            base.execute("PRAGMA foreign_keys = ON")
            base.execute("BEGIN IMMEDIATE")
            if not base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in SCHEMA.split(";\n"):
                    base.execute(statement)
                base.execute(f"PRAGMA application_id = {APPLICATION}")
                base.execute(f"PRAGMA user_version = {VERSION}")
            base.execute("COMMIT")
        ours = base.execute("PRAGMA application_id").fetchone()[0] == APPLICATION
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        ours = False
    if not ours:
        raise UsageError("not a store of events", where=path, hint="watch --db makes one")
    version = base.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        hint = "use the version of costream that wrote it, or another file"
        raise UsageError(f"a store of another version ({version})", where=path, hint=hint)


def check_store(path: Path) -> None:
    """Create a store, or check that it can be written. Raises UsageError."""
    until_s = time.monotonic() + _OPEN_S
    try:
        while True:
            try:
                open_store(path).close()
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until_s:
                    raise
                time.sleep(0.02)  # others may be creating it
    except (sqlite3.Error, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot be opened ({reason})", where=f"--db {path}") from error


class EventStore:
    """Sink that writes the events of one feed to a store.

    ``folder``: of the feed's result files and clips; ``pictures``: of its pictures. ``rotation``:
    events are kept as long as files. ``clock`` returns the time of day, seconds since 1970. Raises
    UsageError if the file is not a store, or cannot be written.
    """

    def __init__(
        self,
        path: Path,
        feed: str,
        *,
        folder: Path | None = None,
        pictures: Path | None = None,
        rotation: Rotation | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_store(path)
        self._path, self._feed, self._clock = path, feed, clock
        self._folder, self._pictures = folder, pictures
        self._rotation = rotation or Rotation()
        self._base: sqlite3.Connection | None = None
        self._file: os.stat_result | None = None
        self._header: Header | None = None
        self._began_s = 0.0
        self._run: int | None = None
        self._waiting: deque[dict[str, Any]] = deque()
        self._lost = 0  # events that found no room to wait
        self._failure = ""  # why writing fails; "" if it works
        self._prune_s = 0.0  # time of day of the next deletion of old events

    def open(self, header: Header) -> None:
        """Add a run, after what is missing of an earlier one."""
        self._header = header
        self._began_s = began_of(header) or self._clock()
        self._flush()

    def write(self, record: Record) -> None:
        """Write an event; other records are ignored."""
        row = event_row(record, self._began_s) or _note_row(record, self._began_s)
        if row is not None:
            if len(self._waiting) >= _MOST_WAITING:
                self._waiting.popleft()
                self._lost += 1
            self._waiting.append(row)
            self._flush()

    def close(self, summary: Summary) -> None:
        """Write the end of the run. Raises OutputError if events could not be written."""
        self._flush(ended_s=self._clock())
        if self._base is not None:
            with suppress(sqlite3.Error):
                self._base.close()
        if self._waiting or self._lost:
            count = counted(len(self._waiting) + self._lost, "event")
            what = f"{count} could not be written ({self._failure})"
            raise OutputError(what, where=self._path)

    def _flush(self, ended_s: float | None = None) -> None:
        """Write the events that wait, as one transaction each; those that fail wait on."""
        try:
            base, run = self._connected()
            while self._waiting:
                _insert(base, run, self._waiting[0])
                self._waiting.popleft()
            if ended_s is not None:
                base.execute("UPDATE runs SET ended = ? WHERE id = ?", (ended_s, run))
            self._prune(base)
        except (sqlite3.Error, OSError, UsageError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            if not self._failure:
                log.warning("%s: cannot write (%s); events wait in memory", self._path, reason)
            self._failure = reason
            return
        if self._failure:
            log.warning("%s: writing works again; events lost: %d", self._path, self._lost)
        self._failure = ""

    def _connected(self) -> tuple[sqlite3.Connection, int]:
        """Return the connection, and the number of the run. A file that was deleted is replaced."""
        if self._base is not None and self._file is not None:
            try:
                there = os.path.samestat(self._file, os.stat(self._path))
            except FileNotFoundError:
                there = False
            if not there:
                log.warning("%s: was deleted or moved away; a new file is started", self._path)
                self._base.close()
                self._base = self._run = None
        if self._base is None:
            self._base = open_store(self._path)
            self._file = os.stat(self._path)
        if self._run is None:
            self._recover(self._base)
            header = self._header
            assert header is not None
            about = (self._feed, header.source, header.model, self._began_s)
            folders = (
                None if f is None else str(f.resolve()) for f in (self._folder, self._pictures)
            )
            values = (*about, *folders, dumps(to_json(header)))
            self._run = self._base.execute(_NEW_RUN, [*map(_valid, values)]).lastrowid
        assert self._run is not None
        return self._base, self._run

    def _recover(self, base: sqlite3.Connection) -> None:
        """End the runs of this feed that were killed, with the events in its result file only."""
        if self._folder is None:
            return
        killed = base.execute(
            "SELECT id, began FROM runs WHERE feed = ? AND folder = ? AND ended IS NULL",
            (_valid(self._feed), _valid(str(self._folder.resolve()))),
        ).fetchall()
        for run, began_s in killed:
            files = reversed([*journal_files(self._folder, self._feed)])
            for record in _newest_records(files, began_s):
                row = event_row(record, began_s) or _note_row(record, began_s)
                if row is not None:
                    _insert(base, run, row)
            newest = base.execute(_NEWEST, (run,)).fetchone()[0]
            end_s = began_s if newest is None else newest
            base.execute(
                "UPDATE events SET ended = ? WHERE run = ? AND ended IS NULL", (end_s, run)
            )
            base.execute("UPDATE runs SET ended = ? WHERE id = ?", (end_s, run))

    def _prune(self, base: sqlite3.Connection) -> None:
        """Delete the events that are older than the files that are kept."""
        now_s = self._clock()
        if 0 <= self._prune_s - now_s <= _PRUNE_S:
            return
        self._prune_s = now_s + _PRUNE_S
        limits = []
        if self._rotation.keep_s is not None:
            limits.append(now_s - self._rotation.keep_s)
        if self._rotation.keep is not None and self._folder is not None:
            limits.append(oldest_part_s(self._folder, self._feed))
        if not limits:
            return
        old = (_valid(self._feed), max(limits))
        base.execute(
            "DELETE FROM events WHERE run IN (SELECT id FROM runs WHERE feed = ?)"
            " AND coalesce(ended, began) < ?",
            old,
        )
        base.execute(
            "DELETE FROM runs WHERE feed = ? AND ended < ? AND id NOT IN (SELECT run FROM events)",
            old,
        )


def _insert(base: sqlite3.Connection, run: int, row: dict[str, Any]) -> None:
    values = {**row, "run": run}
    if row["kind"] == AlertNote.type:
        base.execute(_NOTE, values)
        return
    base.execute(_INSERT, [values.get(column) for column in _COLUMNS])


def event_row(record: AnyRecord, began_s: float) -> dict[str, Any] | None:
    """Return the columns of ``events`` for a record, without the run; None if it is not an event.

    ``began_s``: time of day, seconds since 1970, at 0 s of the records.
    """
    row: dict[str, Any]
    if isinstance(record, Segment):
        row = _of("segment", record, ("label", "score", "model", "person"))
        row |= {"began": record.start_s, "ended": record.end_s}
    elif isinstance(record, Alert):
        row = _of("alert", record, ("label", "score", "person", "place", "rule", "clip"))
        row |= {"began": record.time_s, "ended": record.time_s}
        row |= {"object": record.id, "picture": record.snapshot}
    elif isinstance(record, ZoneEvent):
        row = _of("visit", record, ("label",))
        row |= {"object": record.id, "place": record.zone}
        row |= {"began": record.time_s - record.dwell_s}
        row |= {"ended": record.time_s if record.event == "leave" else None}
    elif isinstance(record, Crossing):
        row = _of("crossing", record, ("label", "direction"))
        row |= {"object": record.id, "place": record.line}
        row |= {"began": record.time_s, "ended": record.time_s}
    elif isinstance(record, Gap):
        row = _of("gap", record, ("reason",))
        row |= {"began": record.start_s, "ended": record.end_s}
    elif isinstance(record, Fault):
        time_s = record.time_s or 0.0
        row = {"kind": "error", "reason": record.message, "began": time_s, "ended": time_s}
    else:
        return None
    row = {name: _valid(value) for name, value in row.items()}
    same = [row.get(name) for name in ("label", "model", "person", "object", "place", "reason")]
    # A visit is the same from its beginning to its end, however long.
    ended = "" if row["kind"] == "visit" else f"{row['ended']:.3f}"
    same += [row.get("rule"), row.get("direction"), f"{row['began']:.3f}", ended]
    row["key"] = dumps(same)
    row["words"] = words_of(_text(row))
    row["began"] += began_s
    row["ended"] = None if row.get("ended") is None else row["ended"] + began_s
    return row


def _note_row(record: AnyRecord, began_s: float) -> dict[str, Any] | None:
    """Return the values of _NOTE for a note, without the run; None for other records."""
    if not isinstance(record, AlertNote):
        return None
    names = ("label", "rule", "person", "clip", "description")
    row = {**_of(AlertNote.type, record, names), "object": record.id}
    row["words"] = words_of(record.description or "")
    row = {name: _valid(value) for name, value in row.items()}
    return {**row, "began": began_s + record.time_s}


def _of(kind: str, record: AnyRecord, names: tuple[str, ...]) -> dict[str, Any]:
    return {"kind": kind, **{name: getattr(record, name) for name in names}}


def _valid(value: Any) -> Any:
    """Return a value that SQLite can store: text without lone surrogates."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _text(row: dict[str, Any]) -> str:
    """Return an event in words, as a rule would name it: "person in door"."""
    parts = [row["kind"], row.get("label")]
    if row["kind"] == "visit":
        parts += ["in", row["place"]]
    elif row["kind"] == "crossing":
        parts += ["crosses", row["place"], row["direction"]]
    parts += [row.get("rule"), row.get("reason")]
    return " ".join(part for part in parts if part)


def words_of(text: str) -> str:
    """Return the words of a text as they are compared: folded, one blank before each."""
    return re.sub(r"[\W_]+", " ", f" {folded(text)}").rstrip()


def _newest_records(paths: Iterable[Path], began_s: float) -> Iterator[AnyRecord]:
    """Yield the last records that the run which began then has written to one of these files."""
    for path in paths:
        lines: list[bytes] = []
        with (
            suppress(OSError, ValueError),  # ValueError: it is empty
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            lines = _lines_of_run(data, began_s)
        if lines:
            yield from filter(None, map(record_of, lines))
            return


def _lines_of_run(data: mmap.mmap, began_s: float) -> list[bytes]:
    """Return the last lines behind the last header of a run."""
    end = len(data)
    while (begin := data.rfind(_HEADER, 0, end)) >= 0:
        header, *lines = data[begin:end].split(b"\n", 1)
        record = record_of(header)
        if isinstance(record, Header) and abs((began_of(record) or 0.0) - began_s) < 1e-3:
            return lines[0].split(b"\n")[-_LAST:] if lines else []
        end = begin
    return []
