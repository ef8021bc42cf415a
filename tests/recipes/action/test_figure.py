"""Poses, acts and random movements of the rendered figure."""

from __future__ import annotations

import math

import numpy as np
import pytest

from weights.recipes.action.rendering.figure import (
    AZIMUTH,
    LABELS,
    SIZE,
    X,
    Y,
    Z,
    joints,
    lying,
    move,
    random_movement,
    seated,
    standing,
    stay,
    walk,
)
from weights.recipes.action.rendering.scenes import rendered_clips


def test_standing_on_the_floor():
    at = joints(standing(1.0, 2.0, 0.0), 1.0)
    assert at["crown"][2] == pytest.approx(1.64, abs=0.05)
    for side in ("left ", "right "):
        assert 0 < at[side + "ankle"][2] < 0.12
        assert np.hypot(*(at[side + "ankle"][:2] - (1, 2))) < 0.2
    assert at["left hip"][1] > at["right hip"][1]  # it looks along x


def test_bones_keep_their_length_in_every_pose():
    def bones(p):
        at = joints(p, 1.0)
        pairs = [("hip", "knee"), ("knee", "ankle"), ("shoulder", "elbow"), ("elbow", "hand")]
        return [np.linalg.norm(at["left " + a] - at["left " + b]) for a, b in pairs]

    for p in (seated(0, 0, 1.0, 0.45), lying(0, 0, 0.4, 2.0), lying(1, 1, 0, 0.3, 1.3)):
        assert bones(p) == pytest.approx(bones(standing(0, 0, 0)), abs=1e-9)


def test_sitting_and_lying():
    at = joints(seated(0, 0, 0.0, 0.45), 1.0)
    assert at["left knee"][0] > 0.3
    assert 0 < at["left ankle"][2] < 0.25
    at = joints(lying(0, 0, 0.4, 0.0), 1.0)
    assert max(p[2] for p in at.values()) < 0.85
    assert at["head"][0] < -0.5
    assert at["left ankle"][0] > 0.7


def test_walk_arrives_and_looks_where_it_goes():
    act = walk(standing(0, 0, 3.0), (2.0, 1.0), 1.0)
    end = act.end()
    assert (end[X], end[Y]) == pytest.approx((2, 1))
    assert act.length_s == pytest.approx(math.sqrt(5))
    assert math.cos(end[AZIMUTH] - math.atan2(1, 2)) == pytest.approx(1)
    feet = [joints(act.play(t), 1.0)["left ankle"][2] for t in np.linspace(0.1, 2, 40)]
    assert min(feet) > 0
    assert max(feet) - min(feet) > 0.03


def test_move_passes_through_its_keys_and_turns_the_short_way():
    first, second = standing(0, 0, 3.0), standing(1, 0, -3.0)
    act = move("sit down", [(1.0, second), (3.0, seated(1, 1, -3.0, 0.45))], first)
    assert act.play(0.0) == pytest.approx(first)
    assert act.play(1.0)[X] == pytest.approx(1)
    assert 3.0 < act.play(0.5)[AZIMUTH] < 2 * math.pi - 3.0
    assert act.end()[Z] == pytest.approx(0.56)


def test_sudden_movement_gathers_speed():
    keys = [(1.0, standing(1, 0, 0))]
    sudden = move("fall", keys, standing(0, 0, 0), sudden=True)
    assert [sudden.play(t)[X] for t in (0.5, 1.0)] == pytest.approx([0.25, 1.0])


def test_staying_moves_a_little_and_repeats():
    act, again = (stay("sit", seated(0, 0, 0, 0.45), 5.0, seed=3) for _ in range(2))
    shift = np.abs(act.play(3.3) - act.play(0.0))
    assert 0 < shift.max() < 0.1
    assert np.array_equal(act.play(3.3), again.play(3.3))


def movements(count, seed=0):
    rng = np.random.default_rng(seed)
    return [random_movement(rng, f"movement {k}") for k in range(count)]


def times(act):
    return np.linspace(0, act.length_s, 50)


@pytest.mark.parametrize("movement", movements(20), ids=lambda m: m.name)
def test_a_movement_begins_and_ends_standing_with_a_foot_on_the_floor(movement):
    start = standing(1.0, 2.0, 0.5)
    act = movement.act(start, np.random.default_rng(1))
    assert act.label == movement.name
    assert 0.5 < act.length_s < 30
    assert np.allclose(act.play(0.0), start)
    assert np.allclose(act.end(), start)
    lowest = [
        min(joints(act.play(t), 1.0)[f"{side} ankle"][2] for side in ("left", "right"))
        for t in times(act)
    ]
    assert -0.1 < min(lowest) <= max(lowest) < 0.3
    assert max(np.abs(act.play(t) - start).max() for t in times(act)) > 0.2


def test_movements_differ_and_nobody_makes_one_twice_alike():
    one, other = movements(2)
    start = standing(0, 0, 0)

    def poses(movement, seed):
        act = movement.act(start, np.random.default_rng(seed))
        return np.stack([act.play(t) for t in times(act)])

    def apart(a, b):
        return np.abs(a - b).max()

    assert apart(poses(one, 0), poses(movements(1)[0], 0)) == 0
    assert 0 < apart(poses(one, 0), poses(one, 1)) < apart(poses(one, 0), poses(other, 0))
    assert poses(one, 0).shape == (50, SIZE)


def test_clips_of_movements_name_them_behind_the_labels():
    made = movements(3)
    (clip,) = rendered_clips(1, 5, 2.0, (32, 24), made)
    (again,) = rendered_clips(1, 5, 2.0, (32, 24), made)
    assert np.array_equal(clip.frames, again.frames)
    assert set(clip.labels.tolist()) <= {0, 1, *range(len(LABELS), len(LABELS) + 3)}
    assert (clip.labels >= len(LABELS)).mean() > 0.2
    assert clip.labels[0] == 0
