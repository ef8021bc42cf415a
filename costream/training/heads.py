"""Training of temporal models on the tokens of a finished frontend."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from costream.training.augment import Sampler
from weights.recipes.action.loop import (
    Optimizer,
    Schedule,
    batch,
    fastest_autocast,
    soft_cross_entropy,
)


@torch.no_grad()
def token_bank(
    frontend: nn.Module, samplers: Sequence[Sampler], batches: int, clips: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Return augmented clips as tokens [N, T, D] with their targets [N, T, K]."""
    rng, products = np.random.default_rng(seed), fastest_autocast()
    tokens, targets = [], []
    frontend.eval()
    for _ in tqdm(range(batches), desc="tokens", file=sys.stderr, disable=None, leave=False):
        frames, target = batch(samplers, clips, rng)
        with products:
            tokens.append(frontend(frames).float())
        targets.append(target)
    return torch.cat(tokens), torch.cat(targets)


def train_head(
    head: nn.Module,
    bank: tuple[Tensor, Tensor],
    schedule: Schedule,
    seed: int,
    title: str,
    last: int | None = None,
) -> None:
    """Train a temporal model on tokens.

    The loss covers the whole clip, or only the ``last`` steps of a random piece of it, for networks
    in which each step has its own window; either way windows are partly filled at times. A model
    with anticipation also learns the labels of the coming steps, with half the weight (OadTR, Wang
    et al., ICCV 2021).
    """
    rng = np.random.default_rng(seed)
    steps = bank[0].shape[1]
    bar = Optimizer([head], schedule, title)
    for _ in bar:
        rows = torch.from_numpy(rng.choice(len(bank[0]), schedule.batch, replace=False))
        length = steps if last is None else int(rng.integers(last, steps + 1))
        begin = int(rng.integers(steps - length + 1))
        tokens, targets = (x[rows, begin : begin + length] for x in bank)
        offset = torch.from_numpy(rng.integers(0, 1 << 16, size=len(rows)))
        counted = last or length
        out = head(tokens, offset, counted)
        loss = soft_cross_entropy(out.logits, targets[:, -counted:], schedule.smoothing)
        if out.anticipation is not None:
            ahead = future(targets, counted, out.anticipation.shape[2])
            loss = loss + 0.5 * soft_cross_entropy(out.anticipation, ahead, schedule.smoothing)
        bar.descend(loss)


def future(targets: Tensor, last: int, queries: int) -> Tensor:
    """Return the targets [B, last, A, K] of the A steps after each of the last ones of [B, T, K].

    Zeros, which are ignored, after the end of the clip.
    """
    steps = targets.shape[1]
    padded = nn.functional.pad(targets, (0, 0, 0, queries))
    times = torch.arange(steps - last, steps)[:, None] + torch.arange(1, queries + 1)
    return padded[:, times]
