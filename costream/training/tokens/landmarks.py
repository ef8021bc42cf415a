"""Fixed landmarks of Nyström attention, fitted block by block during training.

Carreto Picon et al., Continual Low-Rank Scaled Dot-product Attention (2024), train in two phases:
first with landmarks of the window; then the landmarks of one block after another are fixed to
centres of its queries and keys, and training continues with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from costream.models.oad.conystrom import CoNystrom
from costream.nn.nystrom.encoder import NystromEncoder
from costream.training.optim import Schedule, device_of

TOKENS = 50_000  # used to fit centres
ROUNDS = 25  # maximum iterations of Lloyd's algorithm
STEPS = 128  # of a stream
WINDOWS = 8  # of a stack that are used
FIRST = 0.5  # share of the steps trained with landmarks of the window


class StreamSource(Protocol):
    """A source of training streams."""

    def batch(self, streams: int, steps: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return a batch: tokens [B, T, D] and labels int64 [B, T], UNSCORED if unknown."""


class LandmarkSchedule:
    """Two-phase training of fixed landmarks; networks without them have a single phase.

    The first half of the steps uses landmarks of the window; in the second, blocks are fixed one
    by one at equal intervals, the first at once.
    """

    def __init__(
        self,
        network: nn.Module,
        schedule: Schedule,
        supply: StreamSource,
        rng: np.random.Generator,
    ) -> None:
        self._network = network if isinstance(network, CoNystrom) else None
        self._supply, self._rng = supply, rng
        self._batch, self._when = schedule.batch, list[int]()
        if self._network is not None and self._network.encoder.attention[0].fixed:
            count, rest = self._network.encoder.depth, schedule.steps * (1 - FIRST)
            self._when = [int(schedule.steps * FIRST + k * rest / count) for k in range(count)]

    def begin(self, step: int, loss: Callable[[], Tensor]) -> None:
        """Prepare a step: select the landmarks it is trained with, and fit those that are due.

        ``loss`` is not used.
        """
        if self._network is None:
            return
        for block, when in enumerate(self._when):
            self._network.encoder.attention[block].fixed = step > when
            if step == when:
                fit_landmarks(self._network, block, self._supply, self._rng, self._batch)

    def over(self, step: int) -> bool:
        """Return whether all landmarks are fitted at a step."""
        return not self._when or step >= self._when[-1]


@torch.no_grad()
def fit_landmarks(
    network: CoNystrom, block: int, supply: StreamSource, rng: np.random.Generator, streams: int
) -> None:
    """Fix the landmarks of a block to the centres of its queries and of its keys, head by head."""
    training = network.training
    network.eval()
    encoder: NystromEncoder = network.encoder
    attention = encoder.attention[block]
    rows, count = [], 0
    while count < TOKENS:
        tokens = supply.batch(streams, STEPS, rng)[0].to(device_of(network))
        offset = torch.from_numpy(rng.integers(0, 1 << 16, size=len(tokens)))
        rows.append(encoder.attended(network.embed(tokens, offset), block, WINDOWS).flatten(0, 1))
        count += len(rows[-1])
    queries, keys, _ = attention.split(torch.cat(rows)[:TOKENS][None])
    m = attention.num_landmarks
    attention.fix_landmarks(centres(queries[0], m, rng), centres(keys[0], m, rng))
    network.train(training)


def centres(points: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """Return the means [h, m, e] of the m clusters of points [h, N, e], by Lloyd's algorithm.

    Initial means are points drawn by their squared distance to those drawn before (k-means++,
    Arthur and Vassilvitskii, 2007). A cluster that loses all its points retains its mean.
    """
    chance = torch.Generator(points.device).manual_seed(int(rng.integers(1 << 31)))
    heads, distances = torch.arange(len(points)), points.new_ones(points.shape[:2])
    found = points[:, :0]
    for _ in range(count):
        drawn = points[heads, torch.multinomial(distances + 1e-12, 1, generator=chance)[:, 0]][
            :, None
        ]
        distance = torch.cdist(points, drawn)[:, :, 0].square()
        distances = torch.minimum(distances, distance) if found.shape[1] else distance
        found = torch.cat([found, drawn], 1)
    nearest = points.new_empty(0, dtype=torch.int64)
    for _ in range(ROUNDS):
        before, nearest = nearest, torch.cdist(points, found).argmin(2)
        if torch.equal(before, nearest):
            break
        ones = points.new_ones(nearest.shape)
        sizes = found.new_zeros(found.shape[:2]).scatter_add_(1, nearest, ones)[:, :, None]
        index = nearest[:, :, None].expand_as(points)
        sums = torch.zeros_like(found).scatter_add_(1, index, points)
        found = torch.where(sizes > 0, sums / sizes.clamp(min=1), found)
    return found
