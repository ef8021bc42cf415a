"""Training views, manual annotations and missing packs of the detector recipe."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.training.objects.augment import Cutout, LabelledImage
from costream.training.objects.losses import UNSURE
from kit.data_objects import rectangle
from weights.recipes.objects.data import ANNOTATED_CLIPS, ViewSource, boxes_at
from weights.recipes.objects.pictures import LABELS, ScoredImage, rows_of
from weights.recipes.objects.views import SHAPES


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(list(SHAPES)))
def test_views_hold_their_boxes(seed: int, shape: tuple[int, int]) -> None:
    thing = Cutout(torch.full((3, 30, 20), 200, dtype=torch.uint8), torch.ones(30, 20), 0)
    supply = ViewSource([rectangle(), rectangle(100, 300)], [[rectangle(steady=True)]], [[thing]])
    view = supply.view(shape, np.random.default_rng(seed))
    assert view.pixels.dtype == torch.uint8
    assert len(view.boxes) == len(view.labels)
    limits = torch.tensor([*shape, *shape])
    assert bool((view.boxes >= 0).all())
    assert bool((view.boxes <= limits).all())
    assert bool((view.boxes[:, 2:] > view.boxes[:, :2]).all())


def test_views_are_the_same_for_the_same_seed() -> None:
    supply = ViewSource([rectangle()], [[rectangle(steady=True)]], [])
    one, other = (supply.view((320, 224), np.random.default_rng(3)) for _ in range(2))
    assert torch.equal(one.pixels, other.pixels)
    assert torch.equal(one.boxes, other.boxes)


def test_rare_classes_are_shown_more_often() -> None:
    bicycle = LabelledImage(rectangle().pixels, rectangle().boxes, torch.tensor([2]))
    supply = ViewSource([bicycle, *[rectangle()] * 29], [], [])
    shares = supply._likely
    assert shares.sum() == pytest.approx(1)
    assert shares[0] / shares[1] == pytest.approx(3)  # the root of 0.3 over 1 / 30


def test_boxes_are_as_sure_as_their_scores() -> None:
    scores = torch.tensor([0.2, 0.34, 0.35, 0.6, 1.0])
    pixels, boxes = rectangle().pixels, rectangle().boxes.repeat(5, 1)
    image = ScoredImage(pixels, boxes, torch.arange(5), scores=scores)
    rng = np.random.default_rng(0)
    drawn = torch.stack([image.drawn(rng).labels for _ in range(400)])
    right = (drawn == torch.arange(5)).float().mean(0)
    assert set(drawn[:, :2].flatten().tolist()) == {UNSURE}
    assert right[2:].tolist() == pytest.approx([0.5, 1, 1], abs=0.08)
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
