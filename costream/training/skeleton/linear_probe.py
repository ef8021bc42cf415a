"""Linear probe on the joint statistics of skeleton networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from costream.models.skeleton.joints import JointStreams
from costream.models.skeleton.network import SkeletonNet
from costream.nn.adapters.adapting import original
from costream.training.baselines import logistic_regression
from costream.training.skeleton.skeleton_training import SkeletonSupply, draw, loss

BATCHES = 16  # of streams
PROBE_STEPS = 128  # length of a stream
DECAY = 0.1  # L2 penalty, relative to the mean loss


@dataclass(frozen=True)
class LinearProbe:
    """A linear probe on joint statistics: ``weight`` [K, 2 V C] and ``bias`` [K].

    A network overfits classes of five motions. A linear layer on the mean and standard deviation
    of each joint overfits less, but gains little from many examples. So the output is a mean of
    both, in which the network's weight grows with the number of examples.
    """

    weight: Tensor
    bias: Tensor

    @torch.no_grad()
    def join(self, network: SkeletonNet, share: float) -> None:
        """Make a network output the mean of its logits, weighted by ``share``, and the probe's.

        A probe already in the network is replaced.
        """
        if network.reading is None:
            raise ValueError("the network has no statistics")
        original(network.fc, "weight").mul_(share)
        network.fc.bias.lerp_(self.bias, 1 - share)
        original(network.reading, "weight").copy_((1 - share) * self.weight)


def disable_probe(network: SkeletonNet) -> None:
    """Set a network's probe to zero and freeze it, to train the network without it."""
    if network.reading is None:
        raise ValueError("the network has no statistics")
    nn.init.zeros_(network.reading.weight).requires_grad_(False)


def fit_probe(
    network: SkeletonNet,
    frontend: JointStreams,
    supplies: Sequence[SkeletonSupply],
    smoothing: float,
    seed: int,
) -> LinearProbe:
    """Fit a linear probe to streams by logistic regression.

    All means share one scale and all deviations another, instead of one scale per number: a
    joint that hardly moves carries little information.
    """
    rng = np.random.default_rng(seed)
    tokens, *targets = draw(frontend, supplies, PROBE_STEPS, rng, BATCHES)
    described = network.describe(tokens)
    labels, weights = (part[:, :: network.stride] for part in targets)
    centre = described.mean((0, 1))
    spread = (described - centre).square().mean((0, 1)).view(2, -1).mean(1).sqrt()
    scale = spread.clamp(min=1e-6).repeat_interleave(len(centre) // 2)
    weight, bias = logistic_regression(
        (described - centre) / scale,
        network.num_classes,
        lambda logits: loss(logits, labels, weights, smoothing),
        DECAY,
    )
    weight = weight / scale
    return LinearProbe(weight, bias - weight @ centre)
