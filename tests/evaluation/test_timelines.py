"""Segments, starts and latency against counting one by one and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.core.records import Segment
from costream.evaluation.metrics.detection import best_precision_beyond, ranked_precision, take_best
from costream.evaluation.metrics.segment_metrics import (
    Counts,
    Start,
    count,
    latencies,
    latency_scores,
    match,
    overlap,
    segment_precision,
    start_precision,
    starts_of_steps,
)


def seg(start, end, score=0.9, label="walk"):
    return Segment(start, end, label, score)


stretch = st.tuples(st.integers(0, 12), st.integers(1, 6), st.integers(0, 1))
timelines = st.lists(
    st.tuples(
        st.lists(stretch, max_size=5), st.lists(st.tuples(stretch, st.integers(1, 99)), max_size=7)
    ),
    min_size=1,
    max_size=4,
)


def shared(a, b):
    """tIoU by counting seconds."""
    one, other = set(range(a[0], a[0] + a[1])), set(range(b[0], b[0] + b[1]))
    return len(one & other) / len(one | other)


def brute_force(recordings, label, like, least):
    """Walk down what was told in all recordings; give the hits in that order, and the true ones."""
    left = [[t for t in true if t[2] == label] for true, _ in recordings]
    total = sum(map(len, left))
    ranked = sorted(
        (-score, number, rank, said)
        for number, (_, told) in enumerate(recordings)
        for rank, (said, score) in enumerate(told)
        if said[2] == label
    )
    hits = []
    for _, number, _, said in ranked:
        best = max(left[number], key=lambda true, s=said: like(s, true), default=None)
        hits.append(best is not None and like(said, best) >= least)
        if hits[-1]:
            left[number].remove(best)
    return hits, total


def brute_precision(hits, total, beyond):
    """Precision at each hit, or the best at it and at any later rank; mean over true ones."""
    at = [sum(hits[: k + 1]) / (k + 1) for k in range(len(hits))]
    values = [max(at[k:]) if beyond else at[k] for k in range(len(hits)) if hits[k]]
    return sum(values) / total if total else math.nan


@settings(deadline=None, max_examples=150)
@given(timelines, st.sampled_from([0.3, 0.5, 0.7]))
def test_segment_precision_equals_counting(recordings, least):
    told = [[seg(a, a + n, s, "ab"[k]) for (a, n, k), s in said] for _, said in recordings]
    truth = [[seg(a, a + n, 1.0, "ab"[k]) for a, n, k in true] for true, _ in recordings]
    for number, label in enumerate("ab"):
        expected = brute_precision(*brute_force(recordings, number, shared, least), beyond=True)
        found = segment_precision(told, truth, label, least)
        assert found == pytest.approx(expected, abs=1e-9, nan_ok=True)


@settings(deadline=None, max_examples=150)
@given(timelines, st.integers(1, 10))
def test_start_precision_equals_counting(recordings, tolerance_s):
    told = [[Start(a, "ab"[k], s) for (a, _, k), s in said] for _, said in recordings]
    truth = [[Start(a, "ab"[k]) for a, _, k in true] for true, _ in recordings]

    def nearness(one, other):
        return -abs(one[0] - other[0])

    for number, label in enumerate("ab"):
        hits = brute_force(recordings, number, nearness, -tolerance_s)
        expected = brute_precision(*hits, beyond=False)
        found = start_precision(told, truth, label, tolerance_s)
        assert found == pytest.approx(expected, abs=1e-9, nan_ok=True)


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(0, 5))
def test_precision_never_falls_by_looking_beyond(right, missed):
    hits, total = np.array(right), sum(right) + missed
    if total:
        low, high = ranked_precision(hits, total), best_precision_beyond(hits, total)
        assert 0 <= low <= high <= 1


def test_segment_precision_by_hand():
    truth = [[seg(0, 10), seg(20, 30)]]
    told = [[seg(0, 8, 0.9), seg(0, 10, 0.8), seg(21, 30, 0.7)]]
    # The second finds the same as the first: 1, 1/2, 2/3; at the hits 1 and 2/3.
    assert segment_precision(told, truth, "walk", 0.5) == pytest.approx((1 + 2 / 3) / 2)
    # At 0.85 the first is wrong: 0, 1/2, 2/3; from the second on 2/3 is the best.
    assert segment_precision(told, truth, "walk", 0.85) == pytest.approx(2 / 3)
    assert segment_precision([[]], truth, "walk", 0.5) == 0
    assert math.isnan(segment_precision(told, [[]], "walk", 0.5))


def test_what_is_taken_is_not_taken_again():
    likeness = np.array([[0.9, 0.6], [0.8, 0.7], [0.8, 0.1]])
    assert take_best(likeness, 0.5).tolist() == [True, True, False]
    assert take_best(np.zeros((2, 0)), 0.0).tolist() == [False, False]


def test_starts_are_where_the_best_label_changes_to_an_action():
    best = [0, 1, 1, 2, 0, 2]
    scores = np.eye(3)[best] * 0.5 + 0.1
    found = starts_of_steps(np.arange(6) / 2, scores, ("none", "walk", "sit"), "none")
    assert [(s.time_s, s.label) for s in found] == [(0.5, "walk"), (1.5, "sit"), (2.5, "sit")]
    assert found[0].score == pytest.approx(0.6)
    assert starts_of_steps(np.zeros(0), np.zeros((0, 3)), ("a", "b", "c"), None) == []


def test_a_start_is_right_up_to_the_tolerance():
    truth = [[Start(5.0, "walk")]]
    told = [[Start(7.0, "walk", 0.5), Start(1.0, "walk", 0.9)]]
    assert start_precision(told, truth, "walk", 1) == 0
    assert start_precision(told, truth, "walk", 2) == 0.5  # the surer one is wrong
    assert start_precision(told, truth, "walk", 4) == 1


def test_latency_is_from_onset_to_the_first_segment_that_overlaps():
    truth = [seg(10, 20), seg(30, 40), seg(50, 60), seg(70, 80)]
    told = [seg(12, 14), seg(15, 25), seg(28, 31), seg(45, 50), seg(71, 75, label="sit")]
    waits = latencies(told, truth, 0.5)
    # The second was open at its onset, but known only 0.5 s after where it stands: before it.
    assert waits[:2] == [2.5, 0.0]
    assert all(map(math.isnan, waits[2:]))
    assert latency_scores(waits) == {
        "segments": 4,
        "found": 0.5,
        "median_s": 1.25,
        "p90_s": pytest.approx(2.25),
    }


def test_overlap():
    assert overlap(seg(0, 2), seg(1, 3)) == pytest.approx(1 / 3)
    assert overlap(seg(0, 1), seg(1, 2)) == 0
    assert overlap(seg(0, 1), seg(5, 6)) == 0
    assert overlap(seg(0, 4), seg(0, 4)) == 1


def test_the_best_pair_comes_first_and_each_is_used_once():
    truth = [seg(0, 4), seg(4, 8)]
    told = [seg(0, 5), seg(5, 5.5)]
    assert match(told, truth, 0.1) == [told[0], told[1]]
    assert match(told[:1], truth, 0.1) == [told[0], None]
    assert match([seg(0, 8)], truth, 0.5) == [seg(0, 8), None]


def test_labels_must_agree():
    assert match([seg(0, 4, label="sit")], [seg(0, 4)], 0.1) == [None]


def test_counts_add_up():
    one = count([seg(0, 4), seg(9, 10)], [seg(0, 4)], 0.5)
    assert one == Counts(1, 1, 0)
    both = one + count([], [seg(0, 1)], 0.5)
    assert both == Counts(1, 1, 1)
    assert both.f1 == pytest.approx(0.5)
    assert Counts().f1 == 1.0
