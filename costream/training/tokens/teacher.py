"""Knowledge distillation: a pruned network learns the outputs that it had before.

The labels of a few recordings are not enough to recover what pruning removed; the outputs of the
original network at every step contain much more information.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.adapters.adapting import fuse

# Weights of the parts of the loss
LABELS = 0.3
SCORES = 2.0
TOKENS = 3.0


class Teacher:
    """Frozen copies of a network and its frontend.

    The loss of a batch is ``LABELS`` times that of its labels, ``SCORES`` times the divergence of
    the network's scores from the teacher's (Hinton, Vinyals, Dean, "Distilling the knowledge in a
    neural network", 2015), and ``TOKENS`` times the squared difference of tokens behind the
    network's first layer, relative to their variance (as of hidden layers by Romero et al.,
    "FitNets", ICLR 2015).
    """

    def __init__(self, network: nn.Module, frontend: nn.Module) -> None:
        both = copy.deepcopy(nn.ModuleList([network, frontend]))
        self.network, self.frontend = fuse(both).eval().requires_grad_(False)

    @torch.no_grad()
    def tokens(self, clips: Tensor) -> Tensor:
        """Return the teacher's tokens for inputs of the frontend."""
        tokens: Tensor = self.frontend(clips)
        return tokens

    def loss(
        self,
        network: Any,
        outputs: tuple[Tensor, Tensor],
        tokens: Tensor,
        arguments: Any,
        labels: Tensor,
    ) -> Tensor:
        """Return the loss of a network.

        ``outputs``: its tokens and logits; ``tokens``: the teacher's; ``arguments``: other
        arguments of the network; ``labels``: the loss of the labels.
        """
        with torch.no_grad():
            target = self.network(tokens, *arguments).logits.log_softmax(-1)
            first = _first(self.network, tokens)
        logits = outputs[1].log_softmax(-1)
        scores = F.kl_div(logits, target, reduction="none", log_target=True).sum(-1).mean()
        distance = F.mse_loss(_first(network, outputs[0]), first) / first.var().clamp(min=1e-6)
        return LABELS * labels + SCORES * scores + TOKENS * distance


def _first(network: Any, tokens: Tensor) -> Tensor:
    layer = network.input_projection
    return tokens if layer is None else layer(tokens)
