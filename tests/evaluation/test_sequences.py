"""Accuracy of whole sequences, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest

from costream.evaluation.sequences import class_table, confused, fuse, top_k

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
        "walk": {"sequences": 2, "recall": 0.5, "precision": 1.0},
        "wave": {"sequences": 1, "recall": 1.0, "precision": 0.5},
    }


def test_a_class_that_is_only_predicted_has_no_recall():
    table = class_table(np.eye(4)[[2]], np.array([0]), NAMES)
    assert table["bend"] == {"sequences": 0, "recall": None, "precision": 0.0}


def test_errors_are_listed_by_number():
    scores = np.eye(4)[[1, 1, 3, 0]]
    assert confused(scores, np.array([0, 0, 2, 0]), NAMES) == [
        ("walk", "wave", 2),
        ("bend", "kick", 1),
    ]
