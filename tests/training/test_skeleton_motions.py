"""Motions, their augmentation and streams of them."""

from __future__ import annotations

import numpy as np
import pytest

from costream.core.layouts import BODY_15
from costream.labels.recording import UNSCORED
from costream.training.skeleton.motion_augment import Augmenter, Variety, retime, rotation
from costream.training.skeleton.motion_streams import RAMP, StreamMaker, importance
from costream.training.skeleton.motions import Motion, batch, resample_joints, single
from kit import data_skeleton

STILL = Variety(0, 0, 0, 0, 0, 0, 0, 0, 0)
LABELS = ["background", *data_skeleton.ACTS]


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def motions():
    return [
        Motion(f"{label} {k}", label, str(k), single(data_skeleton.act(label, k, 30)))
        for label in data_skeleton.ACTS
        for k in range(2)
    ]


def augmenter(variety, mirrored=None):
    return Augmenter(BODY_15, 3, variety, mirrored or {})


def lengths(joints):
    child, parent = np.array(BODY_15.bones).T
    return np.linalg.norm(joints[:, 0, child, :3] - joints[:, 0, parent, :3], axis=-1)


def test_frames_of_zeros_are_not_seen():
    places = data_skeleton.act("wave", 0, 6)
    places[2] = 0
    joints = single(places)
    assert joints.shape == (6, 1, 15, 4)
    assert joints[:, 0, :, 3].tolist() == [[float(k != 2)] * 15 for k in range(6)]


def test_no_variety_changes_nothing(rng):
    joints = single(data_skeleton.act("wave", 0))
    other, label = augmenter(STILL)(joints, "wave", rng)
    assert label == "wave"
    np.testing.assert_allclose(other, joints, atol=1e-6)


def test_turns_keep_heights_and_bones(rng):
    joints = single(data_skeleton.act("bend", 0))
    other, _ = augmenter(Variety(0, 0, 0, 3, 0, 0, 0, 0, 0))(joints, "bend", rng)
    assert np.abs(other - joints).max() > 0.1
    np.testing.assert_allclose(other[..., 1], joints[..., 1], atol=1e-6)
    np.testing.assert_allclose(lengths(other), lengths(joints), atol=1e-5)


def test_a_rotation_is_one():
    turn = rotation(0.4, -0.2, 0.1)
    np.testing.assert_allclose(turn @ turn.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(turn) == pytest.approx(1)


def test_bones_change_alike_left_and_right_and_keep_their_directions(rng):
    joints = single(data_skeleton.act("step", 0))
    other, _ = augmenter(Variety(0, 0, 0.2, 0, 0, 0, 0, 0, 0))(joints, "step", rng)
    ratio = lengths(other) / lengths(joints)
    assert np.ptp(ratio, axis=0).max() < 1e-3  # the same throughout
    factor = dict(zip([c for c, _ in BODY_15.bones], ratio[0], strict=True))
    assert np.std(list(factor.values())) > 0.02
    for child, twin in enumerate(BODY_15.mirrored):
        if child:
            assert factor[child] == pytest.approx(factor[twin], abs=1e-4)


def test_mirrors_swap_sides_and_labels(rng):
    joints = single(data_skeleton.act("wave", 0))
    always = Variety(0, 0, 0, 0, 0, 0, 0, 0, mirror=1)
    other, label = augmenter(always, {"wave": "wave left"})(joints, "wave", rng)
    assert label == "wave left"
    right, left = BODY_15.joints.index("right wrist"), BODY_15.joints.index("left wrist")
    np.testing.assert_allclose(other[:, 0, left, 0], -joints[:, 0, right, 0], atol=1e-6)
    np.testing.assert_allclose(other[:, 0, left, 1:], joints[:, 0, right, 1:], atol=1e-6)
    again, _ = augmenter(always, {"wave left": "wave"})(other, label, rng)
    np.testing.assert_allclose(again, joints, atol=1e-6)


def test_what_has_no_mirrored_label_is_not_mirrored(rng):
    joints = single(data_skeleton.act("wave", 0))
    always = Variety(0, 0, 0, 0, 0, 0, 0, 0, mirror=1)
    other, label = augmenter(always, {"wave": None})(joints, "wave", rng)
    assert label == "wave"
    np.testing.assert_allclose(other, joints, atol=1e-6)


def test_speed_changes_the_length():
    joints = single(data_skeleton.act("bend", 0, 40))
    assert len(retime(joints, np.log(2), 0)) == 20
    assert len(retime(joints, -np.log(2), 0)) == 80
    np.testing.assert_allclose(retime(joints, 0.3, 0.05)[[0, -1]], joints[[0, -1]], atol=1e-6)


def test_nothing_is_interpolated_with_a_joint_that_is_not_seen():
    joints = single(data_skeleton.act("bend", 0, 4))
    joints[1, 0, 3] = 0
    halves = resample_joints(joints, np.array([0.4, 0.6, 2.5]))
    np.testing.assert_array_equal(halves[0, 0, 3], joints[0, 0, 3])
    np.testing.assert_array_equal(halves[1, 0, 3], joints[1, 0, 3])
    np.testing.assert_allclose(halves[2], (joints[2] + joints[3]) / 2, atol=1e-6)


def test_lost_limbs_have_no_place(rng):
    joints = single(data_skeleton.act("step", 0))
    other, _ = augmenter(Variety(0, 0, 0, 0, 0, 0, 0, lost=1, mirror=0))(joints, "step", rng)
    gone = other[..., 3] == 0
    assert 0 < gone.sum() < gone.size / 4
    assert not other[gone].any()
    np.testing.assert_allclose(other[~gone], joints[~gone], atol=1e-6)


def test_a_batch_ends_with_nobody():
    clips = [single(data_skeleton.act("wave", 0, n)) for n in (5, 9)]
    made = batch(clips)
    assert made.shape == (2, 9, 1, 15, 4)
    assert not made[0, 5:].any()
    np.testing.assert_array_equal(made[1], clips[1])


def test_streams_have_a_label_and_a_weight_for_every_step(motions, rng):
    maker = StreamMaker(motions, LABELS, augmenter(Variety()), "background")
    seen = set()
    for _ in range(20):
        stream = maker.draw(70, rng)
        assert stream.joints.shape == (70, 1, 15, 4)
        assert stream.labels.shape == stream.weights.shape == (70,)
        assert (stream.weights > 0).all()
        seen |= set(stream.labels.tolist())
    assert seen == {0, 1, 2, 3}


def test_without_background_pauses_are_not_scored(motions, rng):
    maker = StreamMaker(motions, LABELS[1:], augmenter(STILL), None)
    labels = np.concatenate([maker.draw(70, rng).labels for _ in range(10)])
    assert set(labels.tolist()) == {UNSCORED, 0, 1, 2}


def test_streams_do_not_jump(motions, rng):
    maker = StreamMaker(motions, LABELS, augmenter(STILL), "background")
    for _ in range(20):
        stream = maker.draw(90, rng)
        hips = stream.joints[:, 0, 0, :3]
        # A cut may change the pose at once, but the body stays where it is.
        assert np.linalg.norm(np.diff(hips, axis=0), axis=1).max() < 0.25


def test_streams_repeat_with_their_seed(motions):
    maker = StreamMaker(motions, LABELS, augmenter(Variety()), "background")
    one, two = (maker.draw(50, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(one.joints, two.joints)
    np.testing.assert_array_equal(one.labels, two.labels)


def test_later_steps_weigh_more():
    weights = importance(60)
    assert (np.diff(weights) >= 0).all()
    assert weights[0] < 0.05
    assert weights[RAMP - 1] == 1
    assert importance(10)[-1] == 1
