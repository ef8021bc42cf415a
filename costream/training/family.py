"""What the ways to learn own classes have in common; see ``training.own``."""

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
from costream.checkpoints.weights_file import Weights
from costream.errors import ModelError, UsageError
from costream.labels.examples import Example, spelling
from costream.models.card import Card
from costream.runtime.stop import Stopped
from costream.training.feature_cache import FeatureCache
from costream.training.partial import Partial
from costream.training.timeline import Told

log = logging.getLogger("costream")

EARLY = "When to stop was chosen on the validation examples: the figures are a little too good."
PARTIALS = (".partial", ".frontend.partial")  # of the network, and of what learns after it


@dataclass(frozen=True)
class TrainSettings:
    """Everything ``costream train`` was told, checked."""

    model: str
    weights: str | None
    data: Path | None  # media, or a folder or table of examples
    labels: Path | None  # timelines or arrays of labels
    group: str | None
    output: Path
    validation: float  # share of each class's examples
    steps: int | None
    scratch: bool
    fine_tune: bool | None  # None: as the family does
    seed: int
    rate_hz: float | None  # frames a second of recordings without times
    layout: str | None
    columns: str | None
    threads: int
    cache: Path | None  # folder of features; None: keep none
    overwrite: bool
    verbosity: int


@dataclass(frozen=True)
class Taught:
    """What learning gave besides the weights.

    ``told``: probabilities [T, K] of each validation example; ``streams``: what is said of streams
    of such, one after another; ``baselines``: ``told`` of simpler answers, by name.
    """

    told: list[npt.NDArray[Any]] = field(default_factory=list)
    streams: list[Told] = field(default_factory=list)
    baselines: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)  # see ``Watch``


@dataclass(frozen=True)
class Desk:
    """Where a training keeps its things meanwhile."""

    cache: FeatureCache
    partial: Partial
    second: Partial  # of what comes after that


class Family(Protocol):
    """How networks for one kind of recording learn: a module."""

    ARGUMENTS: Mapping[str, Any]  # of what learns, where they differ from those of its card

    def labels(self, found: set[str], card: Card) -> tuple[str, ...]:
        """Give the labels to learn, the background first, from those of the examples."""

    def check(self, card: Card, settings: TrainSettings) -> None:
        """Raise ModelError for a model that cannot be taught, UsageError for wrong options."""

    def teach(
        self,
        network: nn.Module,
        frontend: Any,
        card: Card,
        examples: tuple[Sequence[Example], Sequence[Example]],
        settings: TrainSettings,
        desk: Desk,
    ) -> Taught:
        """Train the network on the first of the examples; the second are to validate with."""


def unfinished(
    settings: TrainSettings, base: Weights, examples: Sequence[Any], end: str
) -> Partial:
    """Give the file of this training while it is not over, whose name has this end.

    It is another training when any option that changes the result, the weights to start from, or
    one of the ``examples``, which are values of JSON, has changed.
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
    return Partial(path, identity, settings.overwrite)


def warn_of_unchecked(labels: Iterable[str], settings: TrainSettings) -> None:
    """Warn of labels that nothing is there to validate with, where that was asked for."""
    names = ", ".join(sorted(labels))
    if names and settings.validation > 0:
        log.warning("no validation examples of %s: too few files (or groups)", names)


@contextmanager
def stopping(partials: Sequence[Partial]) -> Iterator[None]:
    """Say how to go on when what is within is stopped."""
    try:
        yield
    except Stopped:
        there = [str(p.path) for p in partials if p.path.exists()]
        way = f"goes on from {' and '.join(there)}" if there else "begins anew"
        log.error("stopped; the same command %s", way)
        raise


def background_first(found: set[str], names: Sequence[str], added: str) -> tuple[str, ...]:
    """Give labels with the background first: the first of ``names`` that there is, or ``added``."""
    for name in names:
        for label in sorted(found):
            if spelling(label) == spelling(name):
                log.info("%r is the background: it makes no segments", label)
                return (label, *sorted(found - {label}))
    return (added, *sorted(found))


def cannot_be_taught(card: Card) -> ModelError:
    """Give the error for a model of which no family knows how it learns."""
    return ModelError(
        f"{card.name} cannot be taught",
        hint="cooadtr (video), costgcn (skeletons), cotrans (sound) and eventful-vitdet (objects)"
        " can",
    )


def refuse_fine_tuning(card: Card, settings: TrainSettings, why: str) -> None:
    """Raise UsageError when a frontend should learn that cannot."""
    if settings.fine_tune:
        raise UsageError(f"{card.name} has no frontend to train: {why}", where="--fine-tune")
