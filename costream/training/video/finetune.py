"""Joint fine-tuning of frontend and temporal model on images: ``costream train --fine-tune``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from costream.training.optim import RandomState, Stateful, TrainingCheckpoint
from costream.training.picture_pieces import Piece, Pieces
from costream.training.tokens.streams import TokenStream
from costream.training.tokens.trainer import WINDOWS, figures, slides, stream_loss
from costream.training.watch import EarlyStopping
from weights.recipes.action.loop import Optimizer, Schedule, freeze_batchnorm

WATCH, PATIENCE = 10, 4  # steps between two validations; validations without gain


def fine_tune(
    network: nn.Module,
    frontend: Any,
    supply: Pieces,
    schedule: Schedule,
    seed: int,
    watched: Sequence[Piece] = (),
    partial: TrainingCheckpoint | None = None,
) -> list[dict[str, float]]:
    """Train both, restore the weights that did best on ``watched``, and return the history.

    The initial weights are candidates too, so without gain nothing changes. If there are no such
    pieces, the last weights remain. BatchNorm statistics stay fixed. For the history see
    ``Watch``.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    both = nn.ModuleList([network, frontend.requires_grad_(True)])
    counted = WINDOWS if slides(network) else None

    def look() -> dict[str, float]:
        if not watched:
            return {}
        frontend.eval()
        found = figures(network, [seen(frontend, piece) for piece in watched])
        freeze_batchnorm(frontend.train())
        return found

    watch = EarlyStopping(look, both.state_dict, schedule.steps, WATCH, PATIENCE)
    watch.begin()
    parts: dict[str, Stateful] = {"chance": RandomState(rng), "watch": watch}
    optimizer = Optimizer([both], schedule, "fine-tuning", partial, parts)
    freeze_batchnorm(frontend)
    for step in optimizer:
        frames, labels = supply.batch(schedule.batch, rng)
        tokens: Tensor = frontend(frames)
        optimizer.descend(stream_loss(network, tokens, labels, schedule.smoothing, counted, rng))
        if watch.enough(step + 1, optimizer.loss):
            break
    if watch.best:
        both.load_state_dict(watch.best)
    both.eval()
    frontend.requires_grad_(False)
    return watch.history


@torch.no_grad()
def seen(frontend: Any, piece: Piece) -> TokenStream:
    """Return the tokens of a piece at the start of a stream."""
    frames = torch.from_numpy(piece.frames)
    return TokenStream(frontend(frames[None])[0], piece.labels)
