"""What objects are taken for, by hand."""

from __future__ import annotations

import numpy as np

from costream.evaluation.metrics.detection import DetectedBoxes, Truth, box_confusion, taken

HERE, THERE, AWAY = (0, 0, 10, 10), (20, 0, 30, 10), (50, 50, 60, 60)


def found(*rows):
    boxes, scores, labels = zip(*rows, strict=True) if rows else ((), (), ())
    corners = np.array(boxes, float).reshape(-1, 4)
    return DetectedBoxes(corners, np.array(scores, float), np.array(labels, int))


def truth(*rows):
    boxes, labels = zip(*rows, strict=True) if rows else ((), ())
    return Truth(np.array(boxes, float).reshape(-1, 4), np.array(labels, int))


def test_each_told_thing_takes_the_one_it_is_most_like():
    likeness = np.array([[0.6, 0.9], [0.5, 0.8], [0.7, 0.7], [0.1, 0.2]])
    assert taken(likeness, 0.5).tolist() == [1, 0, -1, -1]
    assert taken(np.zeros((2, 0)), 0.5).tolist() == [-1, -1]


def test_right_confused_missed_and_of_nothing():
    said = [
        found((HERE, 0.9, 0), (THERE, 0.8, 0), (AWAY, 0.7, 1)),
        found((HERE, 0.4, 1), (THERE, 0.4, 0)),
        found(),
    ]
    true = [truth((HERE, 0), (THERE, 1)), truth((HERE, 1)), truth((AWAY, 0))]
    counts = box_confusion(said, true, (0.5, 0.3))
    # The box of class 0 in the second picture is below its threshold.
    assert counts.tolist() == [[1, 0, 1], [1, 1, 0], [0, 1, 0]]


def test_the_surest_box_takes_the_object_whatever_it_says():
    said = [found((HERE, 0.6, 0), (HERE, 0.9, 1))]
    counts = box_confusion(said, [truth((HERE, 0))], (0.1, 0.1))
    assert counts.tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 0]]


def test_without_pictures_there_is_nothing():
    assert box_confusion([], [], (0.5,)).tolist() == [[0, 0], [0, 0]]
