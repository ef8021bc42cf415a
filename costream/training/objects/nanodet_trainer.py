"""Trainer of custom object classes for NanoDet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from costream.core.errors import UsageError
from costream.evaluation.metrics.detection import DetectedBoxes
from costream.models.build import build
from costream.models.eventful.box_heads import pool
from costream.models.images import Pixels
from costream.models.objects.nanodet import BINS, STRIDES, NanoDetPlus, boxes_at
from costream.nn.eventful.counts import Operations
from costream.nn.suppression import suppress
from costream.training.adaptation import Adaptation
from costream.training.base import TrainingData, TrainSettings, TrainSetup, Workspace
from costream.training.objects.album import Album
from costream.training.objects.detector_card import DetectorResults
from costream.training.objects.detector_training import (
    figures,
    fit_detector,
    to_found,
    to_truth,
)
from costream.training.objects.image_augment import LabelledImage
from costream.training.objects.image_views import Views
from costream.training.objects.object_trainer import (
    COMPARED,
    MOST_VALIDATED,
    ObjectTrainer,
    before,
    drawn_numbers,
    number_of_steps,
)
from costream.training.objects.prototypes import Proposed, prototypes
from costream.training.objects.quality_losses import quality_loss
from costream.training.optim import Schedule, device_of
from costream.training.training_loop import TrainingRun
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
        others = _baselines(setup, trained, checked, workspace) if data.validation else {}
        parts = [network.exchange, network.coarsest, network.heads]
        learning = nn.ModuleList(parts) if frozen else network
        schedule = Schedule(number_of_steps(settings, data), BATCH, rate=1e-3, decay=0.05)
        numbers = drawn_numbers(len(data.validation), MOST_VALIDATED, seed)

        def validate() -> dict[str, float]:
            network.eval()
            seen = [checked.album.seen(number) for number in numbers]
            found = [detect(network, pixels, picture) for picture in seen]
            return figures(found, [to_truth(picture) for picture in seen], card.labels)

        macs = partial(_count_macs, network, *trained.canvases[0])
        adaptation = Adaptation(network, settings, schedule.steps, macs)
        run = TrainingRun(seed, workspace.checkpoint, adaptation)
        loss = partial(_batch_loss, network, trained, schedule.batch)
        history = fit_detector(network, learning, loss, schedule, run, validate)
        adaptation.finish()
        network.requires_grad_(False)
        seen = [checked.album.seen(number) for number in range(len(data.validation))]
        groups = sorted({still.group for still in data.validation})
        return DetectorResults(
            {card.name: [detect(network, pixels, picture) for picture in seen], **others},
            [to_truth(picture) for picture in seen],
            [groups.index(still.group) for still in data.validation],
            history,
            adaptation,
            frozen,
        )


def _batch_loss(network: NanoDetPlus, views: Views, count: int, rng: np.random.Generator) -> Tensor:
    device = device_of(network)
    drawn, *marks = views.batch(count, rng)
    pictures = views.pixels(drawn.to(device))
    boxes, labels = ([part.to(device) for part in each] for each in marks)
    size = (pictures.shape[2], pictures.shape[3])
    return quality_loss(network(pictures), size, boxes, labels)


@torch.no_grad()
def detect(network: NanoDetPlus, pixels: Pixels, picture: LabelledImage) -> DetectedBoxes:
    """Return a network's detections in an image, clipped to its edges."""
    (found,) = network.detect(pixels(picture.pixels[None].to(device_of(network))))
    return to_found(found, torch.tensor(picture.pixels.shape[1:]))


def _baselines(
    setup: TrainSetup, trained: Views, checked: Views, workspace: Workspace
) -> dict[str, list[DetectedBoxes]]:
    """Return the detections of the baselines by name: class means, and the base weights."""
    network, pixels, card, _ = setup
    base, settings = workspace.base, workspace.settings
    if settings.scratch:
        return {}
    base_network = cast(NanoDetPlus, build(base.card, base.tensors)[0]).to(device_of(network))
    base_network.eval()
    numbers = drawn_numbers(len(trained.album.stills), COMPARED, settings.seed)
    every = range(len(checked.album.stills))

    def looks(album: Album, numbers: Sequence[int]) -> Iterator[Proposed]:
        return (proposed(base_network, pixels, album.seen(number)) for number in numbers)

    sides = looks(trained.album, numbers), looks(checked.album, every)
    found = (detect(base_network, pixels, checked.album.seen(number)) for number in every)
    return before(card, base.card, prototypes(*sides, len(card.labels), _OVERLAP), found)


@torch.no_grad()
def proposed(network: NanoDetPlus, pixels: Pixels, picture: LabelledImage) -> Proposed:
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
