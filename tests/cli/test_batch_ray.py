"""``costream batch --engine ray`` on a cluster of this machine."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kit.fileserver import serving
from kit.media import make_video
from kit.program import ROOT, holders, start
from kit.runs import run, snapshot, wait_until

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
