"""Streams of consecutive sounds, and the training of temporal models on them."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from costream.frontends.audio import ContinualAudioNet
from costream.training.sound_augment import BLOCK, PieceSampler
from weights.recipes.action.loop import Optimizer, Schedule, logits, soft_cross_entropy

STREAM_STEPS = 160  # length of a stream: longer than the models' window
_PIECES = (6, 40)  # range of a sound's steps in a stream
_LAG = 2  # steps after which a token covers more of the new sound than of the last


@dataclass(frozen=True)
class Bank:
    """N streams as tokens [N, T, D] with the targets [N, T, K] of both heads."""

    tokens: Tensor
    sounds: Tensor
    genres: Tensor


@torch.no_grad()
def token_bank(backbone: ContinualAudioNet, supply: PieceSampler, streams: int, seed: int) -> Bank:
    """Return streams of directly consecutive augmented pieces."""
    rng = np.random.default_rng(seed)
    backbone.eval()
    parts: list[tuple[Tensor, ...]] = []
    bar = tqdm(range(streams), desc="streams", file=sys.stderr, disable=None, leave=False)
    for _ in bar:
        lengths: list[int] = []
        while sum(lengths) < STREAM_STEPS:
            lengths.append(int(rng.integers(*_PIECES)))
        batch = supply.batch(len(lengths), rng, max(_PIECES))
        waves = [w[: n * BLOCK] for w, n in zip(batch.waves, lengths, strict=True)]
        tokens = backbone(torch.cat(waves)[None, : STREAM_STEPS * BLOCK])[0]
        repeats = torch.tensor(lengths)
        targets = [
            _later(t.repeat_interleave(repeats, 0)[:STREAM_STEPS])
            for t in (batch.sounds, batch.genres)
        ]
        parts.append((tokens, *targets))
    return Bank(*(torch.stack(column) for column in zip(*parts, strict=True)))


def train_head(
    head: nn.Module, tokens: Tensor, targets: Tensor, schedule: Schedule, seed: int, title: str
) -> None:
    """Train a temporal model, or a linear layer, on streams of tokens.

    Pieces of streams begin at random places, and so do the positions, as in the paper: this
    trains for any first row of the embeddings and for windows that are not yet full.
    """
    rng = np.random.default_rng(seed)
    bar = Optimizer([head], schedule, title)
    for _ in bar:
        rows = torch.from_numpy(rng.choice(len(tokens), schedule.batch))
        length = int(rng.integers(8, STREAM_STEPS + 1))
        begin = int(rng.integers(STREAM_STEPS - length + 1))
        piece = slice(begin, begin + length)
        scores = logits(head, tokens[rows, piece], rng)
        bar.descend(soft_cross_entropy(scores, targets[rows, piece], schedule.smoothing))


def _later(targets: Tensor) -> Tensor:
    """Return the targets [T, K], delayed by the lag with which tokens show a change."""
    return torch.cat([targets[:1].expand(_LAG, -1), targets[:-_LAG]])
