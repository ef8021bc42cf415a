"""Trainer of custom object classes for NanoDet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from costream.core.errors import UsageError
from costream.evaluation.metrics.detection import DetectedBoxes
from costream.models.eventful.box_heads import pool
from costream.models.images import Pixels
from costream.models.objects.nanodet import BINS, STRIDES, NanoDetPlus, boxes_at
from costream.nn.eventful.counts import Operations
from costream.nn.suppression import suppress
from costream.training.base import TrainingData, TrainSettings, TrainSetup, Workspace
from costream.training.objects.album import Album
from costream.training.objects.detector_card import DetectorResults
from costream.training.objects.detector_fit import Learning, Seeing, baselines, train_detector
from costream.training.objects.detector_training import to_found
from costream.training.objects.image_augment import LabelledImage
from costream.training.objects.image_views import Views
from costream.training.objects.object_trainer import ObjectTrainer
from costream.training.objects.prototypes import Proposed
from costream.training.objects.quality_losses import quality_loss
from costream.training.optim import device_of
from costream.weights_io.card import Card

ENOUGH = 200  # images with which the backbone is trained too
BATCH = 8  # views of a step
_PROPOSALS, _OVERLAP = 100, 0.6  # boxes of the class means


class NanoDetTrainer(ObjectTrainer):
    """Trainer of a NanoDet: of all of it, or with few images of what follows its backbone."""

    stem = "heads."

    def check(self, card: Card, settings: TrainSettings) -> TrainSettings:
        """Return the settings; UsageError for options that do not apply."""
        options = {"--adapter": settings.adapter != "none", "--density": settings.density < 1}
        for name, given in options.items():
            if given:
                what = f"does not apply to {card.architecture}"
                raise UsageError(what, where=name, hint="train eventful-vitdet")
        fine_tune = settings.fine_tune
        return replace(super().check(card, settings), fine_tune=settings.scratch or fine_tune)

    def initial(
        self, name: str, fresh: Tensor, stored: Tensor, rows: Sequence[int | None]
    ) -> Tensor:
        """Return initial weights of a layer that gives classes and boxes.

        New labels start with the mean of all classes.
        """
        if not name.endswith((".4.weight", ".4.bias")):
            return stored
        classes = len(stored) - 4 * BINS
        mean = stored[:classes].mean(0)
        known = [mean if row is None else stored[row] for row in rows]
        return torch.cat([torch.stack(known), stored[classes:]])

    def encoder(self, network: nn.Module) -> nn.Module:
        """Return the module that is frozen where there are few images."""
        return cast(NanoDetPlus, network).backbone

    def fit(self, setup: TrainSetup, data: TrainingData, workspace: Workspace) -> DetectorResults:
        """Train all of the network, or the layers after its backbone."""
        network, pixels, card, _ = setup
        settings, seed = workspace.settings, workspace.settings.seed
        frozen = not settings.fine_tune
        if settings.fine_tune is None:
            frozen = len(data.training) < ENOUGH
        albums = [Album(side, card.labels, pixels.box) for side in (data.training, data.validation)]
        trained, checked = (Views(album, pixels, seed) for album in albums)
        seeing = Seeing(
            trained.album.seen,
            checked.album.seen,
            partial(detect, pixels=pixels),
            partial(proposed, pixels=pixels),
        )
        others = baselines(setup, data, workspace, seeing, _OVERLAP)
        parts = [network.exchange, network.coarsest, network.heads]
        learning = Learning(
            nn.ModuleList(parts) if frozen else network,
            BATCH,
            loss=partial(_batch_loss, network, trained, BATCH),
            macs=partial(_count_macs, network, *trained.canvases[0]),
            frozen=frozen,
        )
        return train_detector(setup, data, workspace, learning, seeing, others)


def _batch_loss(network: NanoDetPlus, views: Views, count: int, rng: np.random.Generator) -> Tensor:
    device = device_of(network)
    drawn, *marks = views.batch(count, rng)
    pictures = views.pixels(drawn.to(device))
    boxes, labels = ([part.to(device) for part in each] for each in marks)
    size = (pictures.shape[2], pictures.shape[3])
    return quality_loss(network(pictures), size, boxes, labels)


@torch.no_grad()
def detect(network: NanoDetPlus, picture: LabelledImage, pixels: Pixels) -> DetectedBoxes:
    """Return a network's detections in an image, clipped to its edges."""
    (found,) = network.detect(pixels(picture.pixels[None].to(device_of(network))))
    return to_found(found, torch.tensor(picture.pixels.shape[1:]))


@torch.no_grad()
def proposed(network: NanoDetPlus, picture: LabelledImage, pixels: Pixels) -> Proposed:
    """Return the boxes of the best scores of any class; features are means of the maps in a box."""
    device = device_of(network)
    image = pixels(picture.pixels[None].to(device))
    maps = network.maps(image)
    (rows,) = network.predicted(maps)
    objectness = rows[:, : network.classes].sigmoid().amax(1)
    boxes = boxes_at(
        rows[:, network.classes :],
        torch.arange(len(rows), device=device),
        (image.shape[2], image.shape[3]),
    )
    best = objectness.topk(min(3 * _PROPOSALS, len(rows))).indices
    best = best[suppress(boxes[best], objectness[best], torch.zeros_like(best), _OVERLAP)]
    best = best[:_PROPOSALS]

    @torch.no_grad()
    def features(boxes: Tensor) -> Tensor:
        return pool(maps, STRIDES, [boxes]).mean((2, 3))

    truth = picture.boxes.to(device), picture.labels.to(device)
    size = torch.tensor(picture.pixels.shape[1:])
    return Proposed(boxes[best], objectness[best], features, *truth, size)


@torch.no_grad()
def _count_macs(network: NanoDetPlus, width: int, height: int) -> int:
    """Return the MACs of a frame of this size in pixels."""
    operations = Operations()
    network(torch.zeros(1, 3, height, width, device=device_of(network)), operations)
    return operations.total
