"""Knowledge distillation: a network that is pruned learns what it said before it was.

Few recordings do not teach a narrower network of pictures what it lost; what the whole one says of
them, at every step, says much more of it than their labels.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.adapters.adapting import fuse

LABELS, SCORES, TOKENS = 0.3, 2.0, 3.0  # weights of the parts of the loss


class Teacher:
    """A network and its frontend as they are now, which do not learn.

    The loss for a batch is ``LABELS`` times that of its labels, ``SCORES`` times the divergence of
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
        """Return the teacher's tokens for clips of what the frontend takes."""
        tokens: Tensor = self.frontend(clips)
        return tokens

    def loss(
        self, network: Any, own: tuple[Tensor, Tensor], tokens: Tensor, given: Any, labels: Tensor
    ) -> Tensor:
        """Return the loss of a network.

        ``own``: its tokens and logits; ``tokens``: the teacher's; ``given``: what the network took
        beside tokens; ``labels``: the loss of the labels.
        """
        with torch.no_grad():
            said = self.network(tokens, *given).logits.log_softmax(-1)
            first = _first(self.network, tokens)
        logits = own[1].log_softmax(-1)
        scores = F.kl_div(logits, said, reduction="none", log_target=True).sum(-1).mean()
        apart = F.mse_loss(_first(network, own[0]), first) / first.var().clamp(min=1e-6)
        return LABELS * labels + SCORES * scores + TOKENS * apart


def _first(network: Any, tokens: Tensor) -> Tensor:
    layer = network.input_projection
    return tokens if layer is None else layer(tokens)
