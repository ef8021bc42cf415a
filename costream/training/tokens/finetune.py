"""Joint fine-tuning of frontend and temporal model: ``costream train --fine-tune``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from costream.training.optim import Schedule, device_of, freeze_batchnorm, remove_dropout
from costream.training.tokens.teacher import Teacher
from costream.training.tokens.token_streams import TokenStream
from costream.training.tokens.token_training import WINDOWS, figures, slides, stream_loss
from costream.training.training_loop import Stopping, TrainingLoop, TrainingRun

VALIDATE_EVERY = 10  # minimum steps between validations
PATIENCE = 4  # validations without improvement
CHECKS = 20  # validations at most


class ClipSource(Protocol):
    """A source of what a frontend takes."""

    def batch(self, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return a batch: clips [B, T, ...] and labels int64 [B, T], UNSCORED if unknown."""


def fine_tune(
    network: nn.Module,
    frontend: Any,
    supply: ClipSource,
    schedule: Schedule,
    run: TrainingRun,
    validation: Sequence[TokenStream] = (),
    products: AbstractContextManager[Any] | None = None,
) -> list[dict[str, float]]:
    """Train both, restore the weights that did best on ``validation``, and return the history.

    ``validation``: streams of what the frontend takes, [T, ...]. The initial weights are candidates
    too, so without gain nothing changes. If there are no such streams, the last weights remain.
    BatchNorm statistics stay fixed. A network that is pruned has itself, before it is pruned, as
    ``Teacher``, from which it learns without dropout, and keeps the last weights. ``products``:
    context of the frontend while it learns. For the history see ``EarlyStopping``.
    """
    torch.manual_seed(run.seed)
    rng, device = np.random.default_rng(run.seed), device_of(network)
    both = nn.ModuleList([network, frontend])
    supervised = WINDOWS if slides(network) else None
    prunes = run.adaptation is not None and run.adaptation.prunes
    teacher = Teacher(network, frontend) if prunes else None
    if prunes:
        remove_dropout(both)

    @torch.no_grad()
    def validate() -> dict[str, float]:
        frontend.eval()
        rows = [frontend(stream.tokens[None].to(device))[0] for stream in validation]
        encoded = [TokenStream(x, s.labels) for x, s in zip(rows, validation, strict=True)]
        found = figures(network, encoded) if encoded else {}
        freeze_batchnorm(frontend.train())
        return found

    def loss() -> Tensor:
        clips, labels = (x.to(device) for x in supply.batch(schedule.batch, rng))
        with products or nullcontext():
            lesson = None if teacher is None else (teacher, teacher.tokens(clips).float())
            tokens: Tensor = frontend(clips).float()
        return stream_loss(network, tokens, labels, schedule.smoothing, supervised, rng, lesson)

    every = max(VALIDATE_EVERY, schedule.steps // CHECKS)
    stopping = Stopping(validate, every, PATIENCE, initial=True, keep_best=not prunes)
    return TrainingLoop(both, loss, schedule, rng, run, stopping, run.phases, fixed=frontend).fit()
