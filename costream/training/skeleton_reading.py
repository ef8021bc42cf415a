"""What few skeletons are told by soonest: a linear reading of where joints are and how they move.

A network that learns a class from five motions learns much that is true of these five alone. A
linear layer for mean and standard deviation of each joint (see ``SkeletonNet``, ``statistics``)
cannot learn much of that kind, nor gain much from many examples. So a network gives a mean of
both, in which its own part grows with the examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from costream.frontends.joints import JointStreams
from costream.models.skeleton import SkeletonNet
from costream.training.logistic import logistic_regression
from costream.training.skeleton_loop import Supply, draw, loss

BATCHES, STEPS = 16, 128  # of streams, and their length
DECAY = 0.1  # of the squared weights, against the mean loss


@dataclass(frozen=True)
class Reading:
    """A linear layer: ``weight`` [K, 2 V C] and ``bias`` [K]."""

    weight: Tensor
    bias: Tensor

    @torch.no_grad()
    def join(self, network: SkeletonNet, share: float) -> None:
        """Let a network give the mean of its logits, with this share of it, and these.

        Its own reading, if it has learnt one, is replaced.
        """
        if network.reading is None:
            raise ValueError("a network without statistics")
        network.fc.weight.mul_(share)
        network.fc.bias.lerp_(self.bias, 1 - share)
        network.reading.weight.copy_((1 - share) * self.weight)


def put_aside(network: SkeletonNet) -> None:
    """Let a network learn without a reading: zero, and not learnt."""
    if network.reading is None:
        raise ValueError("a network without statistics")
    nn.init.zeros_(network.reading.weight).requires_grad_(False)


def fit_reading(
    network: SkeletonNet,
    frontend: JointStreams,
    supplies: Sequence[Supply],
    smoothing: float,
    seed: int,
) -> Reading:
    """Give the reading that tells streams best: a logistic regression.

    All means are measured by their own scale and all deviations by theirs, not each number by
    its own: of a joint that hardly moves there is little to be told.
    """
    rng, stride = np.random.default_rng(seed), network.stride
    rows, labels, weights = [], [], []
    for _ in range(BATCHES):
        tokens, told, counts = draw(frontend, supplies, STEPS, rng)
        rows.append(network.describe(tokens))
        labels.append(told[:, ::stride])
        weights.append(counts[:, ::stride])
    described = torch.cat(rows)
    centre = described.mean((0, 1))
    spread = (described - centre).square().mean((0, 1)).view(2, -1).mean(1).sqrt()
    scale = spread.clamp(min=1e-6).repeat_interleave(len(centre) // 2)
    truth, counting = torch.cat(labels), torch.cat(weights)
    weight, bias = logistic_regression(
        (described - centre) / scale,
        network.num_classes,
        lambda logits: loss(logits, truth, counting, smoothing),
        DECAY,
    )
    weight = weight / scale
    return Reading(weight, bias - weight @ centre)
