"""A journal survives: kills, full disks, other runs, the hour, and whoever deletes it."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from costream.core.errors import ExitCode, OutputError, UsageError
from costream.core.records import Gap, Header, Prediction, Segment, Summary
from costream.sinks.journal import Journal
from costream.sinks.rotation import Rotation, parts
from kit.program import environment

CHILD = [sys.executable, str(Path(__file__).with_name("keep_journal.py"))]
ENV = environment()
NOON = 1_795_521_600.0  # 2026-11-24T12:00:00Z
HEADER = Header("0", "m", "0", ("a",), None, 1.0, 0.0, "rtsp://***@x", "video", None, {"top_k": 3})
SUMMARY = Summary(1, 0, 0, 0, 1.0, 1.0, 1.0, 1, 1, True, 0)

Records = list[dict[str, Any]]


class Clock:
    """A time of day that goes when it is told to."""

    def __init__(self, now_s: float = NOON) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def step(i: int) -> Prediction:
    return Prediction(i, float(i), i, None, (("a", 0.5),))


def read(path: Path) -> Records:
    text = path.read_bytes()
    assert text.endswith(b"\n")
    return [json.loads(line) for line in text.splitlines()]


def kinds(path: Path) -> list[str]:
    return [record["type"] for record in read(path)]


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("[!.]*"))


def opened(directory: Path, rotation: Rotation | None = None, clock: Any = time.time) -> Journal:
    journal = Journal(directory, "cam", rotation, clock=clock)
    journal.open(HEADER)
    return journal


def test_each_line_is_there_at_once(run: Any, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "log", "kamera ä")
    journal.open(replace(run.header, source="caf\udce9"))
    for count, record in enumerate(run.records, 2):
        journal.write(record)
        assert len(read(journal.path)) == count
    journal.close(run.summary)
    assert kinds(journal.path)[-1] == "summary"
    assert files(tmp_path / "log") == ["kamera ä.jsonl"]


def test_runs_follow_one_another(tmp_path: Path) -> None:
    for i in range(3):
        journal = opened(tmp_path)
        journal.write(step(i))
        journal.close(SUMMARY)
    assert kinds(journal.path) == ["header", "prediction", "summary"] * 3
    headers = [r for r in read(journal.path) if r["type"] == "header"]
    assert [h["options"]["top_k"] for h in headers] == [3, 3, 3]
    assert len({h["options"]["part"] for h in headers}) == 1  # when the file was begun


@pytest.mark.parametrize("left", ["", "{", '{"type": "gap", "start_s": 1', "\0" * 200_000])
@pytest.mark.parametrize("before", ["", '{"type": "gap", "start_s": 1.0, "end_s": 2.0}\n'])
def test_half_a_line_is_cut_off(before: str, left: str, tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "cam.jsonl"
    path.write_text(before + left)
    opened(tmp_path).close(SUMMARY)
    assert kinds(path) == [*(["gap"] if before else []), "header", "summary"]
    assert ("incomplete last line removed" in caplog.text) == bool(left)


def runs_in(paths: list[Path]) -> list[list[int]]:
    """Return the numbers of the predictions of each run, in the order of the files."""
    runs: list[list[int]] = []
    for path in paths:
        records = read(path)
        assert records[0]["type"] == "header"
        for record in records:
            if record["type"] == "prediction":
                if record["i"] == 0:
                    runs.append([])
                runs[-1].append(record["i"])
    return runs


@pytest.mark.slow
def test_killed_at_any_moment_it_is_readable_and_nothing_is_lost(tmp_path: Path) -> None:
    """While the files of some 400 records are made parts; what was taken is what is read."""
    chance, taken = random.Random(6), []
    command = [*CHILD, "for-ever", str(tmp_path / "log"), "100000"]
    for number in range(15):
        numbers = tmp_path / f"{number}.txt"
        with numbers.open("wb") as out, subprocess.Popen(command, env=ENV, stdout=out) as process:
            while numbers.stat().st_size == 0:
                assert process.poll() is None
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.4))
            process.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
        for path in (tmp_path / "log").glob("*.jsonl"):
            for line in path.read_bytes().split(b"\n")[:-1]:
                assert "type" in json.loads(line)
        taken.append(int(numbers.read_bytes().split(b"\n")[-2]))
    opened(tmp_path / "log").close(SUMMARY)  # which cuts off half a line of the last run
    finished = list(parts(tmp_path / "log", "cam"))
    assert len(finished) > 5
    runs = runs_in([*finished, tmp_path / "log/cam.jsonl"])
    assert len(runs) == 15
    for numbers_read, last in zip(runs, taken, strict=True):
        assert numbers_read == list(range(len(numbers_read)))
        assert last <= numbers_read[-1] <= last + 1


def test_a_full_disk_costs_records_but_not_the_run(tmp_path: Path) -> None:
    """In a process whose file may not grow for a while, which is refused like ENOSPC."""
    pytest.importorskip("resource", reason="needs POSIX resource limits")
    command = [*CHILD, "full", str(tmp_path)]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [str(i) for i in range(300)]
    records = read(tmp_path / "cam.jsonl")
    (fault,) = (r for r in records if r["type"] == "error")
    written = [r["i"] for r in records if r["type"] == "prediction"]
    lost = sorted(set(range(300)) - set(written))
    assert lost == list(range(lost[0], 200))
    assert 100 <= lost[0] < 104
    others = [r for r in records if r["type"] in ("prediction", "compute")]
    assert fault["count"] == 600 - len(others)
    assert (
        fault["message"] == f"records that could not be written: {fault['count']} (File too large)"
    )
    assert lost[0] / 10 - 0.1 <= fault["time_s"] <= lost[0] / 10
    place = records.index(fault)
    assert (records[place - 1]["i"], records[place + 1]["i"]) == (written[lost[0] - 1], 200)
    assert records[-1]["type"] == "summary"
    cannot, again = done.stderr.splitlines()
    assert cannot.endswith("cam.jsonl: cannot write (File too large); records are dropped")
    assert again.endswith(f"writing works again; records lost: {fault['count']}")


def test_parts_by_the_hour_are_called_after_when_they_were_begun(tmp_path: Path) -> None:
    clock = Clock(NOON + 600)
    journal = opened(tmp_path, Rotation(every="hour"), clock)
    for i, minutes in enumerate((10, 59.99, 60, 119, 300)):
        clock.now_s = NOON + 60 * minutes
        journal.write(step(i))
    journal.close(SUMMARY)
    names = ["cam.2026-11-24T12-10-00.jsonl", "cam.2026-11-24T13-00-00.jsonl", "cam.jsonl"]
    assert files(tmp_path) == names
    rows = [[r.get("i") for r in read(tmp_path / name)] for name in names]
    assert rows == [[None, 0, 1], [None, 2, 3], [None, 4, None]]
    begun = [read(tmp_path / name)[0]["options"]["part"] for name in names]
    assert begun == [f"2026-11-24T{time}:00Z" for time in ("12:10", "13:00", "17:00")]


def test_a_run_in_another_hour_finishes_the_part_of_the_one_before(tmp_path: Path) -> None:
    clock = Clock()
    opened(tmp_path, Rotation(every="hour"), clock).close(SUMMARY)
    clock.now_s += 1800
    opened(tmp_path, Rotation(every="hour"), clock).close(SUMMARY)
    clock.now_s += 1800
    opened(tmp_path, Rotation(every="hour"), clock).close(SUMMARY)
    assert kinds(tmp_path / "cam.2026-11-24T12-00-00.jsonl") == ["header", "summary"] * 2
    assert kinds(tmp_path / "cam.jsonl") == ["header", "summary"]


def test_days_are_those_of_utc(tmp_path: Path) -> None:
    clock = Clock()
    journal = opened(tmp_path, Rotation(every="day"), clock)
    for i, hours in enumerate((1, 11.99, 12.0)):
        clock.now_s = NOON + 3600 * hours
        journal.write(step(i))
    journal.close(SUMMARY)
    assert kinds(tmp_path / "cam.2026-11-24T12-00-00.jsonl") == ["header", *2 * ["prediction"]]


def test_parts_by_size(tmp_path: Path) -> None:
    journal = opened(tmp_path, Rotation(size=2000), Clock())
    for i in range(100):
        journal.write(step(i))
    journal.close(SUMMARY)
    finished = list(parts(tmp_path, "cam"))
    assert finished[0].name == "cam.2026-11-24T12-00-00.jsonl"
    assert finished[1].name == "cam.2026-11-24T12-00-00~2.jsonl"  # all within a second
    assert [path.name for path in finished] == sorted(files(tmp_path), key=len)[1:]
    assert {path.stat().st_size > 1800 for path in finished} == {True}
    assert all(path.stat().st_size <= 2000 for path in finished)
    assert runs_in([*finished, journal.path]) == [list(range(100))]


def test_a_record_larger_than_a_part_has_one_for_itself(tmp_path: Path) -> None:
    journal = opened(tmp_path, Rotation(size=10), Clock())
    journal.write(Segment(0.0, 1.0, "a" * 100, 0.5))
    journal.write(Gap(1.0, 2.0, "x" * 100))
    journal.close(SUMMARY)
    every = [*parts(tmp_path, "cam"), journal.path]
    assert [kinds(path) for path in every] == [
        ["header", kind] for kind in ("segment", "gap", "summary")
    ]


def test_no_part_is_overwritten(tmp_path: Path) -> None:
    clock = Clock()
    mine = tmp_path / "cam.2026-11-24T12-00-00.jsonl"
    mine.write_text("mine")
    journal = opened(tmp_path, Rotation(every="hour"), clock)
    journal.write(step(0))
    clock.now_s += 3600
    journal.write(step(1))
    journal.close(SUMMARY)
    assert mine.read_text() == "mine"
    assert kinds(tmp_path / "cam.2026-11-24T12-00-00~2.jsonl") == ["header", "prediction"]


@pytest.mark.parametrize("step_s", [1.0, 0.0])  # 0: all within a second
def test_the_oldest_parts_go(tmp_path: Path, step_s: float) -> None:
    others = ["cam.jsonl.bak", "cam.2026-11-24T12-00-00.mp4", "cam2.2020-01-01T00-00-00.jsonl"]
    for name in others:
        (tmp_path / name).write_text("mine")
    clock = Clock()
    journal = opened(tmp_path, Rotation(size=2000, keep=5000), clock)
    for i in range(200):
        clock.now_s += step_s
        journal.write(step(i))
    journal.close(SUMMARY)
    kept = list(parts(tmp_path, "cam"))
    assert len(kept) == 2
    newest = [r["i"] for path in [*kept, journal.path] for r in read(path) if "i" in r]
    assert newest == list(range(newest[0], 200))
    assert set(others) < set(files(tmp_path))


def test_pictures_in_another_folder_go_with_the_parts(tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for day in (22, 24):
        for feed in ("cam", "hall"):
            path = pictures / f"{feed}_202611{day}T120000Z_walk.jpg"
            path.write_bytes(b"")
            os.utime(path, (NOON - (24 - day) * 86_400,) * 2)
    rotation = Rotation(every="day", keep_s=86_400)
    journal = Journal(tmp_path, "cam", rotation, pictures=pictures, clock=lambda: NOON)
    journal.open(HEADER)
    journal.close(SUMMARY)
    assert files(pictures) == [
        *("cam_20261124T120000Z_walk.jpg", "hall_20261122T120000Z_walk.jpg"),
        "hall_20261124T120000Z_walk.jpg",
    ]


def test_clips_go_with_the_parts_of_their_feed(tmp_path: Path) -> None:
    def clip(name: str, age_s: float) -> str:
        path = tmp_path / name
        path.write_bytes(bytes(1000))
        os.utime(path, (time.time() - age_s,) * 2)
        return name

    mine = [clip(f"cam_20261124T1200{k:02}Z_walk~{k}.mkv", 3600.0 * k) for k in range(30)]
    others = [clip(f"cam{k}_20261124T120000Z_walk.mkv", 99_999.0) for k in range(3)]
    others += [clip("cam_20261124T120000Z_walk.mkv.part", 99_999.0), clip("cam_walk.mkv", 99_999.0)]
    clip("cam_20261124T120000Z_walk.jpg", 99_999.0)  # a picture of an alert: deleted, too
    opened(tmp_path, Rotation(every="day", keep_s=9.5 * 3600)).close(SUMMARY)
    assert {*mine[:10], *others} == set(files(tmp_path)) - {"cam.jsonl"}
    opened(tmp_path, Rotation(every="day", keep=4500)).close(SUMMARY)
    assert {*mine[:4], *others} == set(files(tmp_path)) - {"cam.jsonl"}


def test_a_part_that_cannot_be_made_holds_nothing_up(
    tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    clock = Clock()
    journal = opened(tmp_path, Rotation(every="hour"), clock)
    journal.write(step(0))

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        for i in range(1, 10):
            clock.now_s = NOON + 3600 + i
            journal.write(step(i))
    assert kinds(journal.path) == ["header", *10 * ["prediction"]]
    clock.now_s += 60
    journal.write(step(10))
    journal.close(SUMMARY)
    assert kinds(journal.path) == ["header", "prediction", "summary"]
    assert [r.message for r in caplog.records] == [
        f"{journal.path}: cannot be rotated (Permission denied)"
    ]


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_a_file_that_somebody_took_away_is_started_again(
    how: str, tmp_path: Path, caplog: Any
) -> None:
    clock = Clock()
    journal = opened(tmp_path, None, clock)
    journal.write(step(0))
    if how == "deleted":
        journal.path.unlink()
    else:
        journal.path.rename(tmp_path / "elsewhere.jsonl")
    clock.now_s += 2
    journal.write(step(1))
    journal.close(SUMMARY)
    assert kinds(journal.path) == ["header", "prediction", "summary"]
    assert "was deleted or moved away; a new file is started" in caplog.text


def test_a_folder_that_somebody_took_away_is_made_again(tmp_path: Path, caplog: Any) -> None:
    clock, folder = Clock(), tmp_path / "log"
    journal = opened(folder, None, clock)
    folder.rename(tmp_path / "old")
    folder.write_text("")
    clock.now_s += 2
    journal.write(step(0))  # no folder can be made
    folder.unlink()
    journal.write(step(1))
    with pytest.raises(UsageError, match="another run writes to it"):
        opened(folder)
    folder.rename(tmp_path / "older")
    other = opened(folder)
    clock.now_s += 2
    journal.write(step(2))  # it is another run's now
    other.close(SUMMARY)
    journal.close(SUMMARY)
    assert kinds(tmp_path / "older" / "cam.jsonl") == ["header", "error", "prediction"]
    assert kinds(folder / "cam.jsonl") == ["header", "summary", "error", "summary"]
    assert [r.message.partition(": ")[2] for r in caplog.records] == [
        "cannot write (File exists); records are dropped",
        "writing works again; records lost: 1",
        "cannot write (another run writes to it); records are dropped",
        "writing works again; records lost: 1",
    ]


def test_records_lost_at_the_end_are_an_error_after_all_is_closed(tmp_path: Path) -> None:
    clock, folder = Clock(), tmp_path / "log"
    journal = opened(folder, None, clock)
    journal.write(step(0))
    folder.rename(tmp_path / "old")
    folder.write_text("")
    clock.now_s += 2
    journal.write(step(1))
    with pytest.raises(OutputError, match=r"could not be written: 2 .File exists.") as raised:
        journal.close(SUMMARY)
    assert raised.value.exit_code is ExitCode.PARTIAL
    assert kinds(tmp_path / "old" / "cam.jsonl") == ["header", "prediction"]
    folder.unlink()
    (tmp_path / "old").rename(folder)
    opened(folder).close(SUMMARY)  # the lock was released
    assert kinds(folder / "cam.jsonl") == ["header", "prediction", "header", "summary"]


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(UsageError) as raised:
        opened(tmp_path)
    message = f"{first.path}: another run writes to it; stop it, or name another folder with -o"
    assert str(raised.value) == message
    first.write(step(0))
    first.close(SUMMARY)
    opened(tmp_path).close(SUMMARY)
    assert kinds(first.path) == ["header", "prediction", "summary", "header", "summary"]


def test_the_lock_of_a_process_goes_with_it(tmp_path: Path) -> None:
    command = [*CHILD, "for-ever", str(tmp_path), "1000000"]
    with subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(UsageError, match="another run writes to it"):
            opened(tmp_path, Rotation(size=1))
        process.kill()
    opened(tmp_path).close(SUMMARY)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        opened(tmp_path / "file" / "log")


def test_what_was_written_is_made_durable_meanwhile(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("costream.sinks.journal.SYNC_S", 0.02)
    synced: list[int] = []
    fsync: Callable[[int], None] = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(file), fsync(file))[1])
    journal = opened(tmp_path)
    until_s = time.monotonic() + 30
    while not synced and time.monotonic() < until_s:
        time.sleep(0.01)
    before = len(synced)
    assert before == 1  # nothing came since
    journal.write(step(0))
    while len(synced) == before and time.monotonic() < until_s:
        time.sleep(0.01)
    journal.close(SUMMARY)
    assert len(synced) == 3


def test_a_disk_that_makes_nothing_durable_is_reported_once(
    tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    def refuse(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    journal = opened(tmp_path, Rotation(size=300))
    for i in range(20):
        journal.write(step(i))
    journal.close(SUMMARY)
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "cannot be flushed to disk (Input/output error)" in caplog.text
    assert runs_in([*parts(tmp_path, "cam"), journal.path]) == [list(range(20))]


@pytest.mark.parametrize(
    ("rotate", "keep", "expected"),
    [
        (None, None, Rotation()),
        ("hour", None, Rotation(every="hour")),
        ("day", "10GB", Rotation(every="day", keep=10_000_000_000)),
        ("100MB", None, Rotation(size=100_000_000)),
        ("1.5 mib", "64 KiB", Rotation(size=1_572_864, keep=65_536)),
        ("day", "7d", Rotation(every="day", keep_s=604_800.0)),
        ("day", "10GB,1d12h", Rotation(every="day", keep=10_000_000_000, keep_s=129_600.0)),
    ],
)
def test_rotation_and_limits_are_parsed(
    rotate: str | None, keep: str | None, expected: Rotation
) -> None:
    assert Rotation.parse(rotate, keep) == expected


@pytest.mark.parametrize(
    ("rotate", "keep", "message"),
    [
        ("week", None, "--rotate: 'week' is not hour, day or a size, like 100MB"),
        ("100", None, "--rotate: '100' is not"),
        ("0MB", None, "--rotate: '0MB' is not"),
        ("day", "30", "--keep: '30' is not a size or an age, like 10GB or 7d"),
        ("day", "500m", "--keep: '500m' is not a size or an age"),  # megabytes, or minutes?
        ("day", "1D", "--keep: '1D' is not a size or an age"),
        ("day", "0d", "--keep: '0d' is not an age above 0"),
        ("day", "10GB,7d,5GB", "--keep: two sizes or two ages; write one size, one age or both"),
        ("day", "1d,12h", "--keep: two sizes or two ages"),
        ("day", "10GB,", "--keep: '' is not a size or an age"),
        (None, "1GB", "--keep: needs --rotate; add --rotate day"),
    ],
)
def test_other_rotations_and_limits_are_refused(
    rotate: str | None, keep: str | None, message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        Rotation.parse(rotate, keep)
    assert str(raised.value).startswith(message)


def test_a_clock_that_is_set_back(tmp_path: Path) -> None:
    """Makes no part of each record."""
    clock = Clock()
    journal = opened(tmp_path, Rotation(every="hour"), clock)
    for i, hours in enumerate((0, 1, 0.5, 0.6, 0.7)):
        clock.now_s = NOON + 3600 * hours
        journal.write(step(i))
    journal.close(SUMMARY)
    every = [*parts(tmp_path, "cam"), journal.path]
    assert [kinds(path).count("prediction") for path in every] == [1, 1, 3]
    assert all(a.name < b.name for a, b in pairwise(every))
