"""Motions of both arms, made of motions of one arm each."""

from __future__ import annotations

import numpy as np
import pytest

from costream.core.layouts import BODY_15
from weights.recipes.skeleton.composed import BOTH, EACH, composed, keep_down
from weights.recipes.skeleton.figures import figures

NECK, WRISTS = BODY_15.joints.index("neck"), {"left": 5, "right": 8}
ONE = ("raise left hand", "raise right hand")


def bones(x: np.ndarray) -> list[np.ndarray]:
    return [np.linalg.norm(x[:, a] - x[:, b], axis=-1) for a, b in BODY_15.bones]


@pytest.mark.long
def test_both_arms_do_what_one_does_in_each_motion() -> None:
    found = composed([m for m in figures(0) if m.label in ONE], 0)
    both = [m for m in found if m.label == "raise both hands"]
    assert len(both) == EACH
    assert {m.label for m in found} == {*ONE, "raise both hands"}  # nobody waves
    for motion in found:
        x = motion.joints[:, 0, :, :3]
        assert x.shape[1:] == (15, 3)
        assert np.isfinite(x).all()
        assert abs(np.mean(bones(x)) - 1) < 0.01
        raised = {side for side, k in WRISTS.items() if np.ptp(x[:, k, 1]) > 0.5}
        assert raised == {side for side in WRISTS if side in motion.label or "both" in motion.label}
    assert len({m.joints.tobytes() for m in both}) > 0.9 * EACH


@pytest.mark.long
def test_some_elbows_stay_down_while_the_hand_goes_up() -> None:
    found = composed([m for m in figures(0) if m.label in ONE], 0)
    left = [m.joints[:, 0, :, :3] for m in found if m.label == "raise left hand"]
    highest = [(x[:, 4, 1] - x[:, 3, 1]).max() for x in left]
    assert min(highest) < -0.5 < 0.5 < max(highest)


def test_arms_stay_as_long_as_they_are_and_forearms_do_what_they_did() -> None:
    x = np.random.default_rng(0).standard_normal((30, 15, 3))
    low = x.copy()
    keep_down(low, (3, 4, 5), 0.1)
    upper, was = (y[:, 4] - y[:, 3] for y in (low, x))
    length = np.linalg.norm(upper, axis=1)
    np.testing.assert_allclose(length, np.linalg.norm(was, axis=1))
    assert (upper[:, 1] <= 0.1 * length + 1e-9).all()
    np.testing.assert_allclose(low[:, 5] - low[:, 4], x[:, 5] - x[:, 4])
    kept = was[:, 1] <= 0.1 * length
    assert kept.any()
    np.testing.assert_array_equal(low[kept], x[kept])


@pytest.mark.long
def test_nothing_is_made_without_motions_of_both_sides() -> None:
    lefts = [m for m in figures(0) if m.label == "wave left hand"]
    assert composed(lefts, 0) == []
    assert set(BOTH) == {"raise both hands", "wave both hands"}
