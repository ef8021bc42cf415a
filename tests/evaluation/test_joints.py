"""Object keypoint similarity, against values by hand, and persons of two runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costream.bench.changes import pose_subject
from costream.core.layouts import COCO_17, MEDIAPIPE_33
from costream.evaluation.metrics.joints import BODY, SIGMAS, joint_similarity
from costream.models.pose.found import DetectedPerson

ALL = np.ones(17, bool)
NONE = np.zeros(17, bool)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def body(rng: np.random.Generator) -> np.ndarray:
    """Return joints [17, 2] whose box is 100 x 50."""
    places = rng.uniform(0, 1, (17, 2))
    boxed: np.ndarray = (places - places.min(0)) / np.ptp(places, 0) * (100, 50)
    return boxed


def test_the_same_joints_have_a_similarity_of_one(rng: np.random.Generator) -> None:
    places = body(rng)
    for seen in (ALL, NONE, places[:, 0] > 50):
        assert joint_similarity(places, seen, places) == pytest.approx(1)


@pytest.mark.parametrize(("joint", "sigma"), [("nose", 0.026), ("left hip", 0.107)])
def test_one_joint_by_hand(rng: np.random.Generator, joint: str, sigma: float) -> None:
    places, k = body(rng), COCO_17.joints.index(joint)
    others, scale = places.copy(), math.sqrt(BODY * 100 * 50)
    others[k, 0] += 2 * sigma * scale  # COCO's k is twice its sigma
    assert joint_similarity(places, ALL, others) == pytest.approx((16 + math.exp(-0.5)) / 17)
    assert joint_similarity(places, np.arange(17) == k, others) == pytest.approx(math.exp(-0.5))
    assert joint_similarity(places, np.arange(17) != k, others) == pytest.approx(1)


def test_size_and_place_of_the_picture_do_not_matter(rng: np.random.Generator) -> None:
    places, others = body(rng), body(rng)
    expected = sum(
        math.exp(-(math.dist(a, b) ** 2) / (2 * BODY * 5000 * (2 * sigma) ** 2))
        for a, b, sigma in zip(places, others, SIGMAS, strict=True)
    )
    assert joint_similarity(places, ALL, others) == pytest.approx(expected / 17)
    moved = joint_similarity(3 * places + 7, ALL, 3 * others + 7)
    assert moved == pytest.approx(expected / 17)


def person(rng: np.random.Generator) -> DetectedPerson:
    return DetectedPerson(
        None, np.ones(33, np.float32), rng.random((33, 2), np.float32), MEDIAPIPE_33
    )


def test_who_is_lost_or_found_beside_is_not_alike(rng: np.random.Generator, tmp_path: Path) -> None:
    alike = pose_subject(tmp_path)[0].alike
    one, two = person(rng), person(rng)
    away = replace(one, places=one.places + 1)
    assert alike([[one, two]], [[two, one]]) == (1, 1, 1)
    assert alike([[one, two]], [[one]]) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert alike([[one]], [[one, away]]) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert alike([[one]], [[away]]) == (0, 0, 0)
    assert alike([[one], []], [[one], [two]]) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert alike([[]], [[]]) == (None, None, None)


def test_a_person_may_be_alike_at_a_half_only(rng: np.random.Generator, tmp_path: Path) -> None:
    alike = pose_subject(tmp_path)[0].alike
    one = person(rng)
    places = one.places.copy()
    hidden = [MEDIAPIPE_33.joints.index(joint) for joint in COCO_17.joints[:7]]
    places[hidden] += 1
    other = replace(one, places=places)  # 10 of 17 joints are where they were
    assert alike([[one]], [[other]])[:2] == (1, 0)
    scores = one.scores.copy()
    scores[hidden] = 0
    unseen = replace(one, scores=scores)  # what the reference does not see does not count
    assert alike([[unseen]], [[replace(other, scores=scores)]])[:2] == (1, 1)
