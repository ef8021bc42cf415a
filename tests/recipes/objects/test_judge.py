"""Evaluation of the shipped detector on images and clips, and its card."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from costream.evaluation.metrics.detection import DetectedBoxes, Truth
from costream.models.eventful.vitdet import ViTDet
from costream.training.card_text import card_text
from costream.training.objects.detector_card import detection_table, shown_boxes
from costream.training.objects.image_augment import LabelledImage
from costream.weights_io.card import Timeline
from weights.recipes.objects.judge import detect_clip, detect_images, photographs
from weights.recipes.objects.labels import LABELS
from weights.recipes.objects.train import FRONTEND, NETWORK, make_card

BOX = (48, 32)


def network() -> ViTDet:
    torch.manual_seed(0)
    small: dict[str, Any] = {"dim": 16, "heads": 2, "depth": 2, "global_blocks": (1,)}
    sizes: dict[str, Any] = {"size": (2, 3), "window": (2, 2), "position_size": (2, 3)}
    return ViTDet(
        4, **small, **sizes, channels=8, width=8, convolutions=0, proposals=9, score=0.0
    ).eval()


def pictures(count: int) -> list[torch.Tensor]:
    """A bright square that moves."""
    rng = np.random.default_rng(0)
    frames = [torch.from_numpy(rng.integers(0, 99, (3, 27, 48), np.uint8))] * count
    frames = [frame.clone() for frame in frames]
    for k, frame in enumerate(frames):
        frame[:, 4:12, 4 + 6 * k : 12 + 6 * k] = 250
    return frames


def test_truth_is_scaled_with_its_photograph() -> None:
    pixels = torch.zeros(3, 100, 200, dtype=torch.uint8)
    pixels[:, :, 100:] = 250
    scene = LabelledImage(pixels, torch.tensor([[100.0, 0, 200, 50]]), torch.tensor([1]))
    test = photographs([scene], BOX)
    assert test.pictures[0].shape == (3, 24, 48)
    assert test.pictures[0][0, 5, [20, 28]].tolist() == [0, 250]
    np.testing.assert_allclose(test.truth[0].boxes, [[24, 0, 48, 12]])


def test_a_clip_with_all_tokens_is_its_pictures_by_themselves() -> None:
    frames = pictures(3)
    found, macs = detect_clip(network(), frames, BOX, 1.0)
    for one, other in zip(found, detect_images(network(), frames, BOX), strict=True):
        np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-3)
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
        assert one.boxes[:, 3].max() <= 27  # not in what is filled up
    assert macs > detect_clip(network(), frames, BOX, 0.25)[1] > 0


def test_boxes_shown_are_right_or_false() -> None:
    rows = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [20, 20, 30, 30], [0, 0, 10, 10]], float)
    found = DetectedBoxes(rows, np.array([0.9, 0.8, 0.7, 0.6]), np.array([0, 0, 1, 1]))
    truth = Truth(rows[[0, 2]], np.array([0, 1]))
    empty = DetectedBoxes(*(part[:0] for part in found)), Truth(*(part[:0] for part in truth))
    seen = shown_boxes([found, empty[0]], [truth, empty[1]], Timeline(0.65))
    assert seen == {"threshold": 0.65, "precision": 0.6667, "recall": 1.0, "false": 0.5}


def test_the_card_has_all_figures() -> None:
    scores = {
        "pictures": 7,
        "AP50": 0.5,
        "AP": 0.25,
        "classes": {"car": {"objects": 3, "AP50": 0.5, "AP": 0.25}},
    }
    shown = {"threshold": 0.41, "precision": 0.75, "recall": 0.5, "false": 0.25}
    rows = {"all tokens": {**scores, "macs": 834_000_000, "shown": shown}, "teacher": scores}
    metrics = {"a clip": rows}
    card = make_card(NETWORK, FRONTEND, 0.414, metrics)
    assert card.timeline.threshold == pytest.approx(0.41)
    text = card_text(card, detection_table)
    assert "| all tokens | 0.500 | 0.500 | 0.250 | 0.834 |" in text
    assert "| teacher | 0.500 | 0.500 | 0.250 | - |" in text
    assert "AP50 car (3)" in text
    assert "all tokens from 0.41 on: precision 0.750, recall 0.500, 0.250 false boxes" in text
    assert card.labels == LABELS
    assert NETWORK["classes"] == len(LABELS)
