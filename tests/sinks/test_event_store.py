"""A store of events: what search finds, several writers, kills, and files that are not stores."""

from __future__ import annotations

import json
import logging
import os
import random
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from costream.core.clock import utc
from costream.core.errors import OutputError, SourceError, UsageError
from costream.core.moments import parse_moment
from costream.core.places import Crossing, ZoneEvent
from costream.core.records import Alert, AlertNote, Fault, Gap, Header, Prediction, Segment, Summary
from costream.sinks.event_search import find_events, stored_feeds
from costream.sinks.event_store import EventStore, check_store
from costream.sinks.journal import Journal
from costream.sinks.rotation import Rotation
from kit.program import environment

CHILD = [sys.executable, str(Path(__file__).with_name("keep_store.py"))]
NOON = 1_795_521_600.0  # 2026-11-24T12:00:00Z
DAY_S = 86_400.0
HEADER = Header("0", "m", "0", ("a",), None, 1.0, 0.0, "rtsp://***@x", "video", None, {})
SUMMARY = Summary(1, 0, 0, 0, 1.0, 1.0, 1.0, 1, 1, True, 0)
VISIT = ZoneEvent(20.0, "front door", "enter", "person", 7, 0.0, 1, 1, 0)
RECORDS = (
    Prediction(0, 0.0, 0, None, (("a", 0.5),)),
    Segment(1.0, 5.0, "Fall", 0.9),
    Alert(3.0, "fall>=0.8 for 2s", "Fall", 0.91, 1.0, clip="c.mkv", snapshot="c.jpg"),
    VISIT,
    Crossing(21.0, "gate", "in", "car", 8, 1, 0),
    Gap(30.0, 40.0, "the camera is off"),
    Fault(45.0, "damaged: 3 frames"),
    AlertNote(3.0, "fall>=0.8 for 2s", "Fall", description="A man lies on the floor."),
    AlertNote(3.0, "fall>=0.8 for 2s", "Fall", person=3, description="Another alert's."),
    replace(VISIT, time_s=50.0, event="dwell", dwell_s=30.0),
    replace(VISIT, time_s=52.5, event="leave", dwell_s=32.5, now=0, left=1),
)


def store(path: Path, feed: str = "cam", began_s: float = NOON, **more) -> EventStore:
    sink = EventStore(path, feed, **more)
    sink.open(replace(HEADER, began=utc(began_s)))
    return sink


def filled(path: Path, feed: str = "cam", began_s: float = NOON, **more) -> Path:
    sink = store(path, feed, began_s, **more)
    for record in RECORDS:
        sink.write(record)
    sink.close(SUMMARY)
    return path


def titles(path: Path, query: str = "", **more) -> list[str]:
    return [f"{event.kind} {event.title}" for event in find_events(path, query, **more)]


def test_each_event_is_found_once_with_its_times_and_files(tmp_path):
    path = filled(tmp_path / "e.sqlite", folder=tmp_path, pictures=tmp_path / "p")
    events = find_events(path)
    assert [event.kind for event in events] == [
        *("segment", "alert", "visit", "crossing", "gap", "error"),
    ]
    assert [event.began_s - NOON for event in events] == [1.0, 3.0, 20.0, 21.0, 30.0, 45.0]
    visit, alert = events[2], events[1]
    assert (visit.ended_s, visit.object_id, visit.label) == (NOON + 52.5, 7, "person")
    assert alert.clip == str(tmp_path / "c.mkv")
    assert alert.picture == str(tmp_path / "p" / "c.jpg")
    assert alert.description == "A man lies on the floor."


@pytest.mark.parametrize(
    ("query", "kinds"),
    [
        ("fall", "segment alert"),
        ("FALL alert", "alert"),
        ("fall not alert", "segment"),
        ('"person in front door" or gate', "visit crossing"),
        ("'person in door'", ""),
        ("door person", "visit"),
        ("oor", ""),  # not the beginning of a word
        ("gap or error", "gap error"),
        ("0.8", "alert"),
        ("%", "segment alert visit crossing gap error"),  # nothing but signs: no condition
        ("camera", "gap"),
        ("floor", "alert"),
    ],
)
def test_a_query_finds_words_phrases_and_alternatives(query, kinds, tmp_path):
    path = filled(tmp_path / "e.sqlite")
    assert [event.kind for event in find_events(path, query)] == kinds.split()


def test_events_are_selected_by_time_feed_and_label(tmp_path):
    path = filled(tmp_path / "e.sqlite")
    filled(path, "other", NOON + DAY_S)
    assert stored_feeds(path) == ["cam", "other"]
    assert len(find_events(path, feeds=["other"])) == 6
    assert titles(path, labels=["car"], until_s=NOON + DAY_S) == ["crossing car crosses gate in"]
    assert titles(path, since_s=NOON + 51, until_s=NOON + 60) == ["visit person in front door"]
    assert [event.feed for event in find_events(path, newest=7)] == ["cam"] + 6 * ["other"]
    with pytest.raises(UsageError, match="closing quote"):
        find_events(path, '"fall')


def test_a_visit_that_is_not_over_has_no_end(tmp_path):
    sink = store(tmp_path / "e.sqlite")
    sink.write(VISIT)
    [visit] = find_events(tmp_path / "e.sqlite")  # while the watch is running
    assert visit.ended_s is None
    sink.close(SUMMARY)


def written_events(folder: Path, feed: str) -> set[tuple[str, float]]:
    """Return the kinds and times of day of the events in the files of a feed."""
    found, began_s = set(), 0.0
    for path in [*folder.glob(f"{feed}.*.jsonl"), folder / f"{feed}.jsonl"]:
        for line in path.read_text("utf-8").splitlines():
            record = json.loads(line)
            if record["type"] == "header":
                began = record["began"].replace("Z", "+00:00")
                began_s = datetime.fromisoformat(began).timestamp()
            elif record["type"] != "summary":
                found.add((record["type"], round(began_s + record["start_s"], 3)))
    return found


def test_a_run_that_was_killed_and_its_visits_are_ended_by_the_next(tmp_path):
    path = tmp_path / "e.sqlite"
    for began_s in (NOON, NOON + DAY_S):  # the first is killed, the second is running
        sink = store(path, began_s=began_s, folder=tmp_path)
        sink.write(VISIT)
        sink.write(Segment(21.0, 25.0, "a", 0.9))
    first, second = (event.ended_s for event in find_events(path, "visit"))
    assert (first, second) == (NOON + 25.0, None)
    sink.close(SUMMARY)


@pytest.mark.long
def test_kills_lose_no_event_and_store_and_files_agree(tmp_path):
    """Two processes write to one store, are killed at random moments, and started again."""
    began_s = {"cam": NOON, "hall": NOON + 0.5}
    for kill in range(3):
        writers = {
            feed: subprocess.Popen(
                [*CHILD, str(tmp_path), feed, str(at + kill * DAY_S)],
                stdout=subprocess.PIPE,
                env=environment(),
            )
            for feed, at in began_s.items()
        }
        for writer in writers.values():
            assert writer.stdout.readline()
        time.sleep(random.uniform(0.0, 0.15))
        for writer in writers.values():
            writer.kill()
            writer.wait()
            writer.stdout.close()
    for feed in began_s:  # what a watch does when it starts
        sinks = (
            Journal(tmp_path, feed),
            EventStore(tmp_path / "events.sqlite", feed, folder=tmp_path),
        )
        for sink in sinks:
            sink.open(replace(HEADER, began=utc(NOON + 9 * DAY_S)))
        for sink in sinks:
            sink.close(SUMMARY)
        written = written_events(tmp_path, feed)
        events = find_events(tmp_path / "events.sqlite", feeds=[feed])
        stored = {(event.kind, round(event.began_s, 3)) for event in events}
        assert len(written) > 50
        assert stored == written
        assert len(events) == len(stored)
    with sqlite3.connect(tmp_path / "events.sqlite") as base:
        assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_old_events_are_deleted_with_the_files(tmp_path):
    path = filled(tmp_path / "e.sqlite")
    filled(path, "other")
    late = filled(path, began_s=NOON + 5 * DAY_S)
    kept = Rotation.parse(None, "2d", stored=True)
    sink = store(late, rotation=kept, clock=lambda: NOON + 6 * DAY_S)
    assert {event.began_s > NOON + DAY_S for event in find_events(path, feeds=["cam"])} == {True}
    assert len(find_events(path, feeds=["other"])) == 6
    sink.close(SUMMARY)
    (tmp_path / "cam.2026-11-29T13-00-00.jsonl").write_text("")  # begins 1 h after those
    store(path, folder=tmp_path, rotation=Rotation(size=1, keep=10**9), clock=lambda: NOON).close(
        SUMMARY
    )
    assert find_events(path, feeds=["cam"]) == []


def test_events_wait_while_the_store_cannot_be_written(tmp_path, caplog):
    path = tmp_path / "e.sqlite"
    sink = store(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with caplog.at_level(logging.WARNING):
        sink.write(RECORDS[1])
    assert "locked" in caplog.text
    assert find_events(path) == []
    other.execute("COMMIT")
    sink.write(RECORDS[2])
    assert [event.kind for event in find_events(path)] == ["segment", "alert"]
    other.execute("BEGIN IMMEDIATE")
    sink.write(RECORDS[3])
    with pytest.raises(OutputError, match="1 event could not be written"):
        sink.close(SUMMARY)
    other.close()


def test_a_store_that_was_deleted_is_made_again(tmp_path):
    path = tmp_path / "sub" / "e.sqlite"
    sink = store(path)
    sink.write(RECORDS[1])
    for file in path.parent.iterdir():
        file.unlink()
    sink.write(RECORDS[2])
    sink.close(SUMMARY)
    assert [event.kind for event in find_events(path)] == ["alert"]


def test_what_is_not_a_store_is_refused(tmp_path):
    text, foreign, later = (tmp_path / name for name in ("text", "foreign", "later"))
    text.write_text("text, longer than a header of SQLite" * 9)
    sqlite3.connect(foreign).execute("CREATE TABLE runs (id)").connection.close()
    check_store(later)
    sqlite3.connect(later).execute("PRAGMA user_version = 9").connection.close()
    for path, words in (
        (text, "not a store"),
        (foreign, "not a store"),
        (later, "r.version"),
    ):
        for use in (check_store, find_events):
            with pytest.raises(UsageError, match=words):
                use(path)
    with pytest.raises(SourceError, match="no such file"):
        find_events(tmp_path / "none")
    if os.geteuid():
        tmp_path.chmod(0o500)
        with pytest.raises(UsageError, match="cannot be opened"):
            check_store(tmp_path / "none")


def test_hostile_names_and_words_are_stored_and_found(tmp_path):
    path = tmp_path / "e.sqlite"
    sink = store(path, "ca'm\"; DROP TABLE runs; -- \udcff")
    label = "Ärger 'x' %_\\ \udcff"
    sink.write(Segment(0.0, 1.0, label, float("nan")))
    sink.close(SUMMARY)
    assert len(find_events(path, "ärger not 'y'")) == len(find_events(path)) == 1


def test_duckdb_reads_a_store(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    path = filled(tmp_path / "e.sqlite")
    base = duckdb.connect()
    try:
        base.execute(f"ATTACH '{path}' AS e (TYPE sqlite)")
    except duckdb.Error as error:
        pytest.skip(f"DuckDB without its extension for SQLite: {error}")
    assert base.execute("SELECT label FROM e.segments").fetchall() == [("Fall",)]
    target = tmp_path / "s.parquet"
    base.execute(f"COPY e.visits TO '{target}'")
    assert base.execute(f"SELECT place FROM '{target}'").fetchall() == [("front door",)]


@pytest.mark.parametrize(
    ("text", "ago_s"),
    [
        ("now", 0),
        ("today", 10 * 3600),
        ("yesterday", 34 * 3600),
        ("2h", 7200),
        ("7d", 7 * 86400),
        ("9:30", 1800),
        ("22:00", 12 * 3600),
        ("2026-11-28", 34 * 3600),
        ("2026-11-28 22:00", 12 * 3600),
        ("2026-11-29T09:00:00Z", 3600),
    ],
)
def test_moments_are_read(text, ago_s, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    now = datetime(2026, 11, 29, 10)
    assert parse_moment(text, "--since", now) == (now - timedelta(seconds=ago_s)).timestamp()


@pytest.mark.parametrize("text", ["", "soon", "25:00", "2026-13-01", "1e400", "-2h"])
def test_what_is_no_moment_is_an_error(text):
    with pytest.raises(UsageError, match="--since: not a moment"):
        parse_moment(text, "--since")
