"""Movements made up at random."""

from __future__ import annotations

import numpy as np
import pytest

from weights.recipes.action.rendering.figure import LABELS, SIZE, joints, random_movement, standing
from weights.recipes.action.rendering.scenes import rendered_clips


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
