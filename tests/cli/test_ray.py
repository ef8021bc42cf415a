"""``--engine ray`` of batch and watch, on a cluster of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from kit.fileserver import serving
from kit.media import make_video
from kit.paths import SAMPLES
from kit.program import ROOT, holders, python, start
from kit.runs import records, run, snapshot, wait_until

ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
Cluster = pytest.importorskip("ray.cluster_utils", reason="needs the extra 'ray'").Cluster
# Two workers whatever the machine has.
RAY = ("--engine", "ray", "--jobs", "2")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a cluster that is there already: Ray's own start takes a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # of its workers
        patch.setenv("RAY_worker_niceness", "0")  # else tests beside these starve them
        told = ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield told.address_info["gcs_address"]
    ray.shutdown()


class Machines:
    """A cluster of machines with a processor each, all of them on this one."""

    def __init__(self, count: int) -> None:
        head = {"num_cpus": 1, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.cluster.head_node]
        self.nodes += [self.cluster.add_node(num_cpus=1) for _ in range(count - 1)]
        self.cluster.wait_for_nodes()

    def program(self, number: int, name: str = "raylet") -> psutil.Process:
        """Return a program of Ray that runs on a machine."""
        return psutil.Process(self.nodes[number].all_processes[name][0].process.pid)

    def workers(self, number: int) -> list[psutil.Process]:
        """Return the workers of a watch on a machine."""
        return [each for each in self.program(number).children() if is_worker(each)]

    def close(self) -> None:
        """End every process of the cluster, also those that hang."""
        programs = [
            psutil.Process(each.process.pid)
            for node in self.nodes
            for kind in node.all_processes.values()
            for each in kind
            if each.process.poll() is None
        ]
        left = [each for program in programs for each in program.children(recursive=True)]
        for each in (*left, *programs):
            with contextlib.suppress(psutil.Error):
                each.kill()
        self.cluster.shutdown()


@pytest.fixture
def machines() -> Iterator[Machines]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("RAY_worker_niceness", "0")
        several = Machines(3)
    yield several
    several.close()


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


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_the_feeds_of_a_lost_machine_continue_on_another(tmp_path, machines, fate):
    """Also where it says nothing any more, as after it was switched off."""
    feeds = [shutil.copy(SAMPLES / "room.mp4", tmp_path / f"{k}.mp4") for k in "abc"]
    child = watch_on(machines, feeds, tmp_path / "log")
    assert [len(machines.workers(k)) for k in range(3)] == [1, 1, 1]
    for each in (*machines.program(2).children(recursive=True), machines.program(2)):
        each.send_signal(fate)
    began_s = time.monotonic()
    files = sorted((tmp_path / "log").glob("*.jsonl"))
    wait_until(lambda: sum(count(file, "header") for file in files) == 4, child)
    (again,) = (file for file in files if count(file, "header") == 2)
    before = count(again, "prediction")
    wait_until(lambda: count(again, "prediction") > before + 20, child)
    assert time.monotonic() - began_s < 60  # 25 s on a machine that does nothing else
    assert sum(len(machines.workers(k)) for k in range(2)) == 3
    child.send_signal(signal.SIGTERM)
    _, told = child.communicate(timeout=60)
    assert child.returncode == 143
    (line,) = (line for line in told.decode().splitlines() if "lost" in line)
    assert line.endswith(f"another continues: {again.stem}")
    (first, second), *others = sorted(map(runs_in, files), key=len, reverse=True)
    for steps in (numbers([*first, *second]), *(numbers(*other) for other in others)):
        assert steps == list(range(len(steps)))
    assert [record["reason"] for record in second if record["type"] == "gap"] == ["not running"]
    assert [other[0][-1]["exit"] for other in others] == [143, 143]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_a_watch_without_the_head_of_its_cluster_ends_with_a_line(tmp_path, machines):
    feed = shutil.copy(SAMPLES / "room.mp4", tmp_path / "a.mp4")
    child = watch_on(machines, [feed], tmp_path / "log")
    machines.program(0, "gcs_server").kill()
    _, told = child.communicate(timeout=120)
    assert child.returncode == 3
    said, end = (line for line in told.decode().splitlines() if "the head" in line)
    assert "the head of the Ray cluster does not answer" in said
    assert end == "costream: the head of the Ray cluster was lost"
    ((*_, summary),) = runs_in(tmp_path / "log" / "a.mp4.jsonl")
    assert (summary["type"], summary["complete"], summary["exit"]) == ("summary", False, 3)
    assert summary["steps"] > 100  # it went on


def test_a_worker_that_does_not_see_the_folder_of_clips_says_so(tmp_path):
    code = f"""if True:
        from costream.core.commit import code_version
        from costream.options.options import Options
        from costream.runtime.watch.ray_worker import FeedWorker, WorkerTask
        shared = ({str(tmp_path / "log" / "mark")!r},)
        task = WorkerTask(Options(), (), "", code_version(), (), shared, {{}}, {{}})
        (end,) = FeedWorker(task).take()
        print(int(end.exit_code), end.error)
    """
    told = python("-c", code).stdout
    assert told.startswith(f"2 {tmp_path / 'log'}: this is not the folder"), told
    assert f"(machine {socket.gethostname()})" in told


def test_what_a_cluster_cannot_watch_is_refused():
    call = ("watch", "-m", "cooadtr", "--engine", "ray", "-q")
    assert "only this machine has this feed" in run(*call, "mic", code=2).stderr
    assert "--device cuda" in run(*call, "rtsp://a/b", "--device", "cuda", code=2).stderr
    assert "--engine ray" in run("watch", "no-such-file", "--jobs", "2", code=4).stderr


def watch_on(machines: Machines, feeds: list[Any], log: Path) -> subprocess.Popen[bytes]:
    """Return a watch that has begun with every feed, played at half its speed."""
    child = start(
        *("watch", *feeds, "--realtime", "--speed", 0.5, "-m", "cooadtr", "--write", "all"),
        *("-o", log, "--engine", "ray", "--ray-address", machines.cluster.address),
    )
    files = [log / f"{Path(feed).name}.jsonl" for feed in feeds]
    wait_until(lambda: all(count(file, "prediction") > 8 for file in files), child)
    return child


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
