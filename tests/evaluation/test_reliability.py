"""Expected calibration error, by hand and against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from costream.evaluation.metrics.calibration import calibration_error, reliability


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
