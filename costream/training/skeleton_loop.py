"""The training loop of skeleton networks: streams in, every step supervised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.evaluation.motions import batch
from costream.frontends.joints import JointStreams
from costream.training.loop import Optimizer, Schedule
from costream.training.skeleton_streams import UNSCORED, StreamMaker

AVERAGE = 0.99  # of the weights over the steps; what is kept is the mean, not the last ones


@dataclass(frozen=True)
class Supply:
    """Where streams come from, and how many of each batch."""

    maker: StreamMaker
    streams: int


def train_network(
    network: nn.Module,
    frontend: JointStreams,
    supplies: Sequence[Supply],
    schedule: Schedule,
    steps: int,
    seed: int,
    title: str,
    fixed_statistics: bool = False,
) -> None:
    """Train ``network`` on streams of so many ``steps``; it ends with averaged weights.

    The frontend prepares the streams step by step, as in a run. Every step is supervised, the
    first ones of a motion less. ``fixed_statistics``: those of BatchNorm stay as they are, for
    networks that only learn on. Computed in bfloat16; the weights are float32.
    """
    rng = np.random.default_rng(seed)
    optimizer = Optimizer([network], schedule, title)
    if fixed_statistics:
        for part in network.modules():
            if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)):
                part.eval()
    average, stride = Average(network), int(getattr(network, "stride", 1))
    for _ in optimizer:
        tokens, labels, weights = draw(frontend, supplies, steps, rng)
        with torch.autocast("cpu", torch.bfloat16):
            logits = network(tokens)
        optimizer.descend(
            loss(logits.float(), labels[:, ::stride], weights[:, ::stride], schedule.smoothing)
        )
        average.update(network)
    average.give(network)


def draw(
    frontend: JointStreams, supplies: Sequence[Supply], steps: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Give a batch: tokens [B, T, P, V, C], labels int64 [B, T], weights [B, T]."""
    streams = [s.maker.draw(steps, rng) for s in supplies for _ in range(s.streams)]
    with torch.no_grad():
        tokens = frontend(batch([s.joints for s in streams]))
    labels = torch.from_numpy(np.stack([s.labels for s in streams]))
    return tokens, labels, torch.from_numpy(np.stack([s.weights for s in streams]))


def loss(logits: Tensor, labels: Tensor, weights: Tensor, smoothing: float) -> Tensor:
    """Give the weighted mean cross entropy of logits [B, T, K]; UNSCORED steps do not count."""
    each = F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=UNSCORED,
        label_smoothing=smoothing,
        reduction="none",
    )
    weights = (weights * (labels != UNSCORED)).flatten()
    return (each * weights).sum() / weights.sum().clamp(min=1e-6)


class Average:
    """The running mean of a network's weights and statistics, soon after the start too."""

    def __init__(self, network: nn.Module) -> None:
        self._mean = {k: v.clone() for k, v in network.state_dict().items()}
        self._count = 0

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take the weights of this step in."""
        self._count += 1
        share = max(1 - AVERAGE, 9 / (self._count + 9))
        for name, value in network.state_dict().items():
            if value.dtype.is_floating_point:
                self._mean[name].lerp_(value, share)
            else:
                self._mean[name].copy_(value)

    def give(self, network: nn.Module) -> None:
        """Set the network's weights to the mean."""
        network.load_state_dict(self._mean)
