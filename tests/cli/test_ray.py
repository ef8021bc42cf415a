"""``--engine ray`` of batch and watch, on a cluster of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from kit.fileserver import serving
from kit.media import make_video
from kit.paths import SAMPLES
from kit.program import ROOT, holders, start
from kit.runs import records, run, snapshot, wait_until

ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
# Two workers whatever the machine has.
RAY = ("--engine", "ray", "--jobs", "2")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a cluster that is there already: Ray's own start takes a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # of its workers
        patch.setenv("RAY_worker_niceness", "0")  # else tests beside these starve them
        told = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield told.address_info["gcs_address"]
    ray.shutdown()


@pytest.fixture
def clips(tmp_path) -> Path:
    folder = tmp_path / "clips"
    (folder / "deeper").mkdir(parents=True)
    for k in range(4):
        make_video(folder / ("deeper" if k % 2 else "") / f"{k}.mp4", 12 + k)
    (folder / "bad.mp4").write_bytes(b"")
    (folder / "notes.txt").write_text("not media")
    return folder


def test_the_tree_is_that_of_the_local_engine(clips, tmp_path):
    call = ("batch", "-m", "cooadtr", clips, "-f", "jsonl,csv")
    run(*call, "-o", tmp_path / "local", "--jobs", 1, code=3)
    assert run(*call, "-o", tmp_path / "ray", *RAY, code=3).stdout == ""
    assert snapshot(tmp_path / "ray") == snapshot(tmp_path / "local")


def test_a_cluster_reads_from_a_server(clips, tmp_path, address):
    with serving(clips) as url:
        call = ("batch", "-m", "cooadtr", url, "-f", "jsonl,csv")
        run(*call, "-o", tmp_path / "local", "--jobs", 1, code=3)
        run(*call, "-o", tmp_path / "ray", *RAY, "--ray-address", address, code=3)
    assert snapshot(tmp_path / "ray") == snapshot(tmp_path / "local")
    assert (tmp_path / "ray" / "deeper" / "1.mp4.jsonl").exists()


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_a_lost_worker_costs_a_retry_of_its_file(clips, tmp_path, address):
    np.save(clips / "long.npy", np.zeros((3_000, 288), np.float32))
    call = ("batch", "-m", "cooadtr", clips, "-f", "jsonl,csv")
    child = start(*call, "-o", tmp_path / "ray", *RAY, "--ray-address", address)
    part = tmp_path / "ray" / "long.npy.jsonl.part"
    wait_until(lambda: part.exists() and part.stat().st_size > 10_000, child)
    (worker,) = holders(part, os.getpid())  # the cluster is our child
    worker.send_signal(signal.SIGKILL)
    _, stderr = child.communicate(timeout=300)
    assert child.returncode == 3, stderr
    run(*call, "-o", tmp_path / "local", "--jobs", 1, code=3)
    assert snapshot(tmp_path / "ray") == snapshot(tmp_path / "local")


def test_a_cluster_that_does_not_answer_is_reported(clips, tmp_path):
    shutil.rmtree(clips / "deeper")
    done = run(
        *("batch", "-m", "cooadtr", clips, "-o", tmp_path / "out", "-q", "--engine", "ray"),
        *("--ray-address", "127.0.0.1:1"),
        code=2,
    )
    assert "--ray-address" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_the_feeds_of_a_lost_worker_continue_in_another(tmp_path, address):
    """With the numbers that follow, while the other worker is not disturbed."""
    feeds = [shutil.copy(SAMPLES / "room.mp4", tmp_path / f"{k}.mp4") for k in "ab"]
    log, alerts, store = tmp_path / "log", tmp_path / "alerts", tmp_path / "events"
    child = start(
        *("watch", *feeds, "--realtime", "-m", "cooadtr", *RAY, "--ray-address", address),
        *("-o", log, "--write", "all", "--on", "*>=0.3 every 2s", "--append", alerts, "-q"),
        *("--db", store, "--state-dir", tmp_path / "state", "--status-file", tmp_path / "status"),
    )
    files = [log / "a.mp4.jsonl", log / "b.mp4.jsonl"]
    wait_until(lambda: all(count(file, "prediction") > 8 for file in files), child)
    lost = next(p for p in psutil.Process().children(recursive=True) if is_worker(p))
    lost.kill()
    wait_until(lambda: sum(count(file, "header") for file in files) == 3, child)
    again = max(files, key=lambda file: count(file, "header"))
    before = count(again, "prediction")
    wait_until(lambda: count(again, "prediction") > before + 40 and alerts.exists(), child)
    child.send_signal(signal.SIGTERM)
    assert child.communicate(timeout=300) == (b"", b"")
    assert child.returncode == 143
    assert not any(is_worker(p) for p in psutil.Process().children(recursive=True))
    ((*first, ended), (*second, _)), ((*other, _),) = (
        runs_in(file) for file in sorted(files, key=lambda file: file != again)
    )
    for steps in (numbers([*first, *second]), numbers(other)):
        assert steps == list(range(len(steps)))
    assert (ended["type"], ended["complete"], ended["exit"]) == ("summary", False, 3)
    assert ended["steps"] == len(numbers(first))
    (gap,) = [record for record in second if record["type"] == "gap"]
    assert gap["start_s"] == pytest.approx(times(first)[-1])
    assert gap["end_s"] == pytest.approx(times(second)[0])
    found = [r for records in (first, second, other) for r in records if r["type"] == "alert"]
    assert len(found) == len(alerts.read_text("utf-8").splitlines()) > 0
    with sqlite3.connect(store) as base:
        assert base.execute("SELECT count(*) FROM alerts").fetchone() == (len(found),)
        assert base.execute("SELECT count(*) FROM runs WHERE ended IS NULL").fetchone() == (0,)
    status = json.loads((tmp_path / "status").read_text("utf-8"))
    assert [feed["steps"] for feed in status["feeds"]] == [
        sum(record["type"] == "prediction" for run in runs_in(file) for record in run)
        for file in files
    ]


def test_what_a_cluster_cannot_watch_is_refused():
    call = ("watch", "-m", "cooadtr", "--engine", "ray", "-q")
    assert "only this machine has this feed" in run(*call, "mic", code=2).stderr
    assert "--device cuda" in run(*call, "rtsp://a/b", "--device", "cuda", code=2).stderr
    assert "--engine ray" in run("watch", "no-such-file", "--jobs", "2", code=4).stderr


def is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "FeedWorker" in process.cmdline()[0]
    return False


def count(file: Path, kind: str) -> int:
    return file.read_text("utf-8").count(f'{{"type": "{kind}"') if file.exists() else 0


def runs_in(file: Path) -> list[list[dict[str, Any]]]:
    """Return the records of each run in a file, without their headers."""
    runs: list[list[dict[str, Any]]] = []
    for record in records(file):
        if record["type"] == "header":
            runs.append([])
        else:
            runs[-1].append(record)
    return runs


def numbers(run: list[dict[str, Any]]) -> list[int]:
    return [record["i"] for record in run if record["type"] == "prediction"]


def times(run: list[dict[str, Any]]) -> list[float]:
    return [record["time_s"] for record in run if record["type"] == "prediction"]
