"""Metrics of whole sequences and of groups of them, against scikit-learn and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.records import Segment
from costream.evaluation.clip_tables import interval_units
from costream.evaluation.clips import group_scores, sequence_scores
from costream.evaluation.metrics.sequence_metrics import (
    class_table,
    confused,
    fuse,
    pool,
    timeline_shares,
    top1_by_rivals,
    top_k,
)

NAMES = ("walk", "wave", "bend", "kick")


@pytest.fixture
def scored():
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 4, 60)
    scores = rng.random((60, 4)) + 0.6 * np.eye(4)[labels]
    return scores / scores.sum(1, keepdims=True), labels


@pytest.mark.parametrize("k", [1, 2, 3])
def test_top_k_is_scikit_learns(scored, k):
    metrics = pytest.importorskip("sklearn.metrics")
    expected = metrics.top_k_accuracy_score(scored[1], scored[0], k=k, labels=range(4))
    assert top_k(*scored, k) == pytest.approx(expected, abs=1e-12)


def test_recall_and_precision_are_scikit_learns(scored):
    metrics = pytest.importorskip("sklearn.metrics")
    guess = scored[0].argmax(1)
    precision, recall, _, support = metrics.precision_recall_fscore_support(scored[1], guess)
    table = class_table(*scored, NAMES)
    assert [row["sequences"] for row in table.values()] == support.tolist()
    assert [row["recall"] for row in table.values()] == pytest.approx(recall, abs=5e-5)
    assert [row["precision"] for row in table.values()] == pytest.approx(precision, abs=5e-5)


def test_nothing_to_score_is_nan():
    assert np.isnan(top_k(np.zeros((0, 4)), np.zeros(0, int)))


def test_equal_scores_favour_the_first_classes():
    scores, labels = np.zeros((2, 3)), np.array([0, 2])
    assert top_k(scores, labels) == 0.5
    assert top_k(scores, labels, 2) == 0.5
    assert top_k(scores, labels, 3) == 1.0


def test_mean_and_last_step_may_differ():
    rows = [np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]), np.array([[0.3, 0.7]])]
    assert fuse(rows, "mean").argmax(1).tolist() == [0, 1]
    assert fuse(rows, "last").argmax(1).tolist() == [1, 1]
    assert fuse(rows, "mean")[0] == pytest.approx([0.7, 0.3])


def test_classes_that_never_occur_are_left_out():
    scores = np.eye(4)[[0, 1, 1]]
    table = class_table(scores, np.array([0, 1, 0]), NAMES)
    assert table == {
        # One of two is found first; the other has the same score as what is not of its class. So
        # has the only one of the second class.
        "walk": {"sequences": 2, "recall": 0.5, "precision": 1.0, "average_precision": 0.8333},
        "wave": {"sequences": 1, "recall": 1.0, "precision": 0.5, "average_precision": 0.5},
    }


def test_a_class_that_is_only_predicted_has_no_recall():
    table = class_table(np.eye(4)[[2]], np.array([0]), NAMES)
    said = {"sequences": 0, "recall": None, "precision": 0.0, "average_precision": None}
    assert table["bend"] == said


def test_errors_are_listed_by_number():
    scores = np.eye(4)[[1, 1, 3, 0]]
    assert confused(scores, np.array([0, 0, 2, 0]), NAMES) == [
        ("walk", "wave", 2),
        ("bend", "kick", 1),
    ]


def test_a_vote_counts_steps_and_the_mean_decides_between_equals():
    rows = [
        np.array([[0.4, 0.6], [0.4, 0.6], [0.95, 0.05]]),  # the mean says 0, two of three say 1
        np.array([[0.9, 0.1], [0.4, 0.6]]),  # one each: the mean says 0
    ]
    votes = fuse(rows, "vote")
    assert fuse(rows, "mean").argmax(1).tolist() == [0, 0]
    assert votes.argmax(1).tolist() == [1, 0]
    assert votes.sum(1) == pytest.approx([1, 1])
    assert votes[0] == pytest.approx([(1 + 0.5 * 1.75 / 3) / 3.5, (2 + 0.5 * 1.25 / 3) / 3.5])


@given(st.integers(0, 2**31), st.integers(1, 40), st.integers(2, 6))
def test_no_mean_outvotes_a_step(seed, steps, classes):
    rows = np.random.default_rng(seed).dirichlet(np.full(classes, 0.3), steps)
    votes = np.bincount(rows.argmax(1), minlength=classes)
    assert votes[fuse([rows], "vote")[0].argmax()] == votes.max()


def test_votes_are_scikit_learns():
    extmath = pytest.importorskip("sklearn.utils.extmath")
    sequences = np.random.default_rng(8).dirichlet(np.ones(3), (40, 7))
    said = sequences.argmax(2)
    mode, count = (
        found[:, 0].astype(int) for found in extmath.weighted_mode(said, np.ones((40, 7)), axis=1)
    )
    # Where two classes have as many steps, scikit-learn takes the first and we the likelier one.
    clear = (np.stack([np.bincount(s, minlength=3) for s in said]) == count[:, None]).sum(1) == 1
    assert 0 < clear.sum() < 40
    assert np.array_equal(fuse(sequences, "vote").argmax(1)[clear], mode[clear])


def test_average_precision_of_clips_is_scikit_learns(scored):
    metrics = pytest.importorskip("sklearn.metrics")
    table = class_table(*scored, NAMES)
    for k, name in enumerate(NAMES):
        expected = metrics.average_precision_score(scored[1] == k, scored[0][:, k])
        assert table[name]["average_precision"] == pytest.approx(expected, abs=5e-5)


def test_steps_of_a_group_are_pooled_in_order():
    one, two, three = (np.full((n, 2), float(n)) for n in (1, 2, 3))
    pooled = pool([one, two, three], ["b", "a", "b"])
    assert list(pooled) == ["b", "a"]
    assert pooled["b"].tolist() == [[1, 1], [3, 3], [3, 3], [3, 3]]


def steps_of(*best, sure=0.9):
    """Return steps [T, 3] that say these classes."""
    return np.stack(
        [np.full(3, (1 - sure) / 2) + (sure - (1 - sure) / 2) * np.eye(3)[k] for k in best]
    )


def test_clips_of_a_song_are_fused():
    told = [steps_of(0, 0), steps_of(1), steps_of(2, 2, 0), steps_of(2)]
    result = group_scores(told, np.array([0, 0, 2, 2]), ["a", "a", "b", "b"])
    # Song a: two steps of class 0, one of 1. Song b: three of 2, one of 0.
    assert result == {"groups": 2, "top1": 1.0, "top5": 1.0, "top1_vote": 1.0}


def test_mean_and_vote_may_differ():
    told = [steps_of(1, sure=0.99), steps_of(0, 0, sure=0.4)]
    result = group_scores(told, np.array([0, 0]), ["a", "a"])
    assert (result["top1"], result["top1_vote"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    "groups", [["a", "a", "a"], ["a", "b", "c"]], ids=["of several labels", "of one clip each"]
)
def test_groups_that_are_not_songs_have_no_accuracy(groups):
    assert (
        group_scores([steps_of(0), steps_of(1), steps_of(1)], np.array([0, 1, 1]), groups) is None
    )


def right_or_wrong(groups, right):
    """Metrics of sequences of one step, of one class, right or taken for the other."""
    rows = [np.array([[0.9, 0.1]] if r else [[0.1, 0.9]]) for r in right]
    return sequence_scores(rows, np.zeros(len(right), int), groups, ("a", "b"))


def test_many_groups_are_drawn_completely():
    groups = [f"person {k // 10}" for k in range(80)]
    right = [k // 10 % 2 == 0 for k in range(80)]  # half of the people always, half never
    result = right_or_wrong(groups, right)
    low, high = result["top1_95"]
    assert result["top1_95_over"] == "groups"
    assert high - low > 0.4
    mixed = right_or_wrong([str(k) for k in range(80)], right)["top1_95"]
    assert mixed[1] - mixed[0] < 0.3


def test_few_groups_give_no_narrow_interval():
    groups = ["person 7"] * 60 + ["person 8"] * 60
    right = [k % 10 != 0 for k in range(120)]  # both people alike
    result = right_or_wrong(groups, right)
    low, high = result["top1_95"]
    assert result["top1_95_over"] == "sequences"
    assert low < 0.87
    assert high > 0.93
    assert interval_units(result) == "sequences (of 2 groups, whose differences it leaves out)"


def test_top1_names_what_competes():
    scores = np.array([[0.5, 0.3, 0.1, 0.1], [0.1, 0.5, 0.3, 0.1], [0.2, 0.1, 0.3, 0.4]])
    labels = np.array([1, 1, 2])  # class 0 is the background, class 3 never occurs
    found = top1_by_rivals(scores, labels, 0)
    assert found == {"top1_own": 1.0, "top1_all": 2 / 3, "top1_background": 1 / 3}
    assert list(top1_by_rivals(scores, labels)) == ["top1_own", "top1_all"]
    of_it = top1_by_rivals(scores, np.array([0, 1, 2]), 0)
    assert of_it["top1_all"] == of_it["top1_background"] == 2 / 3


def test_what_timelines_show():
    def shown(*parts):
        return [Segment(start, end, label, 0.9) for start, end, label in parts]

    timelines = [
        shown((0, 2, "walk")),
        shown((0, 1, "bend"), (1, 1.6, "walk"), (2, 2.6, "walk")),  # 1.2 s in two parts
        shown((0, 2, "bend"), (2, 3, "walk")),
        shown((0, 2, "kick")),
        shown(),
        shown((0, 1, "kick")),  # of the background
    ]
    names = ["walk", "walk", "walk", "walk", "walk", "background"]
    found = timeline_shares(timelines, names, "background")
    assert found == {"right": 0.6, "longest": 0.4, "wrong": 0.6, "nothing": 0.2}
    assert np.isnan(timeline_shares([], [])["right"])
