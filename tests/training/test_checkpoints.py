"""Checkpoints: an interrupted training resumes exactly."""

from __future__ import annotations

import logging
import time

import numpy as np
import pytest
import torch

from costream.core.errors import UsageError
from costream.training.checkpoint import RandomState, TrainingCheckpoint
from costream.training.early_stopping import LOSS, EarlyStopping
from costream.training.optim import Optimizer, Schedule
from costream.weights_io.file import read_weights
from kit import data_audio, data_objects, data_skeleton, data_video
from kit.program import start
from kit.runs import run


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=pytest.mark.long)
        for family in ("sound", "objects", "video", "skeletons", "landmarks", "boxes")
    ],
)
def test_three_kills_change_nothing(family, tmp_path):
    boxes = ("--labels", tmp_path / "data.json")
    kind, steps, more = {
        "sound": (data_audio, 200, ("--scratch",)),
        "video": (data_video, 100, ("--scratch", "--fine-tune")),
        "skeletons": (data_skeleton, 120, ("--scratch",)),
        "landmarks": (data_audio, 300, ("--scratch",)),
        "objects": (data_objects, 60, boxes),
        "boxes": (data_objects, 60, (*boxes, "--no-fine-tune")),
    }[family]
    fixed = {"architecture": "conystrom-audio", "num_landmarks": 4, "landmarks": "fixed"}
    other = fixed if family == "landmarks" else {}
    base = kind.write_tiny_weights(tmp_path / "tiny.safetensors", **other)
    data = kind.write_folder(tmp_path / "data", 4)
    options = (*more, "--steps", steps, "--cache", tmp_path / "cache")

    def call(name):
        path = tmp_path / name / "own.safetensors"
        return path, ("train", base, "--data", data, "-o", path, *options)

    whole, undisturbed = call("whole")
    done = run(*undisturbed)
    path, killed = call("killed")
    unfinished = path.with_name("own.safetensors.partial")
    for turn in range(3):
        if turn == 2 and family == "video":
            unfinished = path.with_name("own.safetensors.frontend.partial")
        before = unfinished.stat().st_mtime_ns if unfinished.exists() else 0
        process = start(*killed)
        while not (unfinished.exists() and unfinished.stat().st_mtime_ns > before):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        process.kill()
        process.communicate()
    assert not path.exists()
    done = run(*killed, "-v")
    assert "resuming after step" in done.stderr
    assert path.read_bytes() == whole.read_bytes()
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "own.html", "own.md", "own.safetensors"]  # fmt: skip
    assert read_weights(path).card.name == "own"


def learn(path, stop=None, identity=1):
    """Return the weights, the history and the best of a small training; ``stop``: after a step."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
    )
    rng = np.random.default_rng(0)
    partial = TrainingCheckpoint(path, {"a": identity}, False)
    stopping = EarlyStopping(
        lambda: {LOSS: float(network[0].weight.detach().abs().sum())},
        network.state_dict,
        *(40, 5, 3),
    )
    parts = {"chance": RandomState(rng), "watch": stopping}
    optimizer = Optimizer([network], Schedule(40, 1), "", partial, parts)
    for step in optimizer:
        x = torch.from_numpy(rng.standard_normal((6, 4), np.float32))
        optimizer.step((network(x) - x[:, :1]).square().mean())
        if stopping.update(step + 1, optimizer.loss):
            break
        if step == stop:
            partial.write(step + 1, optimizer.parts)
            break
    return network.state_dict(), stopping.history, stopping.best


@pytest.mark.parametrize("stops", [[0], [6, 7, 20], [12]])
def test_continuing_is_exact(stops, tmp_path):
    expected = learn(tmp_path / "none")
    path = tmp_path / "own.partial"
    for stop in stops:
        learn(path, stop)
    weights, history, best = learn(path)
    assert history == expected[1]
    for own, other in ((weights, expected[0]), (best, expected[2])):
        assert own.keys() == other.keys()
        assert all(torch.equal(own[k], other[k]) for k in own)


def test_another_training_is_not_continued(tmp_path):
    path = tmp_path / "own.partial"
    learn(path, 3)
    with pytest.raises(UsageError, match=r"own.partial: checkpoint of a training with other"):
        TrainingCheckpoint(path, {"a": 2}, False)
    assert TrainingCheckpoint(path, {"a": 2}, True).restore({}) == 0
    assert TrainingCheckpoint(path, {"a": 1}, True).restore({}) == 4


@pytest.mark.parametrize("content", [b"", b"mine", bytes(200)])
def test_what_is_not_a_training_is_left_alone(content, tmp_path):
    path = tmp_path / "own.partial"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="--overwrite starts over"):
        TrainingCheckpoint(path, {}, False)
    assert path.read_bytes() == content
    assert TrainingCheckpoint(path, {}, True).restore({}) == 0


def test_a_watch_stops_when_nothing_is_gained_and_keeps_the_best():
    losses = iter([3.0, 2.0, 2.5, 2.1, 2.2, 1.0])
    weight = torch.zeros(1)
    stopping = EarlyStopping(lambda: {LOSS: next(losses)}, lambda: {"w": weight}, 60, 2, 3)
    stopped = None
    for step in range(1, 61):
        weight += 1
        if stopping.update(step, float(step)):
            stopped = step
            break
    assert stopped == 10
    assert stopping.best["w"].item() == 4
    assert stopping.history[1] == {"step": 4.0, "loss": 3.5, LOSS: 2.0}


def test_without_validation_the_last_weights_stay(caplog):
    caplog.set_level(logging.INFO)
    stopping = EarlyStopping(dict, lambda: {"w": torch.zeros(1)}, 4, 3, 1)
    assert not any(stopping.update(step, 1.0) for step in range(1, 5))
    assert [row["step"] for row in stopping.history] == [3, 4]
    assert stopping.best == {}
