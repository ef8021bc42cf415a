"""``costream train --fine-tune``: frontend and temporal model learn together, on pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from costream.training.loop import Optimizer, Schedule, fix_statistics
from costream.training.own_tokens import WINDOWS, error, figures, slides
from costream.training.partial import Chance, Part, Partial
from costream.training.picture_pieces import Piece, Pieces
from costream.training.token_streams import TokenStream
from costream.training.watch import Watch

WATCH, PATIENCE = 10, 4  # steps between two looks at the pieces; looks without gain


def fine_tune(
    network: nn.Module,
    frontend: Any,
    supply: Pieces,
    schedule: Schedule,
    seed: int,
    watched: Sequence[Piece] = (),
    partial: Partial | None = None,
) -> list[dict[str, float]]:
    """Train both; they end with the weights that did best on the pieces ``watched``.

    Those that they begin with are among them: what gains nothing changes nothing. Without such
    pieces they end with the last weights. BatchNorm keeps its statistics. Gives what was seen on
    the way, see ``Watch``.
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
        fix_statistics(frontend.train())
        return found

    watch = Watch(look, both.state_dict, schedule.steps, WATCH, PATIENCE)
    watch.begin()
    parts: dict[str, Part] = {"chance": Chance(rng), "watch": watch}
    optimizer = Optimizer([both], schedule, "fine-tuning", partial, parts)
    fix_statistics(frontend)
    for step in optimizer:
        frames, labels = supply.batch(schedule.batch, rng)
        tokens: Tensor = frontend(frames)
        optimizer.descend(error(network, tokens, labels, schedule.smoothing, counted, rng))
        if watch.enough(step + 1, optimizer.loss):
            break
    if watch.best:
        both.load_state_dict(watch.best)
    both.eval()
    frontend.requires_grad_(False)
    return watch.history


@torch.no_grad()
def seen(frontend: Any, piece: Piece) -> TokenStream:
    """Give the tokens of a piece that begins a stream."""
    frames = torch.from_numpy(piece.frames)
    return TokenStream(frontend(frames[None])[0], piece.labels)
