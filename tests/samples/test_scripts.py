"""The samples are what their scripts write; the skeleton is read without options."""

from __future__ import annotations

import importlib.util
import json
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from costream.core.layouts import BODY_15
from costream.core.records import SkeletonFrame
from costream.sources.uris import open_source
from kit.paths import ROOT, SAMPLES

PLACE = {name: k for k, name in enumerate(BODY_15.joints)}


@contextmanager
def script(name):
    """The module of a script."""
    spec = importlib.util.spec_from_file_location(f"sample_{name}", SAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def moves():
    """The module that wrote it."""
    with script("moves") as module:
        yield module


@pytest.fixture(scope="module")
def frames():
    source = open_source(str(SAMPLES / "moves.csv"))
    info = source.open()
    items = list(source.items())
    source.close()
    assert (info.kind, info.layout, info.axes) == ("skeleton", "body-15", 3)
    assert {type(item) for item in items} == {SkeletonFrame}
    return items


@pytest.fixture(scope="module")
def truth():
    return json.loads((SAMPLES / "moves.json").read_text("utf-8"))


def of(frames, truth, label):
    """The joints of all frames with a label, [T, 15, 3], the change between acts left out."""
    spans = [s for s in truth["segments"] if s["label"] == label]
    return np.stack(
        [
            f.joints[0]
            for f in frames
            if any(s["start_s"] + 0.5 <= f.time_s < s["end_s"] for s in spans)
        ]
    )


def test_every_frame_is_there(frames, truth):
    assert len(frames) == truth["frames"]
    assert [f.time_s for f in frames] == pytest.approx(
        [k / 15 for k in range(len(frames))], abs=1e-4
    )
    assert all((f.scores[0] == 1).all() and not f.scores[1].any() for f in frames)


def test_it_is_what_its_script_gives(tmp_path, frames, truth, moves):
    moves.write(tmp_path)
    made = np.loadtxt(tmp_path / "moves.csv", delimiter=",", skiprows=1)
    stored = np.loadtxt(SAMPLES / "moves.csv", delimiter=",", skiprows=1)
    assert np.abs(made - stored).max() < 2e-4
    assert json.loads((tmp_path / "moves.json").read_text("utf-8")) == truth
    heads = [(path / "moves.csv").read_text("utf-8").split("\n")[0] for path in (tmp_path, SAMPLES)]
    assert heads[0] == heads[1]


def test_bones_keep_their_length(frames):
    x = np.stack([f.joints[0] for f in frames])
    for child, parent in BODY_15.bones:
        lengths = np.linalg.norm(x[:, child] - x[:, parent], axis=1)
        assert lengths.std() < 0.01
        assert 0.05 < lengths.mean() < 0.55
    lowest = x[:, [PLACE["left ankle"], PLACE["right ankle"]], 1].min(axis=1)
    assert np.abs(lowest - 0.08).max() < 0.03


def test_hands_are_where_the_labels_say(frames, truth):
    def above(label, side):
        x = of(frames, truth, label)
        return x[:, PLACE[f"{side} wrist"], 1] - x[:, PLACE[f"{side} shoulder"], 1]

    for label, left, right in (
        ("wave right hand", False, True),
        ("wave left hand", True, False),
        ("wave both hands", True, True),
        ("background", False, False),
        ("walk", False, False),
    ):
        assert ((above(label, "left") > 0).mean() > 0.8) == left
        assert ((above(label, "right") > 0).mean() > 0.8) == right
    for side in ("left", "right"):
        assert above("raise both hands", side).max() > 0.4
    assert above("raise right hand", "right").max() > 0.4
    bent = of(frames, truth, "bend")
    assert bent[:, PLACE["neck"], 1].min() < bent[:, PLACE["hips"], 1].min() + 0.1
    kicked = of(frames, truth, "kick")
    assert np.ptp(kicked[:, PLACE["right ankle"], 1]) > 0.5
    assert np.ptp(kicked[:, PLACE["left ankle"], 1]) < 0.1
    walked = of(frames, truth, "walk")
    assert np.ptp(walked[:, PLACE["hips"], 0]) > 2


def test_right_is_right(frames):
    """It stands before the camera and looks at it: its right hand has the larger x."""
    first = frames[0].joints[0]
    assert first[PLACE["right wrist"], 0] > first[PLACE["left wrist"], 0] + 0.2


@pytest.mark.long
def test_sounds_are_those_that_their_scripts_write(monkeypatch):
    monkeypatch.syspath_prepend(str(SAMPLES))
    for module in ("pieces", "recording", "sounds"):
        sys.modules.pop(module, None)
    import pieces
    import recording
    import sounds

    made_of = {"street": (sounds.street(), "silence"), "band": (pieces.band(), "no music")}
    for name, (made, nothing) in made_of.items():
        wave, segments = recording.joined(made, nothing)
        script = json.loads((SAMPLES / f"{name}.json").read_text("utf-8"))
        assert script["segments"] == segments
        assert script["samples"] == len(wave)
        assert 0.1 < np.abs(wave).max() < 1


def test_the_speeds_of_the_readme_are_those_that_were_stored():
    readme = (ROOT / "README.md").read_text("utf-8")
    with script("make_speeds") as speeds:
        stored = json.loads(speeds.STORED.read_text("utf-8"))
        written = speeds.table(stored)
        assert speeds.TABLE.findall(readme) == [written]
        ways = stored["tables"]["bench steps --rounds 10"][0]["rows"]
        assert speeds.seconds(ways[0]) == pytest.approx(ways[0]["median us"] / 1e6)
        assert [speeds.figures(x) for x in (0.512, 7.96, 13.8, 179.2)] == [
            "0.51",
            "8.0",
            "14",
            "180",
        ]
        ways[0]["median us"] *= 2  # a step that is twice as slow: others half as long
        window = min(w["median us"] for w in ways if w["way"].startswith("window"))
        ratio = speeds.figures(window / ways[0]["median us"])
        assert f"window {ratio}, " in speeds.table(stored).splitlines()[2]
