"""Skeleton models: skeletons, and persons detected in video."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from costream.core.errors import ModelError, SourceError
from costream.core.layouts import BODY_15, BODY_25, NTU_25
from costream.core.records import FeatureRow, SkeletonFrame, SourceInfo, SourceKind, VideoFrame
from costream.models import streaming
from costream.models.build import build
from costream.models.compatibility import source_notes
from costream.models.pose import tracker as pose
from costream.models.skeleton.joints import JointStreams
from costream.models.skeleton.network import SkeletonNet
from costream.models.streaming import StreamingModel
from costream.weights_io.card import Card
from costream.weights_io.file import read_weights
from kit import data_skeleton

FRONT = np.array((-1, 1), np.float32)  # a Kinect's x is to its left
FRONTEND = {"layout": "body-15", "persons": 2, "streams": ["joint", "bone"]}


def made(padding: str = "causal", **frontend: Any) -> StreamingModel:
    options = {**FRONTEND, **frontend}
    joints = JointStreams(**options)
    arguments = {
        "num_classes": 3,
        "joints": joints.joints,
        "bones": [list(bone) for bone in joints.layout.bones],
        "centre": joints.layout.centre,
        "channels": joints.channels,
        "persons": joints.persons,
        "widths": [4, 4, 8],
        "strides": [1, 2, 1],
        "kernel": 3,
        "padding": padding,
        "pool": 4,
    }
    card = Card(
        "tiny",
        "skeleton actions",
        "costgcn",
        arguments,
        ("wave", "walk", "sit"),
        15.0,
        frontend="joints",
        frontend_arguments=options,
    )
    return StreamingModel(card, SkeletonNet(**arguments), joints)


def frames(count: int, layout: Any = BODY_15, axes: int = 3, seed: int = 0) -> list[SkeletonFrame]:
    random = np.random.default_rng(seed)
    shape = (count, 2, len(layout.joints))
    joints = random.standard_normal((*shape, axes)).astype(np.float32)
    scores = np.ones(shape, np.float32)
    scores[count // 3 : count // 2, 1] = 0
    joints[scores == 0] = 0
    return [SkeletonFrame(i, i / 15, joints[i], scores[i], layout) for i in range(count)]


def info(kind: SourceKind, **known: Any) -> SourceInfo:
    return SourceInfo("x", "x", kind, None, None, **known)


@pytest.mark.parametrize("layout", [BODY_15, NTU_25, BODY_25])
def test_skeletons_of_any_layout_go_through_the_frontend(layout: Any) -> None:
    model, items = made(), frames(20, layout)
    state = model.init_state()
    got = [model.step([item], state) for item in items]
    clip = torch.from_numpy(np.stack([model.frontend.prepare(item) for item in items]))[None]
    with torch.inference_mode():
        # The causal form gives for each feature of a clip what a stream has there.
        expected = torch.softmax(model.network(model.frontend(clip))[0], -1)
    outputs = [r.probabilities[0] for r in got if r.probabilities is not None]
    np.testing.assert_allclose(np.stack(outputs), expected, atol=1e-5)
    assert all(r.skeletons == (item,) for r, item in zip(got, items, strict=True))


def test_most_steps_of_a_strided_network_give_nothing() -> None:
    model = made("same")
    state = model.init_state()
    results = [model.step([item], state) for item in frames(60)]
    given = [k for k, r in enumerate(results) if r.probabilities is not None]
    assert model.info.stride == 2
    assert given[0] == model.network.delay
    assert set(np.diff(given)) == {2}
    assert all(r.macs > 0 and r.network_s > 0 for r in results)
    assert results[0].anticipation is None
    assert results[0].warmup == (True,)


def test_where_nobody_is_the_background_is_certain() -> None:
    model = made()
    card = replace(model.info.card, background=model.info.card.labels[1])
    model.info = replace(model.info, card=card)
    state, someone = model.init_state(2), frames(1)[0]
    nobody = replace(someone, joints=0 * someone.joints, scores=0 * someone.scores)
    got = [model.step([nobody, someone], state).probabilities for _ in range(4)]
    for probabilities in (p for p in got if p is not None):
        assert probabilities[0].tolist() == [
            float(k == 1) for k in range(len(model.info.card.labels))
        ]
        assert 0 < probabilities[1, 1] < 1
    assert any(p is not None for p in got)


def test_costs_count_the_frontend() -> None:
    model = made()
    result = model.step(frames(1), model.init_state())
    assert result.macs == model.frontend.count_macs() + model.network.count_macs()
    assert result.dense_macs == model.frontend.count_macs() + model.network.dense_macs


def test_sources_that_fit() -> None:
    made().check(info("skeleton", layout="ntu-25", axes=3))
    made().check(info("skeleton", layout="my-own", axes=3))  # found out with the first frame
    made(axes=2).check(info("skeleton", layout="coco-17", axes=2))
    made(axes=2).check(info("skeleton", layout="ntu-25", axes=3))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (info("skeleton", layout="coco-17", axes=2), "2 axes, but tiny takes 3; .*-m costgcn-2d"),
        (info("features", width=8), "tiny takes skeletons, not precomputed features"),
    ],
)
def test_sources_that_do_not_fit(source: SourceInfo, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        made().check(source)


def test_a_card_without_its_frontend_is_refused() -> None:
    """Such a network takes joints, and nothing prepares them."""
    model = made()
    card = replace(model.info.card, frontend=None)
    alone = StreamingModel(card, SkeletonNet(**card.arguments), None)
    for source in (info("skeleton", layout="body-15", axes=3), info("features", width=8)):
        with pytest.raises(ModelError, match="takes no rows of features"):
            alone.check(source)


def test_layouts_that_have_no_name_are_checked_too() -> None:
    part = NTU_25.only([k for k, joint in enumerate(NTU_25.joints) if "thumb" not in joint])
    made().check(info("skeleton", layout=part.name, joints=part, axes=3))
    with pytest.raises(SourceError, match="2 axes"):
        made().check(info("skeleton", layout=part.name, joints=part, axes=2))
    less = NTU_25.only([k for k, joint in enumerate(NTU_25.joints) if "knee" not in joint])
    with pytest.raises(SourceError, match="no left knee, right knee"):
        made().check(info("skeleton", layout=less.name, joints=less, axes=3))


def test_a_layout_that_lacks_joints_is_refused() -> None:
    model = made(layout="ntu-25", normalise="ntu")
    model.check(info("skeleton", layout="body-15", axes=3))  # hands stand in for finger tips
    odd = type(BODY_15)("odd", ("hips", "neck"), ((1, 0),), 0)
    with pytest.raises(SourceError, match="layout odd has no"):
        model.step([SkeletonFrame(0, 0.0, *_zeros(2), odd)], model.init_state())


def _zeros(joints: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((1, joints, 3), np.float32), np.zeros((1, joints), np.float32)


def test_other_items_are_refused() -> None:
    model = made()
    row = FeatureRow(0, 0.0, np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="of one type"):
        model.step([*frames(1), row], model.init_state(2))


def test_persons_of_a_video_go_through_the_frontend(monkeypatch: Any) -> None:
    """What the tracker finds is all that counts; the real one has its tests in frontends/."""
    given = frames(10)

    class Tracker:
        def __init__(self, persons: int, places: str | None, network: str) -> None:
            assert (persons, places, network) == (2, None, "pose")

        def find(self, frame: VideoFrame) -> SkeletonFrame:
            assert frame.rgb.shape == (4, 4, 3)
            return given[frame.i]

    monkeypatch.setattr(pose, "PoseTracker", Tracker)
    model = made()
    assert model.info.box == pose.BOX
    seen, direct = model.init_state(), model.init_state()
    for i, skeleton in enumerate(given):
        video = VideoFrame(i, i / 15, i, lambda: np.zeros((4, 4, 3), np.uint8))
        result, expected = model.step([video], seen), model.step([skeleton], direct)
        assert result.skeletons == (skeleton,)
        if expected.probabilities is not None:
            assert np.array_equal(result.probabilities, expected.probabilities)
    assert model.check(info("skeleton", layout="body-15", axes=3)) == {}
    assert "not counted" in source_notes(model.frontend, info("video"))["pose"]


@pytest.mark.parametrize(("axes", "places"), [(2, "height"), (3, None)])
def test_several_persons_are_found_where_the_network_needs_them(
    axes: int, places: str | None, monkeypatch: Any
) -> None:
    monkeypatch.setattr(streaming, "PoseTracker", lambda *given, detects: (*given, detects))
    assert made(axes=axes).person_finder(3) == (3, places, "pose", True)


def test_pictures_of_two_axes() -> None:
    """A network of pictures takes joints in space too, seen from the front."""
    model = made(axes=2)
    flat = [
        SkeletonFrame(f.i, f.time_s, f.joints[..., :2] * FRONT, f.scores, f.layout)
        for f in frames(8)
    ]
    first, second = model.init_state(), model.init_state()
    for deep, shallow in zip(frames(8), flat, strict=True):
        a, b = (model.step([f], s).probabilities for f, s in ((deep, first), (shallow, second)))
        assert (a is None and b is None) or np.array_equal(a, b)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"persons": 2}, "outputs 2 persons, the network takes 1"),
        ({"streams": ["joint"]}, "outputs 3 channels, the network takes 6"),
        ({"persons": "[["}, "persons must be a whole number"),
    ],
)
def test_frontends_that_do_not_fit_their_network(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    stored = read_weights(data_skeleton.write_tiny_weights(tmp_path / "tiny.safetensors"))
    arguments = {**stored.card.frontend_arguments, **changes}
    card = replace(stored.card, frontend_arguments=arguments)
    with pytest.raises(ModelError, match=message):
        StreamingModel(card, *build(card, stored.tensors))
