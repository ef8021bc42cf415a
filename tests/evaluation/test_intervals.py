"""Intervals say how many people were tested, not how many sequences."""

from __future__ import annotations

import numpy as np

from costream.evaluation.clips import sequence_scores


def scored(groups, right):
    """Metrics of sequences of one step, of one class, right or taken for the other."""
    rows = [np.array([[0.9, 0.1]] if r else [[0.1, 0.9]]) for r in right]
    return sequence_scores(rows, np.zeros(len(right), int), groups, ("a", "b"))


def test_many_groups_are_drawn_whole():
    groups = [f"person {k // 10}" for k in range(80)]
    right = [k // 10 % 2 == 0 for k in range(80)]  # half of the people always, half never
    result = scored(groups, right)
    low, high = result["top1_95"]
    assert result["top1_95_over"] == "groups"
    assert high - low > 0.4
    mixed = scored([str(k) for k in range(80)], right)["top1_95"]
    assert mixed[1] - mixed[0] < 0.3


def test_few_groups_do_not_feign_certainty():
    groups = ["person 7"] * 60 + ["person 8"] * 60
    right = [k % 10 != 0 for k in range(120)]  # both people alike
    result = scored(groups, right)
    low, high = result["top1_95"]
    assert result["top1_95_over"] == "sequences"
    assert low < 0.87
    assert high > 0.93
