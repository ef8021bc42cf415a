"""Layer-wise relevance propagation: which of a layer's outputs an answer rests on.

Bach et al. (2015), with the z+ rule of Montavon et al. (2017), alpha 1 and beta 0: an output hands
its relevance down in proportion to the positive contributions to it,

    R_j = sum_k (a_j w_jk)^+ / sum_i (a_i w_ik)^+ R_k.

While it is on, a layer's output y is z+ * (y / z+) with z+ = sum_i (a_i w_i)^+ and the quotient
taken as a constant: the value is the same, and a times the gradient is the relevance. So is, summed
over a row of weights, w times the gradient: that of an output. Everything else propagates as its
gradient, which for ReLU and maxima is the rule itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEAST = 1e-9


@contextmanager
def propagating(net: nn.Module) -> Iterator[None]:
    """Propagate relevance in place of gradients through linear layers and convolutions.

    Of layers that are called as functions with weights of other modules the gradient stays, which
    is the rule with epsilon 0 for them.
    """
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    hooks = [m.register_forward_hook(_relevant) for m in net.modules() if isinstance(m, kinds)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _relevant(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Return the output of a layer, through which relevance propagates."""
    x, weight = inputs[0], layer.weight
    positive = _apply(layer, x.clamp(min=0), weight.clamp(min=0))
    positive = positive + _apply(layer, x.clamp(max=0), weight.clamp(max=0))
    share = torch.where(positive > _LEAST, output / positive.clamp(min=_LEAST), 0)
    held = positive * share.detach()
    return held + (output - held).detach()


def _apply(layer: Any, x: Tensor, weight: Tensor) -> Tensor:
    if isinstance(layer, nn.Linear):
        return F.linear(x, weight)
    return layer._conv_forward(x, weight, None)  # type: ignore[no-any-return]
