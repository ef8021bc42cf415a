"""Nearest-class-mean baseline, against a computation by hand."""

from __future__ import annotations

import numpy as np
import pytest

from costream.training.baselines import SHARPNESS, nearest_centroid


def test_the_class_whose_mean_points_the_same_way_is_the_answer():
    rows = np.array([[2.0, 0, 0], [0, 0, 4], [1, 1, 0], [0, 0, 1]])
    told = nearest_centroid(rows, [1, 3, 1, 3], np.array([[5.0, 1, 1], [0, 0.1, 9]]), 4)
    cosines = []
    for check in ([5.0, 1, 1], [0, 0.1, 9]):
        means = ([1.5, 0.5, 0], [0, 0, 2.5])
        cosines.append(
            [np.dot(check, m) / np.linalg.norm(check) / np.linalg.norm(m) for m in means]
        )
    for one, two in zip(told, cosines, strict=True):
        expected = np.exp(SHARPNESS * np.array(two))
        assert one.shape == (1, 4)
        assert one[0, [1, 3]] == pytest.approx(expected / expected.sum())
        assert one[0, [0, 2]].tolist() == [0, 0]  # no examples
    assert [one.argmax() for one in told] == [1, 3]


def test_features_that_are_all_zero_are_no_trouble():
    told = nearest_centroid(np.zeros((2, 3)), [0, 1], np.zeros((1, 3)), 2)
    assert told[0].tolist() == [[0.5, 0.5]]
