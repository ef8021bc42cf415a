"""Joints that a file gives numbers for "missing": the origin, equal negative numbers, no score."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.layouts import BODY_25, COCO_17, OPENPOSE_18, Layout
from costream.core.records import Fault, SkeletonFrame
from costream.sources.base import SourceOptions
from costream.sources.skeletons.person import make_person
from costream.sources.values import make_converter
from kit.mocap_files import (
    alphapose,
    deeplabcut_hdf5,
    deeplabcut_table,
    mmpose,
    pixels,
    saved,
    sleap,
    standing,
)
from kit.skeleton_files import (
    faults,
    frames,
    kinetics,
    long,
    openpose,
    pyskl,
    read,
    underscored,
    wide,
)

LACKING = (0, 9, 11)  # joints that are not there


def _likely(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.full((*x.shape[:-1], 1), 0.9)], -1)


def _deeplabcut(path: Path, x: np.ndarray) -> Path:
    deeplabcut_table(_likely(x), COCO_17.joints, False).to_csv(path)
    return path


def _array(path: Path, x: np.ndarray) -> Path:
    np.save(path, _likely(x))
    return path


def _image_list(path: Path, x: np.ndarray) -> Path:
    """Write what MMPose's Python interface returns."""
    content = [{"keypoints": frame, "keypoint_scores": np.ones(frame.shape[:2])} for frame in x]
    path.write_bytes(pickle.dumps(content))
    return path


# Writers of [T, M, V, 2] in pixels with scores above 0, or without scores, of each format.
FORMATS: dict[str, tuple[Layout, Callable[[Path, np.ndarray], Path]]] = {
    "wide": (COCO_17, lambda f, x: wide(f / "a.csv", x[:, 0], COCO_17, underscored)),
    "wide with scores": (
        COCO_17,
        lambda f, x: wide(
            f / "a.csv", x[:, 0], COCO_17, underscored, scores=np.full(x.shape[:3], 0.37)[:, 0]
        ),
    ),
    "long": (COCO_17, lambda f, x: long(f / "a.csv", x, COCO_17.joints, "frame,person,joint,x,y")),
    "mmpose": (COCO_17, lambda f, x: saved(f / "a.json", mmpose(x, COCO_17.joints))),
    "mmpose list": (COCO_17, lambda f, x: _image_list(f / "a.pkl", x)),
    "alphapose": (COCO_17, lambda f, x: saved(f / "a.json", alphapose(x))),
    "openpose": (BODY_25, lambda f, x: openpose(f / "keypoints", x)),
    "kinetics": (OPENPOSE_18, lambda f, x: kinetics(f / "a.json", x)),
    "pyskl": (COCO_17, lambda f, x: pyskl(f / "a.pkl", x)),
    "array": (COCO_17, lambda f, x: _array(f / "a.npy", x)),
    "deeplabcut": (COCO_17, lambda f, x: _deeplabcut(f / "a.csv", x)),
    "deeplabcut h5": (
        COCO_17,
        lambda f, x: deeplabcut_hdf5(f / "a.h5", _likely(x), COCO_17.joints, True),
    ),
    "sleap h5": (COCO_17, lambda f, x: sleap(f / "a.h5", x, COCO_17.joints)),
}


@pytest.mark.parametrize("number", [0.0, -1.0])
@pytest.mark.parametrize("name", FORMATS)
def test_the_origin_and_equal_negative_numbers_are_missing_in_every_format(
    tmp_path: Path, name: str, number: float
) -> None:
    if name.endswith("h5"):
        pytest.importorskip("h5py")
    layout, write = FORMATS[name]
    x = pixels(layout, 6, 1)
    x[2:5, :, LACKING] = number
    _, items = read(
        write(tmp_path, x),
        frame_rate_hz=25.0,
        layout="coco-17" if name == "array" else None,
    )
    found = np.stack([frame.scores[0] > 0 for frame in frames(items)])
    wanted = np.ones((6, len(layout.joints)), bool)
    wanted[2:5, LACKING] = False
    assert (found == wanted).all()
    [told] = faults(items)
    assert told.message.startswith(f"9 of {6 * len(layout.joints)} joints at the origin")
    assert (told.count, told.fatal) == (0, False)


def test_no_more_is_reported_of_joints_whose_scores_are_0_and_of_persons_who_are_absent(
    tmp_path: Path,
) -> None:
    x = pixels(COCO_17, 6, 2)
    scores = np.full((6, 17), 0.9)
    x[2:5, 0, LACKING], scores[2:5, LACKING] = 0, 0
    _, items = read(
        wide(tmp_path / "a.csv", x[:, 0], COCO_17, underscored, scores=scores), frame_rate_hz=25.0
    )
    assert faults(items) == []
    assert not frames(items)[3].scores[0, list(LACKING)].any()
    x[:, 1] = 0
    path = long(tmp_path / "b.csv", x[:2], COCO_17.joints, "frame,person,joint,x,y")
    _, items = read(path, frame_rate_hz=25.0)
    assert faults(items) == []
    assert [frame.scores.any(1).tolist() for frame in frames(items)] == [[True, False]] * 2


def test_streams_of_python_and_pipes_report_it_at_once_and_at_the_end(tmp_path: Path) -> None:
    x = pixels(COCO_17, 6, 1)[:, 0]
    x[1:3, LACKING] = -1
    stream = make_converter(
        x[0], SourceOptions(layout="coco-17"), rate_hz=25.0, name="a", live=True
    )
    items = [item for value in x for item in stream.items(value, None)] + list(stream.finish())
    assert [type(item) for item in items[:3]] == [SkeletonFrame, Fault, SkeletonFrame]
    assert items[-1].message.startswith("6 of 102 joints at the origin")
    assert sum(isinstance(item, Fault) for item in items) == 2

    path = wide(tmp_path / "a.csv", x, COCO_17, underscored)
    code = """if True:
        from costream.sources.base import SourceOptions
        from costream.sources.uris import open_source
        source = open_source("-", SourceOptions(frame_rate_hz=25.0))
        source.open()
        for item in source.items():
            print(getattr(item, "message", type(item).__name__))
    """
    with path.open() as file:
        piped = subprocess.Popen(["cat"], stdin=file, stdout=subprocess.PIPE)
        out = subprocess.run(
            [sys.executable, "-c", code], stdin=piped.stdout, capture_output=True, text=True
        )
    assert out.stdout.splitlines()[:2] == [
        "SkeletonFrame",
        "joints at the origin or at equal negative numbers are treated as missing",
    ], out
    assert out.stdout.splitlines()[-1].startswith("6 of 102 joints")


bodies = st.integers(0, 2**32 - 1).map(
    lambda seed: (
        standing(1)[0, 0] + np.random.default_rng(seed).normal(0, 0.03, (15, 3)),
        np.random.default_rng(seed),
    )
)


@given(bodies, st.sampled_from([0.0, -1.0, -9999.0]), st.integers(1, 6), st.booleans())
def test_placeholders_are_missing_and_nothing_else(made, number, count, scored) -> None:
    body, random = made
    for places in (
        body[:, :2] * (100, -100) + np.array((300, 400)),  # a picture
        body + np.array((0.3, 0.2, 3.0)),  # space, before a camera
    ):
        lacking = random.choice(15, count, replace=False)
        places[lacking] = number
        scores = random.uniform(0.1, 1, 15) if scored else None
        person = make_person(places, scores)
        assert sorted(np.flatnonzero(person.scores == 0)) == sorted(lacking)
        assert person.unset is not None
        assert sorted(np.flatnonzero(person.unset)) == sorted(lacking)


@given(bodies, st.integers(0, 14), st.sampled_from([2, 3]))
def test_a_joint_at_the_origin_of_a_body_that_is_centred_on_it_is_there(made, root, axes) -> None:
    body, _ = made
    body[0, 1] = 0.95  # the hips, between head and feet
    for joint in (0, root if 0.2 < body[root, 1] < 1.5 else 0):
        places = (body - body[joint])[:, :axes]
        low, high = np.delete(places, joint, 0).min(0), np.delete(places, joint, 0).max(0)
        if (low < 0).all() and (high > 0).all():
            person = make_person(places)
            assert person.scores.all()
            assert person.unset is None
        # Two joints at the origin are not there.
        places[[3, 7]] = 0
        places[joint] = 0
        assert not make_person(places).scores[[3, 7]].any()


def test_a_body_in_a_plane_through_the_origin_keeps_its_root() -> None:
    body = standing(1)[0, 0]
    body[:, 2] = 0
    assert make_person(body - body[0]).scores.all()


def test_a_body_of_zeros_is_absent_and_its_numbers_are_judged_before_they_are_turned() -> None:
    assert make_person(np.zeros((15, 3)), np.ones(15)).unset is None
    assert not make_person(np.zeros((15, 3)), np.ones(15)).scores.any()
    places = pixels(COCO_17, 1)[0, 0]
    places[[3, 5]] = (-1, -1), (0, 0)
    person = make_person(places, shift=320, signs=(1, -1))
    assert np.flatnonzero(person.scores == 0).tolist() == [3, 5]
    assert not person.joints[[3, 5]].any()
    assert person.joints[4].tolist() == pytest.approx([places[4, 0] - 320, 320 - places[4, 1]])


def test_json_with_a_score_of_0_or_below_is_missing(tmp_path: Path) -> None:
    content = alphapose(pixels(COCO_17, 2))
    for k, score in enumerate((0.0, -1.0)):
        content[0]["keypoints"][3 * k + 2] = score
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    first, second = frames(read(path, frame_rate_hz=25.0)[1])
    assert np.flatnonzero(first.scores[0] == 0).tolist() == [0, 1]
    assert second.scores[0].all()
