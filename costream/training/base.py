"""Common parts of the custom-class trainers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch import nn

import costream
from costream.checkpoints.card import Card
from costream.checkpoints.file import Weights
from costream.errors import ModelError, UsageError
from costream.labels.examples import Example, normalise_label
from costream.runtime.stop import Stopped
from costream.training.calibration import StreamPredictions
from costream.training.feature_cache import FeatureCache
from costream.training.optim import TrainingCheckpoint

log = logging.getLogger("costream")

EARLY_STOPPING_NOTE = (
    "Early stopping used the validation examples: their metrics are slightly optimistic."
)
CHECKPOINT_SUFFIXES = (".partial", ".frontend.partial")  # of the network, and of the stage after it


@dataclass(frozen=True)
class TrainSettings:
    """Validated options of ``costream train``."""

    model: str
    weights: str | None
    data: Path | None  # media, or a folder or table of examples
    labels: Path | None  # timelines or arrays of labels
    group: str | None
    output: Path
    validation: float  # share of each class's examples
    steps: int | None
    scratch: bool
    fine_tune: bool | None  # None: the trainer's default
    seed: int
    rate_hz: float | None  # frames per second of recordings without times
    layout: str | None
    columns: str | None
    threads: int
    cache: Path | None  # folder of cached features; None: no cache
    overwrite: bool
    verbosity: int


@dataclass(frozen=True)
class TrainResult:
    """Result of a training besides the weights.

    ``predictions``: probabilities [T, K] of each validation example; ``streams``: those for
    streams of concatenated examples; ``baselines``: ``predictions`` of the baselines, by name.
    """

    predictions: list[npt.NDArray[Any]] = field(default_factory=list)
    streams: list[StreamPredictions] = field(default_factory=list)
    baselines: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)  # see ``EarlyStopping``


@dataclass(frozen=True)
class Workspace:
    """Feature cache and checkpoints of a training."""

    cache: FeatureCache
    checkpoint: TrainingCheckpoint
    frontend_checkpoint: TrainingCheckpoint  # of the fine-tuning after it


class CustomClassTrainer(Protocol):
    """Trainer of custom classes for one kind of recording: the interface of a module."""

    ARGUMENTS: Mapping[str, Any]  # of the trained network, where they differ from its card

    def labels(self, found: set[str], card: Card) -> tuple[str, ...]:
        """Return the labels to learn from those of the examples, the background first."""

    def check(self, card: Card, settings: TrainSettings) -> None:
        """Raise ModelError for a model that cannot be trained, UsageError for wrong options."""

    def fit(
        self,
        network: nn.Module,
        frontend: Any,
        card: Card,
        examples: tuple[Sequence[Example], Sequence[Example]],
        settings: TrainSettings,
        workspace: Workspace,
    ) -> TrainResult:
        """Train the network on the first of the examples; validate on the second."""


def training_checkpoint(
    settings: TrainSettings, base: Weights, examples: Sequence[Any], end: str
) -> TrainingCheckpoint:
    """Return the checkpoint of this training, OUTPUT with the suffix ``end``.

    It is another training when any option that changes the result, the initial weights, or one of
    the ``examples`` (JSON values) has changed.
    """
    identity = {
        "version": [costream.__version__, torch.__version__, base.sha256],
        "options": [
            *(settings.validation, settings.steps, settings.scratch, settings.seed),
            *(
                settings.fine_tune,
                settings.rate_hz,
                settings.layout,
                settings.columns,
                settings.threads,
            ),
        ],
        "examples": list(examples),
    }
    path = settings.output.with_name(settings.output.name + end)
    return TrainingCheckpoint(path, identity, settings.overwrite)


def warn_of_unchecked(labels: Iterable[str], settings: TrainSettings) -> None:
    """Warn of labels without validation examples, if validation was requested."""
    names = ", ".join(sorted(labels))
    if names and settings.validation > 0:
        log.warning("no validation examples of %s: too few files (or groups)", names)


@contextmanager
def log_resume_hint(partials: Sequence[TrainingCheckpoint]) -> Iterator[None]:
    """Log how to resume when the enclosed block is stopped."""
    try:
        yield
    except Stopped:
        there = [str(p.path) for p in partials if p.path.exists()]
        way = f"resumes from {' and '.join(there)}" if there else "starts over"
        log.error("stopped; the same command %s", way)
        raise


def background_first(found: set[str], names: Sequence[str], added: str) -> tuple[str, ...]:
    """Return labels, the background first: the first of ``names`` found, or else ``added``."""
    for name in names:
        for label in sorted(found):
            if normalise_label(label) == normalise_label(name):
                log.info("%r is the background class: it produces no segments", label)
                return (label, *sorted(found - {label}))
    return (added, *sorted(found))


def untrainable_error(card: Card) -> ModelError:
    """Return the error for a model that no trainer supports."""
    return ModelError(
        f"{card.name} cannot be trained on custom classes",
        hint="cooadtr (video), costgcn (skeletons), cotrans (sound) and eventful-vitdet (objects)"
        " can",
    )


def refuse_fine_tuning(card: Card, settings: TrainSettings, why: str) -> None:
    """Raise UsageError for ``--fine-tune`` on a model whose frontend cannot be trained."""
    if settings.fine_tune:
        raise UsageError(f"{card.name} has no frontend to train: {why}", where="--fine-tune")
