"""Object tracking: ids across frames, by example and for all inputs."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.records import Box
from costream.runtime.tracking import ObjectTracker, pairwise_iou

STEP_S = 0.1


def box(x: float, y: float = 50.0, label: str = "car", side: float = 40.0, score=0.9) -> Box:
    return Box(x, y, x + side, y + side, score, label)


def ids(tracker: ObjectTracker, step: int, *boxes: Box) -> list[int | None]:
    return [seen.id for seen in tracker.update(step * STEP_S, boxes)]


def test_ids_count_from_one_the_best_first() -> None:
    tracker = ObjectTracker()
    assert ids(tracker, 0, box(0, score=0.5), box(100, score=0.8)) == [2, 1]
    assert ids(tracker, 1, box(102), box(3), box(300)) == [1, 2, 3]


def test_all_but_the_id_stays() -> None:
    boxes = (box(0, score=0.5), box(100, label="person", score=0.8))
    seen = ObjectTracker().update(0.0, boxes)
    assert tuple(replace(b, id=None) for b in seen) == boxes


@given(st.lists(st.integers(0, 3), min_size=2, max_size=8), st.integers(10, 24))
def test_boxes_that_are_repeated_are_no_observation(repeats: list[int], speed: int) -> None:
    """An object that moves fast, with and without repetitions of its box between looks."""
    plain, held = ObjectTracker(), ObjectTracker()
    for k, count in enumerate(repeats):
        seen = [box(50.0 + speed * k), box(500.0, label="cup")]
        expected = plain.update(0.2 * k, seen)
        assert held.update(0.2 * k, seen) == expected
        for m in range(count):
            assert held.update(0.2 * k + 0.05 * (m + 1), seen, looked=False) == expected


@pytest.mark.parametrize("label", ["car", "person"])
def test_objects_that_cross_keep_their_ids(label: str) -> None:
    """They pass through one another, so near that only their speed tells which is which."""
    tracker = ObjectTracker()
    for step in range(41):
        left, right = box(10.0 * step), box(400.0 - 10.0 * step, 55, label)
        assert ids(tracker, step, left, right) == [1, 2]
    assert left.x1 > right.x1


def test_a_trembling_box_keeps_its_id() -> None:
    rng = np.random.default_rng(0)
    tracker = ObjectTracker()
    for step in range(200):
        x, y = rng.normal(0, 2, 2)
        assert ids(tracker, step, box(6.0 * step + x, 50 + y)) == [1]


@pytest.mark.parametrize(("unseen", "same"), [(1, True), (9, True), (10, False), (30, False)])
def test_patience(unseen: int, same: bool) -> None:
    """Seen last at 0.9 s; the id lives 1 s, also where the object has gone on meanwhile."""
    tracker = ObjectTracker(patience_s=1.0)
    for step in range(10):
        assert ids(tracker, step, box(8.0 * step)) == [1]
    for step in range(10, 10 + unseen):
        assert ids(tracker, step) == []
    step = 10 + unseen
    assert ids(tracker, step, box(8.0 * step)) == [1 if same else 2]
    still = ObjectTracker()  # what stood still is found where it was
    assert [ids(still, 0, box(5)), ids(still, 7, box(7))] == [[1], [1]]


def crossing(
    rng: random.Random, rate_hz: float, *, meet: bool
) -> list[tuple[float, list[tuple[int, Box]]]]:
    """Two persons walk towards one another, as a detector that trembles sees them, with who is who.

    They swing their arms; one is behind the other, or (not ``meet``) a pillar, for up to a second.
    """
    tall, hidden_s = rng.uniform(120, 260), rng.uniform(0.3, 1.0)
    speeds = (rng.uniform(0.35, 0.9) * tall, -rng.uniform(0.35, 0.9) * tall)  # 0.6 to 1.5 m/s
    lines = (400.0, 400 + rng.uniform(-0.06, 0.06) * tall)
    steps = []
    for k in range(int(8 * rate_hz)):
        time_s, seen = k / rate_hz, []
        for who in (0, 1):
            if abs(time_s - 4) <= hidden_s / 2 and who == int(meet):
                continue
            swing = np.sin(2 * np.pi * 1.8 * time_s + 2 * who)
            x = 640 + speeds[who] * (time_s - 4) + (0 if meet or not who else 1.1 * tall)
            half, noise = 0.19 * tall * (1 + 0.12 * swing), 0.015 * tall
            corners = (x - half, lines[who] - tall, x + half, lines[who])
            trembling = (value + rng.gauss(0, noise) for value in corners)
            seen.append((who, Box(*trembling, min(1.0, max(0.3, rng.gauss(0.8, 0.08))), "person")))
        steps.append((time_s, seen))
    return steps


@pytest.mark.parametrize("rate_hz", [4, 8, 16])
def test_persons_who_are_hidden_as_they_cross_keep_their_ids(rate_hz: float) -> None:
    kept = 0
    for seed in range(24):
        tracker, ids = ObjectTracker(), ({}, {})  # type: ignore[var-annotated]
        for time_s, seen in crossing(random.Random(seed), rate_hz, meet=seed % 2 == 0):
            boxes = tracker.update(time_s, [b for _, b in seen])
            for (who, _), b in zip(seen, boxes, strict=True):
                ids[who][time_s] = b.id
        before = [{number for at, number in own.items() if 0.6 < at < 3} for own in ids]
        after = [{number for at, number in own.items() if at > 6} for own in ids]
        kept += before == after and [len(b) for b in before] == [1, 1] and before[0] != before[1]
    assert kept >= 0.95 * 24


def test_what_is_another_object() -> None:
    tracker = ObjectTracker(overlap=0.3)
    assert ids(tracker, 0, box(0)) == [1]
    assert ids(tracker, 1, box(0, label="truck")) == [2]
    assert ids(tracker, 2, box(0, label="truck"), box(0)) == [2, 1]
    assert ids(tracker, 3, box(22)) == [3]  # it overlaps too little: 18 / 62
    tracker.reset()
    assert ids(tracker, 4, box(0), box(100)) == [4, 5]
    assert ids(tracker, 5, box(10, score=0.99), box(2, score=0.3)) == [6, 4]  # the better overlap


def test_overlaps() -> None:
    boxes = np.array([[0, 0, 10, 10], [5, 0, 15, 10], [3, 3, 3, 9]], np.float64)
    expected = [[1, 1 / 3, 0], [1 / 3, 1, 0], [0, 0, 0]]
    assert np.allclose(pairwise_iou(boxes, boxes), expected)


PLACES = st.integers(0, 6).map(lambda k: 15.0 * k)  # coarse, so that boxes meet, and coincide
BOXES = st.builds(
    box, PLACES, PLACES, st.sampled_from(["car", "person"]), score=st.sampled_from([0.5, 0.9])
)
FRAMES = st.lists(st.lists(BOXES, max_size=8), max_size=8)


@given(FRAMES)
def test_an_id_is_one_object_of_one_label(frames: list[list[Box]]) -> None:
    tracker = ObjectTracker(patience_s=0.25)
    label: dict[int | None, str] = {}
    seen_at: dict[int | None, int] = {}
    for step, boxes in enumerate(frames):
        seen = tracker.update(step * STEP_S, boxes)
        assert len({b.id for b in seen}) == len(boxes)
        for b in seen:
            assert label.setdefault(b.id, b.label) == b.label
            assert step - seen_at.get(b.id, step) <= 2  # what was forgotten never comes back
            seen_at[b.id] = step
    assert sorted(label) == list(range(1, len(label) + 1))


@given(FRAMES, st.randoms(use_true_random=False))
def test_the_order_of_the_boxes_does_not_matter(
    frames: list[list[Box]], rng: random.Random
) -> None:
    tracker, other = ObjectTracker(), ObjectTracker()
    for step, boxes in enumerate(frames):
        mixed = rng.sample(boxes, len(boxes))
        seen = tracker.update(step * STEP_S, boxes)
        again = other.update(step * STEP_S, mixed)
        assert sorted(seen, key=repr) == sorted(again, key=repr)


@pytest.mark.parametrize("rate_hz", [4, 10])
def test_a_person_who_turns_round_keeps_the_id(rate_hz: float) -> None:
    """At once, and also where a busy machine leaves steps out: a box is no longer on its line."""
    tall = 200.0
    for speed in (0.3 * tall, 0.6 * tall):  # 0.5 and 1 m/s
        tracker, seen = ObjectTracker(), set()
        for k in range(int(12 * rate_hz)):
            way = speed * abs((k / rate_hz + 2) % 4 - 2)  # to and fro, every 2 s
            (found,) = tracker.update(
                k / rate_hz, [Box(way, 0, way + 0.4 * tall, tall, 0.9, "person")]
            )
            seen.add(found.id)
        assert seen == {1}
