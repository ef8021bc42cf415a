"""costream search: tables with local times, JSON, CSV and mistakes."""

from __future__ import annotations

import csv
import io
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from costream.__main__ import main
from costream.core.records import Alert, Header, Segment, Summary
from costream.sinks.event_store import EventStore

HEADER = Header("0", "m", "0", ("a",), None, 1.0, 0.0, "rtsp://x", "video", None, {})
SUMMARY = Summary(1, 0, 0, 0, 1.0, 1.0, 1.0, 1, 1, True, 0)


@pytest.fixture
def store(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    path = tmp_path / "events.sqlite"
    sink = EventStore(path, "door", folder=tmp_path)
    sink.open(replace(HEADER, began="2026-11-29T21:00:00Z"))
    (tmp_path / "c.mkv").write_bytes(b"")
    sink.write(Alert(2.0, "fall>=0.8", "fall", 0.91, 1.0, clip="c.mkv", snapshot=None))
    sink.write(Alert(3.0, "=1+1", "=1+1 \x1b[31m", 0.9, 1.0, clip="gone.mkv"))
    sink.write(Segment(1.0, 66.5, "fall", float("nan")))
    sink.close(SUMMARY)
    monkeypatch.chdir(tmp_path)
    yield path
    monkeypatch.undo()
    time.tzset()


def test_the_table_has_local_times_and_files(store, capsys):
    assert main(["search"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["time", "feed", "kind", "what", "length", "score", "clip"]
    cells = ["2026-11-29", "22:00:01", "door", "segment", "fall", "1:05.5"]  # without a score
    assert lines[1].split() == cells
    assert lines[2].split()[-2:] == ["0.91", "c.mkv"]
    assert lines[3].endswith("missing")
    assert "\x1b" not in "".join(lines)


def test_json_and_csv_hold_the_same_events(store, capsys):
    assert main(["search", "alert", "--json", "--label", "FALL"]) == 0
    (event,) = json.loads(capsys.readouterr().out)
    assert (event["began"], event["feed"]) == ("2026-11-29T21:00:02.000Z", "door")
    assert event["clip"] == str(store.parent / "c.mkv")
    assert main(["search", "alert", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["what"][:4] for row in rows] == ["fall", "'=1+"]  # no formula


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["nothing"], 0, "no event found; feeds in events.sqlite: door"),
        (["'open"], 2, "expected a closing quote"),
        (["--since", "soon"], 2, "not a moment: 'soon'"),
        (["--db", "none.sqlite"], 4, "none.sqlite: no such file"),
        (["--json", "--csv"], 2, "exclude each other"),
    ],
)
def test_mistakes_are_one_line(args, code, words, store, capsys):
    assert main(["search", *args]) == code
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1
