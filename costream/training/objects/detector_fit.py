"""One training of a detector and of its baselines, whatever its network sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from torch import Tensor, nn

from costream.evaluation.metrics.detection import DetectedBoxes
from costream.labels.examples import name_matcher
from costream.models.build import build
from costream.training.adaptation import Adaptation
from costream.training.base import TrainingData, TrainSettings, TrainSetup, Workspace
from costream.training.baselines import PROTOTYPES
from costream.training.objects.detector_card import DetectorResults
from costream.training.objects.detector_training import figures, fit_detector, to_truth
from costream.training.objects.image_augment import LabelledImage
from costream.training.objects.image_views import Encoded
from costream.training.objects.prototypes import Proposed, prototypes
from costream.training.optim import Schedule, device_of
from costream.training.training_loop import TrainingRun
from costream.weights_io.card import Card

# Steps of a training; twice as many from scratch
STEPS = 450
STEPS_PER_IMAGE = 3
MAX_STEPS = 900
_MOST_VALIDATED = 48  # maximum images of each validation during training
_COMPARED = 256  # maximum images that the class means are computed from
P = TypeVar("P", Encoded, LabelledImage)  # an image as a network takes it


@dataclass(frozen=True)
class Seeing(Generic[P]):
    """How a network sees images: those to train on and to validate with, by number."""

    trained: Callable[[int], P]
    checked: Callable[[int], P]
    detect: Callable[[Any, P], DetectedBoxes]  # by a network
    propose: Callable[[Any, P], Proposed]


@dataclass(frozen=True)
class Learning:
    """What is trained: modules of a network, on batches of views."""

    modules: nn.Module
    batch: int  # views of a step
    loss: Callable[[np.random.Generator], Tensor]  # of a new batch
    macs: Callable[[], int]  # of a frame
    frozen: bool  # the backbone is not trained


def train_detector(
    setup: TrainSetup,
    data: TrainingData,
    workspace: Workspace,
    learning: Learning,
    seeing: Seeing[P],
    others: dict[str, list[DetectedBoxes]],
) -> DetectorResults:
    """Train a network; return its detections in the validation images, after those of ``others``.

    ``others``: of ``baselines``.
    """
    network, card, settings = setup.network, setup.card, workspace.settings
    schedule = Schedule(number_of_steps(settings, data), learning.batch, rate=1e-3, decay=0.05)
    numbers = drawn_numbers(len(data.validation), _MOST_VALIDATED, settings.seed)

    def validate() -> dict[str, float]:
        network.eval()
        seen = [seeing.checked(number) for number in numbers]
        found = [seeing.detect(network, picture) for picture in seen]
        return figures(found, [to_truth(picture) for picture in seen], card.labels)

    adaptation = Adaptation(network, settings, schedule.steps, learning.macs)
    run = TrainingRun(settings.seed, workspace.checkpoint, adaptation)
    history = fit_detector(network, learning.modules, learning.loss, schedule, run, validate)
    adaptation.finish()
    network.requires_grad_(False)
    seen = [seeing.checked(number) for number in range(len(data.validation))]
    groups = sorted({still.group for still in data.validation})
    return DetectorResults(
        {card.name: [seeing.detect(network, picture) for picture in seen], **others},
        [to_truth(picture) for picture in seen],
        [groups.index(still.group) for still in data.validation],
        history,
        adaptation,
        learning.frozen,
    )


def baselines(
    setup: TrainSetup,
    data: TrainingData,
    workspace: Workspace,
    seeing: Seeing[P],
    overlap: float,
) -> dict[str, list[DetectedBoxes]]:
    """Return the detections of the baselines by name: class means, and the base weights.

    ``overlap``: of non-maximum suppression of the class means. Without validation images, or from
    scratch, there are none.
    """
    base, settings = workspace.base, workspace.settings
    if settings.scratch or not data.validation:
        return {}
    network = build(base.card, base.tensors)[0].to(device_of(setup.network)).eval()
    numbers = drawn_numbers(len(data.training), _COMPARED, settings.seed)
    every = range(len(data.validation))
    trained = (seeing.propose(network, seeing.trained(number)) for number in numbers)
    checked = (seeing.propose(network, seeing.checked(number)) for number in every)
    means = prototypes(trained, checked, len(setup.card.labels), overlap)
    found = (seeing.detect(network, seeing.checked(number)) for number in every)
    return _before(setup.card, base.card, means, found)


def _before(
    card: Card, base: Card, means: list[DetectedBoxes], found: Iterable[DetectedBoxes]
) -> dict[str, list[DetectedBoxes]]:
    """Return the detections of the baselines by name: class means, and of the ``base`` weights.

    ``found``: of the base weights, only used if it has some of the labels.
    """
    out = {PROTOTYPES: means}
    match = name_matcher(card.labels)
    names = [match(label) for label in base.labels]
    if any(names):
        numbers = np.array([-1 if name is None else card.labels.index(name) for name in names])
        out[f"{base.name}, before"] = [_renumbered(one, numbers) for one in found]
    return out


def number_of_steps(settings: TrainSettings, data: TrainingData) -> int:
    """Return the number of steps of a training: more for more images, and from scratch."""
    steps = min(MAX_STEPS, STEPS + STEPS_PER_IMAGE * len(data.training))
    return settings.steps or steps * (2 if settings.scratch else 1)


def drawn_numbers(count: int, most: int, seed: int) -> list[int]:
    """Return at most ``most`` numbers below ``count``, drawn by the seed, in order."""
    drawn = np.random.default_rng(seed).permutation(count)[:most]
    return sorted(int(number) for number in drawn)


def _renumbered(found: DetectedBoxes, numbers: Any) -> DetectedBoxes:
    """Return detections with mapped labels, without those whose new number is -1."""
    labels = numbers[found.labels]
    return DetectedBoxes(found.boxes[labels >= 0], found.scores[labels >= 0], labels[labels >= 0])
