"""Frame metrics and reliability against scikit-learn and against cases worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    confusion_matrix,
)

from costream.evaluation.metrics.bootstrap import bootstrap
from costream.evaluation.metrics.frames import (
    Ranking,
    average_precisions,
    confusion,
    frame_accuracy,
    mean_average_precision,
    outside_boundaries,
)
from costream.evaluation.metrics.reliability import calibration_error, reliability
from weights.recipes.action import loop as recipe


def average_precision(scores, positive):
    return Ranking(scores, positive).precision(1.0)


def calibrated_average_precision(scores, positive):
    return Ranking(scores, positive).precision()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**31), st.integers(2, 300))
def test_average_precision_equals_scikit_learn(seed, size):
    rng = np.random.default_rng(seed)
    scores, positive = rng.random(size), rng.random(size) < 0.3
    positive[rng.integers(size)] = True
    expected = average_precision_score(positive, scores)
    assert average_precision(scores, positive) == pytest.approx(expected, abs=1e-12)


def test_average_precision_by_hand():
    # Ranks of the positives: 1, 3, 4 -> (1/1 + 2/3 + 3/4) / 3
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.1])
    positive = np.array([True, False, True, True, False])
    assert average_precision(scores, positive) == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)


def test_equal_scores_are_one_step_of_the_list():
    # Whatever the order of the frames: at the end of the list one of four is positive.
    assert average_precision(np.ones(4), np.array([1, 0, 0, 0], bool)) == 0.25
    assert average_precision(np.ones(4), np.array([0, 0, 0, 1], bool)) == 0.25
    assert calibrated_average_precision(np.ones(4), np.array([0, 0, 0, 1], bool)) == 0.5


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=40))
def test_equal_scores_are_treated_as_scikit_learn_does(frames):
    scores = np.array([s for s, _ in frames], float)
    positive = np.array([*(p for _, p in frames[1:]), True])
    expected = average_precision_score(positive, scores)
    assert average_precision(scores, positive) == pytest.approx(expected, abs=1e-12)


def test_scores_that_are_not_numbers_come_last():
    scores, positive = np.array([np.nan, 0.5, 0.1]), np.array([1, 0, 1], bool)
    assert average_precision(scores, positive) == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_no_positive_is_nan():
    assert math.isnan(average_precision(np.ones(3), np.zeros(3, bool)))
    assert math.isnan(calibrated_average_precision(np.ones(3), np.zeros(3, bool)))


def test_calibrated_average_precision_by_hand():
    # 1 positive at rank 2 of 4: w = 3; w tp / (w tp + fp) = 3 / 4
    scores, positive = np.array([4.0, 3.0, 2.0, 1.0]), np.array([0, 1, 0, 0], bool)
    assert calibrated_average_precision(scores, positive) == pytest.approx(0.75)
    assert calibrated_average_precision(scores, ~np.zeros(4, bool)) == 1.0


def test_calibration_makes_rare_and_frequent_equal():
    # Twice the negatives at the same places in the ranking: plain AP falls, calibrated does not.
    scores = np.array([5.0, 4.0, 3.0, 2.0])
    positive = np.array([1, 0, 1, 0], bool)
    rare = np.array([5.0, 4.0, 4.0, 3.0, 2.0, 2.0]), np.array([1, 0, 0, 1, 0, 0], bool)
    assert average_precision(*rare) < average_precision(scores, positive)
    assert calibrated_average_precision(*rare) == pytest.approx(
        calibrated_average_precision(scores, positive)
    )


def test_mean_leaves_out_absent_classes_and_unscored_frames():
    rng = np.random.default_rng(1)
    scores, labels = rng.random((50, 4)), rng.integers(0, 3, 50)
    labels[:10] = -1
    each = average_precisions(scores, labels)
    assert math.isnan(each[3])
    for k in range(3):
        assert each[k] == pytest.approx(average_precision_score(labels[10:] == k, scores[10:, k]))
    assert mean_average_precision(scores, labels) == pytest.approx(each[:3].mean())
    assert mean_average_precision(scores, labels, [1]) == pytest.approx(each[1])
    assert math.isnan(mean_average_precision(scores, np.full(50, -1)))


def test_accuracies_equal_scikit_learn():
    rng = np.random.default_rng(2)
    labels, predicted = rng.integers(0, 5, 200), rng.integers(0, 5, 200)
    assert frame_accuracy(predicted, labels) == pytest.approx(accuracy_score(labels, predicted))
    assert recipe.balanced_accuracy(predicted, labels) == pytest.approx(
        balanced_accuracy_score(labels, predicted)
    )
    assert np.array_equal(confusion(predicted, labels, 5), confusion_matrix(labels, predicted))
    labels[:50] = -1
    assert frame_accuracy(predicted, labels) == pytest.approx(
        accuracy_score(labels[50:], predicted[50:])
    )
    assert confusion(predicted, labels, 5).sum() == 150


def test_tolerance_accepts_a_label_that_is_near():
    labels = np.array([0, 0, 0, 1, 1, 1])
    predicted = np.array([0, 1, 1, 1, 1, 0])
    assert recipe.frame_accuracy(predicted, labels) == pytest.approx(3 / 6)
    assert recipe.frame_accuracy(predicted, labels, 1) == pytest.approx(4 / 6)
    assert recipe.frame_accuracy(predicted, labels, 2) == pytest.approx(5 / 6)
    assert recipe.frame_accuracy(predicted, labels, 100) == 1.0
    assert recipe.balanced_accuracy(predicted, labels, 1) == pytest.approx((2 / 3 + 2 / 3) / 2)


def test_outside_boundaries():
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    assert outside_boundaries(labels, 1).tolist() == [0, 0, 0, -1, -1, 1, 1, 1]
    assert outside_boundaries(labels, 0).tolist() == labels.tolist()
    assert outside_boundaries(labels, 9).tolist() == [-1] * 8
    assert labels[3] == 0


def test_bootstrap_covers_the_mean():
    values = np.arange(20.0)
    low, high = bootstrap(lambda groups: float(values[groups].mean()), 20, draws=400)
    assert low < values.mean() < high
    assert 3 < high - low < 8
    assert bootstrap(lambda groups: 1.0, 5) == (1.0, 1.0)


def test_bins_by_hand():
    scores = np.array([[0.9, 0.1], [0.85, 0.15], [0.45, 0.55], [0.0, 1.0], [0.5, 0.5]])
    labels = np.array([0, 1, 1, 1, -1])
    bins = reliability(scores, labels, 10)
    assert [(round(b.high, 1), b.count) for b in bins if b.count] == [(0.6, 1), (0.9, 2), (1.0, 1)]
    assert (bins[8].confidence, bins[8].accuracy) == (pytest.approx(0.875), 0.5)
    expected = (abs(0.55 - 1) + 2 * abs(0.875 - 0.5) + 0) / 4
    assert calibration_error(bins) == pytest.approx(expected, abs=1e-12)


def test_bins_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.ones(3), 500)
    labels = rng.integers(0, 3, 500)
    right, sure = calibration_curve(scores.argmax(1) == labels, scores.max(1), n_bins=15)
    bins = [b for b in reliability(scores, labels) if b.count]
    assert [b.accuracy for b in bins] == pytest.approx(right.tolist(), abs=1e-12)
    assert [b.confidence for b in bins] == pytest.approx(sure.tolist(), abs=1e-12)


def test_probabilities_that_are_right_have_no_error():
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.ones(4), 40_000)
    labels = (rng.random(40_000)[:, None] > scores.cumsum(1)).sum(1).clip(max=3)
    assert calibration_error(reliability(scores, labels)) < 0.01
    assert calibration_error(reliability(scores**3 / (scores**3).sum(1)[:, None], labels)) > 0.1


def test_nothing_to_score():
    bins = reliability(np.zeros((2, 3)), np.array([-1, -1]))
    assert math.isnan(calibration_error(bins))
    assert [b.count for b in bins] == [0] * 15


@pytest.mark.parametrize("scores", [[[1e308, 0]], [[2.0, 0.1]], [[-5.0, 0.1]], [[np.nan, 0.1]]])
def test_scores_that_are_not_probabilities_have_no_calibration(scores):
    bins = reliability(np.array(scores), np.array([0]))
    assert not any(one.count for one in bins)
    assert math.isnan(calibration_error(bins))
