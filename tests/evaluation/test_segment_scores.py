"""Matching of timelines."""

from __future__ import annotations

import pytest

from costream.evaluation.metrics.segments import Counts, count, match, overlap
from costream.records import Segment


def seg(start, end, label="walk"):
    return Segment(start, end, label, 0.9)


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
    assert match([seg(0, 4, "sit")], [seg(0, 4)], 0.1) == [None]


def test_counts_add_up():
    one = count([seg(0, 4), seg(9, 10)], [seg(0, 4)], 0.5)
    assert one == Counts(1, 1, 0)
    both = one + count([], [seg(0, 1)], 0.5)
    assert both == Counts(1, 1, 1)
    assert both.f1 == pytest.approx(0.5)
    assert Counts().f1 == 1.0
