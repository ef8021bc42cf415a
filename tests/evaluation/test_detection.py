"""Average precision and confusion of detections, against counting one by one and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.evaluation.metrics.detection import (
    DetectedBoxes,
    Truth,
    box_confusion,
    box_pairs,
    box_precision,
    boxes_alike,
    detection_scores,
    interpolated_precision,
    match,
    precision_interval,
    taken,
)
from costream.runtime.tracking import pairwise_iou


def boxes(*rows: tuple[float, float, float, float]) -> np.ndarray:
    return np.array(rows, dtype=float).reshape(-1, 4)


def test_shared_areas_by_hand() -> None:
    shared = pairwise_iou(
        boxes((0, 0, 2, 2), (5, 5, 5, 5)), boxes((0, 0, 2, 2), (1, 1, 3, 3), (2, 0, 4, 2))
    )
    np.testing.assert_allclose(shared, [[1, 1 / 7, 0], [0, 0, 0]])


def test_a_true_box_is_found_once_and_by_the_best() -> None:
    truth = boxes((0, 0, 10, 10))
    said = boxes((0, 0, 10, 8), (0, 0, 10, 10))  # the second fits better but is less sure
    assert match(said, truth, 0.5).tolist() == [True, False]
    assert match(said, truth, 0.9).tolist() == [False, True]


def test_a_taken_box_leaves_the_next_best() -> None:
    truth = boxes((0, 0, 10, 10), (2, 0, 12, 10))
    said = boxes((0, 0, 10, 10), (0, 0, 10, 10))
    assert match(said, truth, 0.5).tolist() == [True, True]  # the second shares 8 / 12
    assert match(said, truth, 0.7).tolist() == [True, False]


def found(*rows: tuple[float, float, float, float, float, int]) -> DetectedBoxes:
    table = np.array(rows, float).reshape(-1, 6)
    return DetectedBoxes(table[:, :4], table[:, 4], table[:, 5].astype(np.int64))


def test_boxes_of_two_runs_by_hand() -> None:
    full = found((0, 0, 10, 10, 0.9, 1), (20, 0, 30, 10, 0.8, 1), (0, 0, 10, 10, 0.7, 0))
    few = found((20, 0, 30, 9, 0.4, 1), (0, 5, 10, 15, 0.9, 1), (0, 0, 10, 10, 0.6, 2))
    assert box_pairs(few, full) == 1  # the second overlaps by a third, the last has another label
    assert box_pairs(full, full) == 3
    assert boxes_alike([full, few], [few, few]) == pytest.approx(2 * (1 + 3) / 12)
    assert boxes_alike([full], [found()]) == 0
    assert np.isnan(boxes_alike([found()], [found()]))


@pytest.mark.parametrize(
    ("right", "total", "expected"),
    [
        ([], 3, 0.0),
        ([True], 1, 1.0),
        ([False, True], 1, 0.5),
        ([True, False, True], 2, (51 * 1 + 50 * 2 / 3) / 101),  # recall 0 to 0.5, then to 1
        ([True], 2, 51 / 101),
        ([False, False], 2, 0.0),
        ([False, True, True], 2, 2 / 3),  # precision 0, 1/2, 2/3: made falling it is 2/3
    ],
)
def test_interpolation_by_hand(right: list[bool], total: int, expected: float) -> None:
    assert interpolated_precision(np.array(right, bool), total) == pytest.approx(expected)


def test_classes_and_pictures_are_kept_apart() -> None:
    here, there = boxes((0, 0, 4, 4)), boxes((8, 8, 12, 12))
    truth = [Truth(here, np.array([0])), Truth(there, np.array([1]))]
    found = [  # the right box in the wrong picture, then of the wrong class
        DetectedBoxes(there, np.array([0.9]), np.array([1])),
        DetectedBoxes(there, np.array([0.8]), np.array([0])),
    ]
    scores = detection_scores(found, truth, ("a", "b", "never"))
    assert scores["AP50"] == 0
    assert set(scores["classes"]) == {"a", "b"}  # type: ignore[call-overload]
    right = [DetectedBoxes(t.boxes, np.array([0.5]), t.labels) for t in truth]
    assert detection_scores(right, truth, ("a", "b"))["AP"] == 1
    assert math.isnan(box_precision(right, truth, 2))


def test_the_mean_over_overlaps() -> None:
    truth = [Truth(boxes((0, 0, 10, 10)), np.array([0]))]
    found = [DetectedBoxes(boxes((0, 0, 10, 7.2)), np.array([1.0]), np.array([0]))]
    (one,) = detection_scores(found, truth, ("a",))["classes"].values()  # type: ignore[attr-defined]
    assert one == {"objects": 1, "AP50": 1.0, "AP": pytest.approx(0.5)}  # right up to 0.70


def test_the_interval_is_over_clips() -> None:
    here, there = boxes((0, 0, 4, 4)), boxes((8, 8, 12, 12))
    truth = [Truth(here, np.array([0]))] * 40
    good = DetectedBoxes(here, np.array([0.9]), np.array([0]))
    bad = DetectedBoxes(there, np.array([0.5]), np.array([0]))
    found = [good] * 20 + [bad] * 20
    by_clip = precision_interval(found, truth, [k // 4 for k in range(40)], ("a",))
    by_picture = precision_interval(found, truth, range(40), ("a",))
    assert by_clip is not None
    assert by_picture is not None
    assert by_clip[0] < by_picture[0] < 0.5 < by_picture[1] < by_clip[1]
    assert precision_interval(found, truth, [0] * 40, ("a",)) is None
    assert precision_interval([good] * 40, truth, range(40), ("a",)) == (1.0, 1.0)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1)), max_size=12), st.integers(1, 5))
def test_detections_that_were_not_drawn_do_not_count(drawn: list, missed: int) -> None:  # type: ignore[type-arg]
    right = np.array([r for r, _ in drawn], bool)
    often = np.array([n for _, n in drawn], int)
    total = int((right * often).sum()) + missed
    found = interpolated_precision(right, total, often)
    assert found == interpolated_precision(right[often > 0], total)
    assert found == pytest.approx(interpolated_precision(right, 3 * total, 3 * often))


coordinate = st.integers(0, 6)
box = st.builds(
    lambda x, y, w, h: (x, y, x + w, y + h),
    coordinate,
    coordinate,
    st.integers(1, 6),
    st.integers(1, 6),
)
picture = st.tuples(
    st.lists(st.tuples(box, st.integers(0, 1)), max_size=4),
    st.lists(st.tuples(box, st.integers(0, 1), st.integers(1, 20)), max_size=6),
)


@pytest.mark.long
@settings(max_examples=150)
@given(st.lists(picture, min_size=1, max_size=4), st.sampled_from([0.5, 0.75]))
def test_against_counting_one_by_one(pictures: list, threshold: float) -> None:  # type: ignore[type-arg]
    truth = [
        Truth(boxes(*(b for b, _ in t)), np.array([c for _, c in t], int)) for t, _ in pictures
    ]
    found = [
        DetectedBoxes(
            boxes(*(b for b, _, _ in f)),
            np.array([s / 20 for _, _, s in f], float),
            np.array([c for _, c, _ in f], int),
        )
        for _, f in pictures
    ]
    for label in (0, 1):
        expected = brute_force(pictures, label, threshold)
        assert box_precision(found, truth, label, threshold) == pytest.approx(expected, nan_ok=True)


def brute_force(pictures: list, label: int, threshold: float) -> float:  # type: ignore[type-arg]
    """Walk down the detections of all pictures; read precision off at each of 101 recalls."""
    open_boxes = [[b for b, c in true if c == label] for true, _ in pictures]
    total = sum(map(len, open_boxes))
    if not total:
        return math.nan
    ranked = [
        (-score, number, rank, box)
        for number, (_, said) in enumerate(pictures)
        for rank, (box, c, score) in enumerate(said)
        if c == label
    ]
    points, hits = [], 0
    for count, (_, number, _, box) in enumerate(sorted(ranked), 1):
        best = max(open_boxes[number], key=lambda true: overlap(box, true), default=None)
        if best is not None and overlap(box, best) >= threshold:
            open_boxes[number].remove(best)
            hits += 1
        points.append((hits / total, hits / count))
    return (
        sum(max((p for r, p in points if r >= k / 100 - 1e-12), default=0.0) for k in range(101))
        / 101
    )


def overlap(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    cells = {(x, y) for x in range(a[0], a[2]) for y in range(a[1], a[3])}
    others = {(x, y) for x in range(b[0], b[2]) for y in range(b[1], b[3])}
    return len(cells & others) / len(cells | others)


HERE, THERE, AWAY = (0, 0, 10, 10), (20, 0, 30, 10), (50, 50, 60, 60)


def detected(*rows):
    boxes, scores, labels = zip(*rows, strict=True) if rows else ((), (), ())
    corners = np.array(boxes, float).reshape(-1, 4)
    return DetectedBoxes(corners, np.array(scores, float), np.array(labels, int))


def true_boxes(*rows):
    boxes, labels = zip(*rows, strict=True) if rows else ((), ())
    return Truth(np.array(boxes, float).reshape(-1, 4), np.array(labels, int))


def test_each_prediction_takes_the_object_it_is_most_like():
    likeness = np.array([[0.6, 0.9], [0.5, 0.8], [0.7, 0.7], [0.1, 0.2]])
    assert taken(likeness, 0.5).tolist() == [1, 0, -1, -1]
    assert taken(np.zeros((2, 0)), 0.5).tolist() == [-1, -1]


def test_right_confused_missed_and_of_nothing():
    said = [
        detected((HERE, 0.9, 0), (THERE, 0.8, 0), (AWAY, 0.7, 1)),
        detected((HERE, 0.4, 1), (THERE, 0.4, 0)),
        detected(),
    ]
    true = [true_boxes((HERE, 0), (THERE, 1)), true_boxes((HERE, 1)), true_boxes((AWAY, 0))]
    counts = box_confusion(said, true, (0.5, 0.3))
    # The box of class 0 in the second picture is below its threshold.
    assert counts.tolist() == [[1, 0, 1], [1, 1, 0], [0, 1, 0]]


def test_the_best_box_takes_the_object_whatever_it_says():
    said = [detected((HERE, 0.6, 0), (HERE, 0.9, 1))]
    counts = box_confusion(said, [true_boxes((HERE, 0))], (0.1, 0.1))
    assert counts.tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 0]]


def test_without_pictures_there_is_nothing():
    assert box_confusion([], [], (0.5,)).tolist() == [[0, 0], [0, 0]]
