"""Joint fine-tuning of frontend and temporal model: ``costream train --fine-tune``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from costream.models.adapters import WithFrontend
from costream.training.adapting import Adaptation
from costream.training.base import TrainSettings, Workspace
from costream.training.optim import (
    EarlyStopping,
    Optimizer,
    RandomState,
    Schedule,
    Stateful,
    TrainingCheckpoint,
    device_of,
    freeze_batchnorm,
    remove_dropout,
)
from costream.training.tokens.streams import TokenStream
from costream.training.tokens.teacher import Teacher
from costream.training.tokens.trainer import WINDOWS, figures, slides, stream_loss
from costream.weights_io.card import Card

VALIDATE_EVERY, PATIENCE = 10, 4  # least steps between validations; validations without gain
CHECKS = 20  # validations at most


def joint_schedule(settings: TrainSettings, steps: int, batch: int) -> Schedule:
    """Return the schedule of a fine-tuning: ``steps`` of ``batch`` clips unless settings say more.

    What is adapted or pruned learns faster and longer.
    """
    adapts, prunes = settings.adapter != "none", settings.density < 1
    rate = 3e-3 if adapts else 1e-3 if prunes else 3e-4
    more = steps * 3 // 2 if adapts or prunes else steps
    return Schedule(settings.steps or more, batch, rate=rate, smoothing=0.1)


def begin_adaptation(
    network: nn.Module, frontend: nn.Module, settings: TrainSettings, steps: int, joint: Schedule
) -> Adaptation:
    """Return what adapts and prunes a network, or with ``fine_tune`` it and its frontend as one.

    ``steps``: of the training of the network alone; ``joint``: of both.
    """
    if settings.fine_tune:
        return Adaptation(WithFrontend(network, frontend), settings, joint.steps)
    return Adaptation(network, settings, steps)


def continued(
    history: list[dict[str, float]], further: Sequence[dict[str, float]]
) -> list[dict[str, float]]:
    """Return a history with that of a training behind it, whose steps count on."""
    before = history[-1]["step"] if history else 0
    return history + [{**row, "step": before + row["step"]} for row in further]


def is_trained(card: Card, workspace: Workspace) -> bool:
    """Return whether what is to be pruned with its frontend knows these labels, so can teach."""
    settings, known = workspace.settings, workspace.base.card.labels
    prunes = bool(settings.fine_tune) and settings.density < 1 and not settings.scratch
    return prunes and card.labels == known


class ClipSource(Protocol):
    """A source of what a frontend takes."""

    def batch(self, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return a batch: clips [B, T, ...] and labels int64 [B, T], UNSCORED if unknown."""


def fine_tune(
    network: nn.Module,
    frontend: Any,
    supply: ClipSource,
    schedule: Schedule,
    seed: int,
    validation: Sequence[TokenStream] = (),
    partial: TrainingCheckpoint | None = None,
    adaptation: Adaptation | None = None,
    products: AbstractContextManager[Any] | None = None,
) -> list[dict[str, float]]:
    """Train both, restore the weights that did best on ``validation``, and return the history.

    ``validation``: streams of what the frontend takes, [T, ...]. The initial weights are candidates
    too, so without gain nothing changes. If there are no such streams, the last weights remain.
    BatchNorm statistics stay fixed. ``adaptation``: adapters and pruning of both, to be finished
    after it; what is pruned has itself, whole, as ``Teacher``, from which it learns without
    dropout, and keeps the last weights. ``products``: context of the frontend while it learns. For
    the history see ``EarlyStopping``.
    """
    torch.manual_seed(seed)
    rng, device = np.random.default_rng(seed), device_of(network)
    both = nn.ModuleList([network, frontend])
    counted = WINDOWS if slides(network) else None
    prunes = adaptation is not None and adaptation.prunes
    teacher = Teacher(network, frontend) if prunes else None
    if prunes:
        remove_dropout(both)

    @torch.no_grad()
    def validate() -> dict[str, float]:
        frontend.eval()
        rows = [frontend(stream.tokens[None].to(device))[0] for stream in validation]
        seen = [TokenStream(x, s.labels) for x, s in zip(rows, validation, strict=True)]
        found = figures(network, seen) if seen else {}
        freeze_batchnorm(frontend.train())
        return found

    def loss() -> Tensor:
        clips, labels = (x.to(device) for x in supply.batch(schedule.batch, rng))
        with products or nullcontext():
            lesson = None if teacher is None else (teacher, teacher.tokens(clips).float())
            tokens: Tensor = frontend(clips).float()
        return stream_loss(network, tokens, labels, schedule.smoothing, counted, rng, lesson)

    every = max(VALIDATE_EVERY, schedule.steps // CHECKS)
    stopping = EarlyStopping(validate, both.state_dict, schedule.steps, every, PATIENCE)
    stopping.begin()
    parts: dict[str, Stateful] = {"chance": RandomState(rng), "watch": stopping}
    optimizer = Optimizer([both], schedule, "fine-tuning", partial, parts)
    freeze_batchnorm(frontend)
    for step in optimizer:
        if adaptation is not None:
            adaptation.begin(step, loss)
        optimizer.step(loss())
        if stopping.update(step + 1, optimizer.loss) and not prunes:
            break
    if stopping.best and not prunes:
        both.load_state_dict(stopping.best)
    both.eval()
    return stopping.history
