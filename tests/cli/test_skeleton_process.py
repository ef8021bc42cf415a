"""``costream`` with skeleton models: tables, video with and without pose estimation, signals."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path

import av
import pytest
import torch

from costream.core.layouts import BODY_15
from costream.models.build import save_model
from costream.models.skeleton.joints import JointStreams
from costream.models.skeleton.network import SkeletonNet
from costream.weights_io.card import Card, Timeline
from kit.paths import SAMPLES
from kit.program import start
from kit.runs import lines_in, records, refused, run, wait_until

SAMPLE = SAMPLES / "room.mp4"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    options = {"layout": "body-15", "streams": ["joint", "bone"]}
    sizes = {"widths": [4, 8], "strides": [1, 1], "kernel": 3, "pool": 4, "persons": 1}
    shape = {"num_classes": 2, "joints": 15, "channels": 6, "padding": "causal"}
    arguments = {**shape, **sizes, "bones": [list(b) for b in BODY_15.bones]}
    card = Card(
        *("tiny", "skeleton actions", "costgcn", arguments, ("wave", "walk"), 15.0),
        frontend="joints",
        frontend_arguments=options,
        timeline=Timeline(threshold=0.3),
    )
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_model(path, card, SkeletonNet(**arguments), JointStreams(**options))
    return path


def table(frames: int) -> str:
    names = [f"{joint.replace(' ', '_')}_{axis}" for joint in BODY_15.joints for axis in "xyz"]
    lines = [",".join(["time_s", *names])]
    for i in range(frames):
        places = [f"{math.sin(k + i / 9):.4f}" for k in range(len(names))]
        lines.append(",".join([f"{i / 15:.4f}", *places]))
    return "\n".join(lines) + "\n"


def pictures(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


@pytest.mark.long
def test_a_table_to_records_and_annotated_video(weights: Path, tmp_path: Path) -> None:
    poses = tmp_path / "poses.csv"
    poses.write_text(table(45), "utf-8")
    run("detect", poses, "-m", weights, "-o", tmp_path, "-f", "jsonl,mp4")
    lines = records(tmp_path / "poses.csv.jsonl")
    assert lines[0]["kind"] == "skeleton"
    assert lines[-1]["steps"] == 45
    assert pictures(tmp_path / "poses.csv.mp4") == 45
    again = run("detect", poses, "-m", weights, "-o", tmp_path, "-f", "mp4", code=2)
    assert "exists already" in again.stderr
    run("detect", poses, "-m", weights, "-f", "mp4", code=2)


@pytest.mark.parametrize(("option", "value"), [("--layout", "ntu-25"), ("--columns", "x,y,z")])
def test_options_of_tables_without_a_table(option: str, value: str) -> None:
    refused(2, f"{option}: no input has joints", "detect", "-m", "cooadtr", SAMPLE, option, value)


def test_joints_are_found_in_video(weights: Path, tmp_path: Path) -> None:
    options = ("-o", tmp_path, "-q", "--start", 5, "--duration", 1)
    done = run("detect", SAMPLE, "-m", weights, *options)
    assert done.stderr == ""
    path = tmp_path / "room.mp4.jsonl"
    (header,) = records(path, "header")
    assert "BlazePose" in header["options"]["pose"]
    assert len(records(path, "compute")) == 15
    assert {row["person"] for row in records(path, "prediction")} == {1}


def test_joints_of_several_persons_are_found_at_once(tmp_path: Path) -> None:
    """With ``--pose movenet``, by itself and in the boxes of a detector."""
    options = ("--pose", "movenet", "-q", "--start", 5, "--duration", 1, "-o")
    done = run("detect", SAMPLE, "-m", "falls", *options, tmp_path, "-f", "jsonl,joints,csv,mp4")
    assert done.stderr == ""
    path = tmp_path / "room.mp4.jsonl"
    (header,) = records(path, "header")
    assert header["options"]["pose"].startswith("MoveNet on complete pictures")
    assert {row["person"] for row in records(path, "prediction")} == {1}
    columns = (tmp_path / "room.mp4.joints.csv").read_text("utf-8").splitlines()[0].split(",")
    assert len([name for name in columns if name.endswith("_score")]) == 17
    assert run("doctor", tmp_path / "room.mp4.joints.csv").stdout.count("coco-17") == 1
    run("detect", SAMPLE, "-m", "nanodet,falls", *options, tmp_path / "boxes")
    (header,) = records(tmp_path / "boxes" / path.name, "header")
    assert header["options"]["pose"] == "MoveNet on pictures with persons of nanodet"
    refused(5, "costgcn takes joints in metres", "detect", SAMPLE, "-m", "costgcn", *options[:2])


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_ctrl_c_leaves_a_video_that_plays(weights: Path, tmp_path: Path) -> None:
    poses = tmp_path / "poses.csv"
    poses.write_text(table(20_000), "utf-8")
    child = start("detect", poses, "-m", weights, "-o", tmp_path, "-f", "jsonl,mp4")
    part = tmp_path / "poses.csv.jsonl.part"
    wait_until(lambda: lines_in(part) > 40, child)
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=120)
    assert child.returncode == 130, stderr
    assert 10 < pictures(tmp_path / "poses.csv.mp4") < 20_000
    assert not list(tmp_path.glob("*.part"))


def test_a_table_that_cannot_be_opened(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("name,age,town,job\nA,3,B,C\n")
    assert "there are no joints in it" in run("detect", path, "-m", "cooadtr", code=4).stderr
