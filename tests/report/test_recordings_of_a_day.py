"""Reports of sound recordings whose names state when they began: events at times of day."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from pathlib import Path

import pytest

from costream.__main__ import main
from costream.core.moments import moment_in_name
from costream.core.records import Header, Level, Segment, dumps, to_json


@pytest.fixture(autouse=True)
def berlin(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("name", "recorder", "at"),
    [
        ("SM2_20260514_043000.wav", "SM2", "2026-05-14T04:30:00+02:00"),
        ("20260114_043000.WAV", "", "2026-01-14T04:30:00+01:00"),
        ("20260514_043000Z.wav", "", "2026-05-14T04:30:00+00:00"),
        ("yard 2026-05-14T04-30-00.flac", "yard", "2026-05-14T04:30:00+02:00"),
        ("2026-05-14 04.30.00 yard.mp3", "", "2026-05-14T04:30:00+02:00"),
        ("20261314_043000.wav", None, ""),
        ("123420260514_043000.wav", None, ""),
        ("song.mp3", None, ""),
    ],
)
def test_times_in_names_are_read(name, recorder, at):
    found = moment_in_name(name)
    wanted = None if recorder is None else (recorder, datetime.fromisoformat(at).timestamp())
    assert found == wanted


def write(folder: Path, name: str, kind: str = "audio") -> None:
    header = Header("0", "mn04", "0", ("Bird",), None, 1.0, 0.0, f"rec/{name}", kind, 60.0, {})
    levels = [
        Level(float(t), 0.0, -10.0 if 40 <= t <= 50 else -60.0) for t in (*range(0, 60, 10), 52)
    ]
    records = (header, Segment(90.0, 95.5, "Bird", 0.8), *levels)
    (folder / f"{name}.jsonl").write_text("".join(f"{dumps(to_json(r))}\n" for r in records))


def test_recordings_are_shown_at_times_of_day(tmp_path):
    for hour in ("04", "05"):
        write(tmp_path, f"SM2_20260514_{hour}3000.wav")
    assert main(["report", str(tmp_path), "-q"]) == 0
    page = (tmp_path / "report.html").read_text("utf-8")
    starts = sorted({float(s) for s in re.findall(r'"segment", "start": ([\d.]+)', page)})
    assert [datetime.fromtimestamp(s).strftime("%H:%M:%S") for s in starts] == [
        *("04:31:30", "05:31:30"),
    ]
    assert '"feed": "SM2"' in page
    levels = json.loads(page.partition('"levels": ')[2].partition("]")[0] + "]")
    assert [level["unit"] for level in levels] == ["dBA of full scale"] * 2
    # 52 s, of which 20 s at -10 dB; more levels around an event would not make it louder.
    assert [(level["seconds"], level["level"]) for level in levels] == [(52.0, -14.1)] * 2


def test_others_keep_their_report(tmp_path):
    write(tmp_path, "SM2_20260514_043000.wav")
    write(tmp_path, "VID_20260514_053000.mp4", "video")
    assert main(["report", str(tmp_path), "-q"]) == 0
    assert '"feed"' not in (tmp_path / "report.html").read_text("utf-8")
