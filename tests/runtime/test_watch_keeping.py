"""State directory of a watch: restored in another process, and only if valid."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from costream.core.errors import UsageError
from costream.core.records import Gap, SkeletonFrame, VideoFrame
from costream.models.catalogue import load_model
from costream.models.streaming import StreamingModel
from costream.runtime.alerts.alerts import AlertOptions
from costream.runtime.saved_state import write_state
from costream.runtime.watch.channel import FeedChannel
from costream.runtime.watch.feed_list import FeedSpec
from costream.runtime.watch.state_dir import SavedState, Snapshot, StateDirectory
from kit.paths import ROOT
from kit.program import environment, python

HERE = Path(__file__)
PLACES = {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE.parents[1]}"}
SPEC = FeedSpec("door", "rtsp://me:hunter2@cam/x", "rtsp://***@cam/x", AlertOptions())
ANOTHER_PROCESS = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import numpy as np
from test_watch_keeping import SPEC, frames, load, play
from costream.runtime.watch.state_dir import StateDirectory
folder = Path(sys.argv[1])
model = load("cooadtr")
keeper = StateDirectory(folder / "state", model)
saved = keeper.restore(SPEC)
np.save(folder / "out.npy", play(model, saved.state, frames()[40:]))
print(saved.next_step, saved.began_s, saved.time_s)
keeper.close()
"""


def load(name: str) -> StreamingModel:
    import torch

    torch.set_num_threads(1)
    return load_model(name, device="cpu")


@pytest.fixture(scope="module")
def model() -> StreamingModel:
    return load("cooadtr")


def frames() -> list[VideoFrame]:
    pictures = np.random.default_rng(0).integers(0, 256, (60, 96, 128, 3), dtype=np.uint8)
    return [VideoFrame(i, i / 8, i, picture.copy) for i, picture in enumerate(pictures)]


def play(model: StreamingModel, state: Any, items: list[VideoFrame]) -> np.ndarray:
    return np.stack([model.step([item], state).probabilities for item in items])


def now() -> Snapshot:
    return Snapshot(40, time.time() - 5.0, 5.0, 4.875, (), 3)


def kept(folder: Path, model: StreamingModel, state: Any = None) -> Path:
    """Save a state of the feed and return the file."""
    keeper = StateDirectory(folder, model)
    keeper.save(SPEC, now(), model.init_state(1) if state is None else state)
    keeper.close()
    return folder / "door.safetensors"


def restored(folder: Path, model: Any, spec: FeedSpec = SPEC) -> Any:
    keeper = StateDirectory(folder, model)
    saved = keeper.restore(spec)
    keeper.close()
    return saved


@pytest.mark.long
def test_continues_bit_for_bit_in_another_process(model: StreamingModel, tmp_path: Path) -> None:
    state, at = model.init_state(3), now()
    for frame in frames()[:40]:
        model.step([frame, frames()[0], frame], state)
    keeper = StateDirectory(tmp_path / "state", model)
    keeper.save(SPEC, at, state.take([2]))
    keeper.close()
    done = python("-c", ANOTHER_PROCESS, tmp_path, HERE.parent, env=PLACES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [repr(v) for v in (at.next_step, at.began_s, at.time_s)]
    # From the file here too: on some processors products depend on where their rows lie.
    alone = restored(tmp_path / "state", model).state
    for name, tensor in state.take([2]).tensors().items():
        assert tensor.equal(alone.tensors()[name])
    assert np.array_equal(np.load(tmp_path / "out.npy"), play(model, alone, frames()[40:]))


@pytest.mark.parametrize("name", ["costgcn", "cotrans,cosounds", "oadtr"])
def test_every_kind_of_model_can_be_saved(name: str, tmp_path: Path) -> None:
    model = load(name)
    state = model.init_state(1)
    for k, tensor in enumerate(state.tensors().values()):
        tensor.fill_(k)
    kept(tmp_path, model, state)
    tensors = restored(tmp_path, model).state.tensors()
    assert all(tensor.equal(tensors[key]) for key, tensor in state.tensors().items())


def test_a_skeleton_continues_where_it_was(tmp_path: Path) -> None:
    model = load("costgcn")
    layout, random = model.frontend.layout, np.random.default_rng(0)
    joints = random.standard_normal((40, 2, len(layout.joints), 3)).astype(np.float32)
    scores = np.ones(joints.shape[1:3], np.float32)
    items: list[Any] = [SkeletonFrame(i, i / 15, j, scores, layout) for i, j in enumerate(joints)]
    state = model.init_state(1)
    for item in items[:30]:
        model.step([item], state)
    kept(tmp_path, model, state.take([0]))
    again = restored(tmp_path, model).state
    for item in items[30:]:
        one, other = (model.step([item], s).probabilities for s in (state, again))
        assert (one is None) == (other is None)
        assert one is None or np.allclose(one, other, atol=1e-6)


def test_the_state_of_a_feed_that_was_lost_is_as_old_as_its_newest_step(
    model: StreamingModel, tmp_path: Path
) -> None:
    kept(tmp_path, model)
    saved = restored(tmp_path, model)
    assert saved.age_s(saved.saved_s + 10) == pytest.approx(10.125)
    lost = replace(saved, now_s=saved.time_s + 80)
    assert lost.age_s(lost.saved_s + 10) == pytest.approx(90)


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 1e8), st.floats(-1e10, 1e10), st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_times_never_go_back_whatever_the_clock_says(
    model: StreamingModel, now_s: float, saved_s: float, set_s: float, after_s: float
) -> None:
    """It was set by some time during the watch, and by another one before the next."""
    state = SavedState(7, saved_s - now_s, now_s, now_s, (), 0, saved_s + set_s, None)
    clock_s = saved_s + set_s + after_s
    resumed_s = clock_s - state.began_at(clock_s)
    assert resumed_s >= now_s - 1e-5
    if after_s >= 0:  # the time between is known
        assert resumed_s - now_s == pytest.approx(after_s, abs=1.0 if abs(set_s) < 1 else 1e-4)
        assert state.age_s(clock_s) == pytest.approx(after_s, abs=1e-3)
    elif after_s < -1.1:  # nobody knows for how long it was away: the network begins anew
        assert state.age_s(clock_s) == math.inf


def test_a_clock_that_is_behind_loses_no_state(
    model: StreamingModel, tmp_path: Path, caplog: Any
) -> None:
    path = kept(tmp_path, model)
    stated(saved_s=repr(time.time() + 86_400))(path)
    saved = restored(tmp_path, model)
    assert (saved.next_step, saved.now_s, saved.newest) == (40, 5.0, 3)
    assert saved.age_s(time.time()) == math.inf
    assert (
        "door: the clock of this machine is behind the saved state: times continue" in caplog.text
    )
    assert path.exists()


def test_of_two_files_the_later_one_of_the_feed_counts_if_the_clock_was_set_back(
    model: StreamingModel, tmp_path: Path
) -> None:
    kept(tmp_path, model)
    stated(saved_s=repr(time.time() + 3600))(tmp_path / "door.safetensors")
    keeper = StateDirectory(tmp_path, model)
    at = replace(now(), next_step=90, now_s=9.0, time_s=8.9)
    keeper.save(SPEC, at, model.init_state(1), durable=False)
    keeper.close()
    assert restored(tmp_path, model).next_step == 90


def test_the_state_of_an_earlier_version_is_used(model: StreamingModel, tmp_path: Path) -> None:
    path = kept(tmp_path, model)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    del metadata["now_s"]
    write_state(path, metadata, load_file(path), durable=True)
    assert restored(tmp_path, model).now_s == pytest.approx(5.0, abs=0.5)


def test_no_password_is_in_the_file(model: StreamingModel, tmp_path: Path, caplog: Any) -> None:
    assert restored(tmp_path / "new", model) is None  # nothing was saved
    assert caplog.records == []
    path = kept(tmp_path, model)
    assert b"hunter2" not in path.read_bytes()
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["source"] == "rtsp://***@cam/x"
    other = replace(SPEC, uri="rtsp://me:changed@cam/x")
    assert restored(tmp_path, model, other) is not None


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)


def stated(**changed: str) -> Callable[[Path], None]:
    """Return a change of what a file says of itself."""

    def change(path: Path) -> None:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        save_file(load_file(path), path, {**metadata, **changed})

    return change


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut, "it is damaged"),
        (flip, "it is damaged"),
        (lambda path: path.write_bytes(b""), "it is damaged"),
        (lambda path: path.write_text("{}" * 99), "it is damaged"),
        (stated(sha256="0"), "it is damaged"),
        (stated(next_step="x"), "it is damaged"),
        (stated(smoothed="[1, 0.5]"), "it is damaged"),
        (stated(smoothed="[1, NaN, 0, 0, 0, 0, 0, 0]"), "it is damaged"),
        (stated(smoothed="7"), "it is damaged"),
        (stated(format="costream-state/2"), "format 'costream-state/2', not"),
        (stated(weights="ab"), "weights 'ab', not"),
        (stated(model="oadtr"), "model 'oadtr', not 'cooadtr'"),
        (stated(source="rtsp://***@other/x"), "source 'rtsp://***@other/x', not"),
        (stated(now_s="nan"), "it is damaged"),
        (stated(now_s="-1e308"), "it is damaged"),
        (stated(saved_s="inf"), "it is damaged"),
        (stated(time_s="-1"), "it is damaged"),
        (stated(time_s="1e9"), "it is damaged"),
        (stated(next_step="-5"), "it is damaged"),
        (stated(next_step="9" * 5000), "it is damaged"),
        (stated(smoothed="[" * 100_000), "it is damaged (RecursionError)"),
    ],
)
def test_what_cannot_be_used_is_reported_and_put_aside(
    damage: Callable[[Path], None],
    reason: str,
    model: StreamingModel,
    tmp_path: Path,
    caplog: Any,
) -> None:
    path = kept(tmp_path, model)
    damage(path)
    data = path.read_bytes()
    assert restored(tmp_path, model) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert caplog.text.count("door.safetensors: this saved state is not used: ") == 1
    assert reason in record.getMessage()
    assert not path.exists()
    assert (tmp_path / "door.safetensors.aside").read_bytes() == data
    kept(tmp_path, model)
    assert restored(tmp_path, model) is not None


def replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


@pytest.mark.skipif(os.name == "nt", reason="POSIX files")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (replaced(os.mkfifo), "it is not a file"),
        (replaced(os.mkdir), "it is not a file"),
        (replaced(lambda path: path.symlink_to("/dev/zero")), "it is not a file"),
        (replaced(lambda path: path.symlink_to(path)), "Too many levels of symbolic links"),
        (replaced(lambda path: path.symlink_to("/etc/passwd")), "it is damaged"),
    ],
)
def test_what_is_not_a_file_of_ours_is_put_aside(
    change: Callable[[Path], None], reason: str, model: StreamingModel, tmp_path: Path, caplog: Any
) -> None:
    change(kept(tmp_path, model))
    assert restored(tmp_path, model) is None
    (record,) = caplog.records
    assert record.getMessage().endswith(f"{reason}; moved to door.safetensors.aside")
    assert Path("/etc/passwd").is_file()


def test_the_newer_of_both_files_counts(model: StreamingModel, tmp_path: Path, caplog: Any) -> None:
    keeper = StateDirectory(tmp_path, model)
    for number, durable in ((1, True), (2, False), (3, False)):
        at = replace(now(), next_step=number, now_s=4.9 + number / 100)
        keeper.save(SPEC, at, model.init_state(1), durable=durable)
        while keeper._newest:
            time.sleep(0.01)
    keeper.close()
    recent = tmp_path / ".door.recent.safetensors"
    assert restored(tmp_path, model).next_step == 3
    cut(recent)  # killed in the middle of it
    assert restored(tmp_path, model).next_step == 1
    assert "it is damaged" in caplog.text
    kept(tmp_path, model)
    assert restored(tmp_path, model).next_step == 40


def test_another_type_of_numbers_does_not_fit(
    model: StreamingModel, tmp_path: Path, caplog: Any
) -> None:
    kept(tmp_path, model)
    assert restored(tmp_path, load_model("cooadtr", device="cpu", dtype="float64")) is None
    assert "its tensors do not fit the model" in caplog.text


def test_a_slow_disk_delays_nothing(
    model: StreamingModel, tmp_path: Path, monkeypatch: Any
) -> None:
    """Of what comes meanwhile the newest of each feed is written, once."""
    fsync, go_on, syncs = os.fsync, threading.Event(), []

    def slow(file: int) -> None:
        syncs.append(file)
        assert go_on.wait(60)
        fsync(file)

    monkeypatch.setattr(os, "fsync", slow)
    keeper = StateDirectory(tmp_path, model)
    other = replace(SPEC, name="hall")
    for k in range(20):
        for spec in (SPEC, other):
            keeper.save(spec, replace(now(), next_step=k), model.init_state(1))
    go_on.set()
    keeper.close()
    assert 2 <= len(syncs) <= 4
    assert restored(tmp_path, model).next_step == 19
    assert restored(tmp_path, model, other).next_step == 19


def test_what_cannot_be_written_is_reported_once(
    model: StreamingModel, tmp_path: Path, caplog: Any
) -> None:
    path = tmp_path / "door.safetensors"
    path.mkdir()
    keeper = StateDirectory(tmp_path, model)
    until_s = time.monotonic() + 60
    for durable in (True, False, True, False):  # the other file can be written
        keeper.save(SPEC, now(), model.init_state(1), durable=durable)
        while keeper._newest and time.monotonic() < until_s:
            time.sleep(0.01)
    keeper.close()
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "the state of the feeds cannot be saved: " in caplog.text
    path.rmdir()
    kept(tmp_path, model)
    assert restored(tmp_path, model) is not None


@pytest.mark.skipif(os.name == "nt", reason="files there have no such limit")
def test_no_half_of_a_state_stays_on_a_full_disk(model: StreamingModel, tmp_path: Path) -> None:
    import resource

    path, tensors = tmp_path / "a.safetensors", model.init_state(1).tensors()
    write_state(path, {}, tensors, durable=False)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size // 2, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_state(path, {}, tensors, durable=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not path.exists()


def test_two_watches_do_not_keep_their_state_in_one_folder(
    model: StreamingModel, tmp_path: Path
) -> None:
    first = StateDirectory(tmp_path, model)
    with pytest.raises(UsageError, match="another watch uses this state directory"):
        StateDirectory(tmp_path, model)
    first.close()
    StateDirectory(tmp_path, model).close()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        StateDirectory(tmp_path / "file" / "state", model)


@pytest.mark.slow
def test_killed_while_it_saves_a_complete_state_is_there(
    tmp_path: Path, model: StreamingModel
) -> None:
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]);"
        "from test_watch_keeping import *\n"
        "model = load('cooadtr'); keeper = StateDirectory(Path(sys.argv[1]), model); k = 0\n"
        "state = model.init_state(1); print('ready', flush=True)\n"
        "while True: k += 1; keeper.save(SPEC, replace(now(), next_step=k), state); "
        "time.sleep(0.001)"
    )
    env = environment(PLACES)
    command = [sys.executable, "-c", program, str(tmp_path), str(HERE.parent)]
    for k in range(2):
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(0.2 + 0.037 * k)
            process.kill()
        saved = restored(tmp_path, model)
        assert saved is not None
        assert saved.next_step >= 1


def test_a_feed_that_is_not_there_at_a_restart_has_one_gap() -> None:
    told: list[Gap] = []
    channel: Any = FeedChannel.__new__(FeedChannel)
    channel._resumed, channel._last_s, channel._gap_end_s = True, 3918.3, -math.inf
    channel._is_silent = False
    channel.recorder = SimpleNamespace(gap=told.append)
    for gap in (Gap(3925.6, 3945.6, "refused; 6 attempts"), Gap(4000.0, 4001.0, "stalled")):
        assert channel.handle(gap) is not None
    assert told == [
        Gap(3918.3, 3945.6, "not running, refused; 6 attempts"),
        Gap(4000.0, 4001.0, "stalled"),
    ]
