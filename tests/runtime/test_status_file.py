"""Status file: replaced atomically, at most once a second; failures do not end a watch."""

from __future__ import annotations

import json
import logging
import os
import threading
from dataclasses import fields, replace
from pathlib import Path

import pytest

from costream.core.errors import UsageError
from costream.core.records import Alert
from costream.core.status import FeedStatus, WatchStatus
from costream.runtime.watch import status_file as module
from costream.runtime.watch.status_file import StatusFile
from kit.disk import full_disk
from kit.watched import feed, many, watch

ALERT = Alert(9.0, "falling>=0.8 for 2s", "falling", 0.92, 7.0)


@pytest.fixture
def often(monkeypatch):
    """Write every status, not one a second."""
    monkeypatch.setattr(module, "WRITE_EVERY_S", 0.0)


def read(path: Path) -> dict:
    return json.loads(path.read_text("utf-8"))


def test_it_holds_every_field(tmp_path):
    path = tmp_path / "status.json"
    strips = {"door": (None, "walk")}
    StatusFile(path).show(watch(feed(), alerts=(("door", ALERT),), strips=strips))
    status = read(path)
    head = {"type", "schema", "running", "pid"}
    assert set(status) == head | {field.name for field in fields(WatchStatus)}
    assert (status["type"], status["schema"], status["running"]) == ("status", "costream/1", True)
    assert status["pid"] == os.getpid()
    assert set(status["feeds"][0]) == {field.name for field in fields(FeedStatus)}
    assert status["feeds"][0]["top"] == [["walk", 0.912], ["sit", 0.05]]
    (alert,) = status["alerts"]
    assert (alert["feed"], alert["rule"], alert["score"]) == ("door", ALERT.rule, 0.92)
    assert status["strips"] == {"door": [None, "walk"]}


def test_at_most_once_a_second_and_the_last_always(tmp_path):
    path = tmp_path / "status.json"
    file = StatusFile(path)
    file.show(watch(feed(steps=1)))
    file.show(watch(feed(steps=2)))
    assert read(path)["feeds"][0]["steps"] == 1
    file.close()
    assert (read(path)["running"], read(path)["feeds"][0]["steps"]) == (False, 2)
    path.unlink()
    file.close()
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_reader_never_sees_half_of_it(tmp_path, often):
    path = tmp_path / "status.json"
    file = StatusFile(path)
    file.show(many(1))
    counts, done = set(), threading.Event()

    def look() -> None:
        while not done.is_set():
            counts.add(len(read(path)["feeds"]))

    reader = threading.Thread(target=look)
    reader.start()
    for k in range(60):
        file.show(many(1 + 39 * (k % 2)))
    done.set()
    reader.join()
    assert counts <= {1, 40}


def test_missing_folders_are_created(tmp_path, often):
    path = tmp_path / "later" / "today" / "status.json"
    StatusFile(path).show(watch(feed()))
    assert read(path)["running"]


def test_where_nothing_can_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"file: is not a folder|cannot be the status file"):
        StatusFile(tmp_path / "file" / "status.json")
    if Path("/proc/self").exists():
        with pytest.raises(UsageError, match=r"^/proc: cannot be written"):
            StatusFile(Path("/proc/status.json"))


def test_a_full_disk_does_not_end_the_watch(tmp_path, often, caplog):
    path = tmp_path / "status.json"
    file = StatusFile(path)
    file.show(watch(feed(steps=1)))
    with caplog.at_level(logging.WARNING, "costream"):
        with full_disk(99):
            file.show(watch(feed(steps=2)))
            file.show(watch(feed(steps=3)))
        assert read(path)["feeds"][0]["steps"] == 1  # the last one that was whole
        file.show(watch(feed(steps=4)))
    assert read(path)["feeds"][0]["steps"] == 4
    assert ["File too large" in r.getMessage() for r in caplog.records] == [True, False]


def test_what_is_not_a_status_file_is_not_written_over(tmp_path):
    movie = tmp_path / "movie.mp4"
    movie.write_bytes(b"\x00\x00\x00\x20ftypisom\xff\xfe")
    with pytest.raises(UsageError, match=r"movie\.mp4: exists and is not a status file"):
        StatusFile(movie)
    with pytest.raises(UsageError, match="cannot be the status file"):
        StatusFile(tmp_path)
    assert movie.stat().st_size == 14


def test_one_of_before_is_written_over_and_a_link_stays(tmp_path):
    path, link = tmp_path / "status.json", tmp_path / "link.json"
    link.symlink_to(path)
    path.touch()
    for steps in (1, 2):
        StatusFile(link).show(watch(feed(steps=steps)))
    assert link.is_symlink()
    assert read(path)["feeds"][0]["steps"] == 2


def test_no_credentials_come_out(tmp_path):
    url = "rtsp://admin:hunter2@cam/live?token=hunter2"
    bad = replace(feed(url, message=f"cannot open {url}", active=url), source=url)
    path = tmp_path / "status.json"
    alerts = ((url, Alert(1.0, url, url, 0.9, 0.5)),)
    StatusFile(path).show(watch(bad, alerts=alerts, strips={url: (url,)}))
    assert "hunter2" not in path.read_text()
    assert read(path)["feeds"][0]["source"] == "rtsp://***@cam/live?token=***"


def test_any_name_and_any_number_can_be_written(tmp_path):
    path = tmp_path / "status.json"
    StatusFile(path).show(watch(feed("T\u00fcr \U0001f6aa", lag_s=float("nan")), feed("\udcff")))
    feeds = read(path)["feeds"]
    assert [each["name"] for each in feeds] == ["T\u00fcr \U0001f6aa", "\udcff"]
    assert "NaN" not in path.read_text()
    assert feeds[0]["lag_s"] is None
