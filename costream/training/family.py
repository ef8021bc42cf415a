"""What the ways to learn own classes have in common; see ``training.own``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt
from torch import nn

from costream.errors import ModelError
from costream.labels.examples import Example
from costream.models.card import Card, Timeline


@dataclass(frozen=True)
class TrainSettings:
    """Everything ``costream train`` was told, checked."""

    model: str
    weights: str | None
    data: Path
    group: str | None
    output: Path
    validation: float  # share of each class's examples
    steps: int | None
    scratch: bool
    seed: int
    rate_hz: float | None  # frames a second of recordings without times
    layout: str | None
    columns: str | None
    threads: int
    overwrite: bool
    verbosity: int


@dataclass(frozen=True)
class Taught:
    """What learning gave besides the weights.

    ``told``: probabilities [T, K] of each validation example; ``baselines``: those of simpler
    answers, by name.
    """

    told: list[npt.NDArray[Any]]
    timeline: Timeline
    how: str  # a sentence for the card: how it learnt, what was chosen on what
    baselines: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)


class Family(Protocol):
    """How networks for one kind of recording learn: a module."""

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
    ) -> Taught:
        """Train the network on the first of the examples; the second are to validate with."""


def cannot_be_taught(card: Card) -> ModelError:
    """Give the error for a model of which no family knows how it learns."""
    return ModelError(
        f"{card.name} cannot be taught",
        hint="costgcn (skeletons) and cotrans (sound) can: they give an output at every step",
    )
