"""The training loop: gradient steps, validation, early stopping and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor, nn

from costream.core.errors import say
from costream.training.adaptation import Adaptation
from costream.training.checkpoint import RandomState, Stateful, TrainingCheckpoint
from costream.training.early_stopping import EarlyStopping
from costream.training.optim import Average, Optimizer, Schedule, freeze_batchnorm

_WORTH_SAYING_S = 120.0


class Phase(Protocol):
    """Changes the network at certain steps of a training: see ``Adaptation``."""

    def begin(self, step: int, loss: Callable[[], Tensor]) -> None:
        """Change the network before a step if it is due. ``loss``: of a new batch."""

    def over(self, step: int) -> bool:
        """Return whether the network is no longer changed after this step."""


@dataclass
class Pace:
    """Says after the first ``epoch`` steps how long the rest of ``steps`` takes, if minutes.

    ``clock``: returns seconds.
    """

    epoch: int
    steps: int
    clock: Callable[[], float] = time.monotonic
    _first: tuple[int, float] | None = None  # step and time at which this process began

    def begin(self, step: int, loss: Callable[[], Tensor]) -> None:
        """Say it, if an epoch was just completed for the first time."""
        if self._first is None:
            self._first = step, self.clock()
        first, began = self._first
        if step - first != self.epoch:
            return
        epoch_s = self.clock() - began
        rest_s = epoch_s * (self.steps - step) / self.epoch
        if rest_s >= _WORTH_SAYING_S:
            say(
                f"an epoch takes {epoch_s / 60:.1f} min, the rest {rest_s / 60:.0f} min at most;"
                " models init makes smaller networks, --epochs trains shorter"
            )

    def over(self, step: int) -> bool:
        """Return True: the network is not changed."""
        return True


@dataclass(frozen=True)
class TrainingRun:
    """What a user chooses about a training: its seed, its checkpoint, adapters and pruning.

    ``adaptation`` is to be finished after the training.
    """

    seed: int = 0
    checkpoint: TrainingCheckpoint | None = None
    adaptation: Adaptation | None = None
    title: str = "training"  # of the progress bar

    @property
    def phases(self) -> list[Phase]:
        """The changes of the network during the training."""
        return [] if self.adaptation is None else [self.adaptation]


@dataclass(frozen=True)
class Stopping:
    """When a network is validated, and which of its weights are kept.

    Args:
        validate: returns validation figures, see ``EarlyStopping``; nothing without examples.
        every: steps between two validations.
        patience: validations without improvement after which training ends.
        initial: whether the weights before the first step may be kept.
        keep_best: keep the weights with the lowest validation loss, not the last ones.
    """

    validate: Callable[[], dict[str, float]]
    every: int
    patience: int
    initial: bool = False
    keep_best: bool = True


@dataclass(frozen=True)
class TrainingLoop:
    """Trains a network on batches until validation no longer improves.

    Args:
        network: its trainable parameters are trained.
        loss: returns the loss of a new batch.
        schedule: number of steps and learning rate.
        rng: generator that draws the batches, stored in checkpoints.
        run: seed, checkpoint and title.
        stopping: validation.
        phases: changes of the network; before the last one no weights count as the best.
        average: running mean of the weights, which is kept instead of the weights.
        fixed: module whose BatchNorm statistics stay fixed.
    """

    network: nn.Module
    loss: Callable[[], Tensor]
    schedule: Schedule
    rng: np.random.Generator
    run: TrainingRun
    stopping: Stopping
    phases: Sequence[Phase] = ()
    average: Average | None = None
    fixed: nn.Module | None = None

    def fit(self) -> list[dict[str, float]]:
        """Train, leave the kept weights in the network, and return the history.

        For the history see ``EarlyStopping``.
        """
        how, average, network = self.stopping, self.average, self.network
        weights = network.state_dict if average is None else lambda: average.weights
        stopping = EarlyStopping(
            how.validate, weights, self.schedule.steps, how.every, how.patience
        )
        if how.initial:
            stopping.begin()
        optimizer = self._begin(stopping)
        for step in optimizer:
            for phase in self.phases:
                phase.begin(step, self.loss)
            optimizer.step(self.loss())
            if average is not None:
                average.update(network)
            if how.keep_best and not self._is_settled(step):
                continue
            if stopping.update(step + 1, optimizer.loss) and how.keep_best:
                break
        kept = stopping.best if how.keep_best else {}
        if average is not None:
            kept = kept or average.weights
        if kept:
            network.load_state_dict(kept)
        network.eval()
        return stopping.history

    def _is_settled(self, step: int) -> bool:
        """Return whether no phase changes the network after this step."""
        return all(phase.over(step) for phase in self.phases)

    def _begin(self, stopping: EarlyStopping) -> Optimizer:
        parts: dict[str, Stateful] = {"chance": RandomState(self.rng), "watch": stopping}
        if self.average is not None:
            parts["average"] = self.average
        run = self.run
        optimizer = Optimizer([self.network], self.schedule, run.title, run.checkpoint, parts)
        if self.fixed is not None:
            freeze_batchnorm(self.fixed)
        return optimizer
