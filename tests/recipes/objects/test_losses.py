"""Losses of whole batches against those of the package, image by image."""

from __future__ import annotations

import pytest
import torch

from costream.models.eventful.box_heads import pool
from costream.models.eventful.proposals import pyramid_anchors
from costream.models.eventful.vitdet import ViTDet
from costream.training.objects.losses import UNSURE, detector_losses
from kit.data_objects import SQUARE_NETWORK
from weights.recipes.objects.losses import batch_losses, pool_batch, proposals_of
from weights.recipes.objects.views import PADDING

SIZE = (96, 96)


@pytest.fixture(scope="module")
def network() -> ViTDet:
    torch.manual_seed(0)
    return ViTDet(**{**SQUARE_NETWORK, "cascade": False})


def some_boxes(count: int) -> torch.Tensor:
    """Return boxes [2, count, 4] within pictures of ``SIZE``."""
    ends = torch.rand(2, count, 2, 2) * SIZE[0]
    return torch.cat([ends.amin(2), ends.amax(2) + 1], 2)


def test_boxes_are_pooled_as_one_by_one(network: ViTDet) -> None:
    with torch.no_grad():
        maps = network.pyramid(torch.randn(2, 6, 6, network.backbone.dim))
        boxes = some_boxes(20)
        expected = pool(maps, network.strides, list(boxes))
        found = pool_batch(maps, network.strides, boxes).flatten(0, 1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_proposals_are_those_of_the_package(network: ViTDet) -> None:
    with torch.no_grad():
        maps = network.pyramid(torch.randn(2, 6, 6, network.backbone.dim))
        predicted = network.proposal_generator.predict(maps)
        anchors = pyramid_anchors(maps, network.strides, network.anchor)
        expected = network.proposal_generator.choose(predicted, anchors, SIZE)
        boxes, real = proposals_of(network, predicted, anchors, SIZE)
    for own, there, other in zip(boxes, real, expected, strict=True):
        torch.testing.assert_close(own[there], other.boxes)


def test_losses_are_those_of_the_package_on_average(network: ViTDet) -> None:
    tokens, truth = torch.randn(2, 6, 6, network.backbone.dim), some_boxes(8)
    labels = torch.tensor([[0, 1, 2, 3, UNSURE, UNSURE, PADDING, PADDING]] * 2)
    rows = [[], []]
    with torch.no_grad():
        for _ in range(8):
            rows[0].append(torch.stack(batch_losses(network, tokens, SIZE, truth, labels)))
            own = [list(x[:, :6]) for x in (truth, labels)]
            rows[1].append(torch.stack(detector_losses(network, tokens, SIZE, *own)))
    found, expected = (torch.stack(some).mean(0) for some in rows)
    torch.testing.assert_close(found, expected, atol=0, rtol=0.1)


def test_pictures_without_objects_have_finite_losses(network: ViTDet) -> None:
    whole = torch.tensor([0.0, 0.0, 96.0, 96.0]).expand(2, 4, 4)
    labels = torch.full((2, 4), PADDING)
    with torch.no_grad():
        parts = batch_losses(
            network, torch.randn(2, 6, 6, network.backbone.dim), SIZE, whole, labels
        )
    assert all(bool(part.isfinite()) for part in parts)
