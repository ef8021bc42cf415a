"""Shares of training pictures, manual annotations and missing packs of the detector recipe."""

from __future__ import annotations

import pytest
import torch

from kit.data_objects import rectangle
from weights.recipes.objects.data import ANNOTATED_CLIPS, boxes_at, shares_of
from weights.recipes.objects.labels import LABELS, chance_of_right
from weights.recipes.objects.pictures import ScoredImage, rows_of


def test_rare_classes_are_shown_more_often() -> None:
    has = [[False, False, True], *[[False, True, False]] * 29]
    shares = shares_of(has, [False] * 29 + [True])
    assert sum(shares) == pytest.approx(1)
    assert shares[0] / shares[1] == pytest.approx(3)  # the root of 0.3 over 1 / 30
    assert shares[29] / shares[1] == pytest.approx(2)  # with all boxes of people


def test_boxes_are_as_sure_as_their_scores() -> None:
    scores = torch.tensor([0.2, 0.34, 0.35, 0.6, 1.0])
    assert chance_of_right(scores).tolist() == pytest.approx([0, 0, 0.5, 1, 1])
    pixels, boxes = rectangle().pixels, rectangle().boxes.repeat(5, 1)
    image = ScoredImage(pixels, boxes, torch.arange(5), scores=scores)
    assert image.sure().labels.tolist() == [3, 4]


def test_names_of_the_packs_become_labels() -> None:
    names = ["motorbike", "backpack", "toaster", "handbag"]
    rows = [(k, 10.0, 20.0, 3.0, 4.0, 0.5 + k / 10) for k in range(4)]
    boxes, labels, sure = rows_of(rows, names)
    assert [LABELS[k] for k in labels] == ["motorcycle", "bag", "bag"]
    assert boxes.tolist() == [[10, 20, 13, 24]] * 3
    assert sure.tolist() == pytest.approx([0.5, 0.6, 0.8])
    assert [part.shape for part in rows_of([], names)] == [(0, 4), (0,), (0,)]


def test_objects_put_down_by_hand_move_in_straight_lines() -> None:
    clip = ANNOTATED_CLIPS["person-bicycle-car-detection-preview"]
    boxes, labels = boxes_at(clip, 4)
    assert [LABELS[k] for k in labels] == ["car", "bicycle", "person", "person"]
    assert boxes[0].tolist() == [62, 133.5, 174.5, 259]
    assert len(boxes_at(clip, 20)[0]) == 3  # one person has left
    assert len(boxes_at(clip, 41)[0]) == 0
