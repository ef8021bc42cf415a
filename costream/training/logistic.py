"""Multinomial logistic regression: the linear layer that few examples are told by."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

_ITERATIONS = 200


def logistic_regression(
    rows: Tensor, classes: int, error: Callable[[Tensor], Tensor], penalty: float
) -> tuple[Tensor, Tensor]:
    """Give weight [K, D] and bias [K] of the least penalised error of ``rows`` [..., D].

    ``error``: of logits [..., K], a convex one. ``penalty``: on the squared weights. By L-BFGS
    from zeros, so that nothing is left to chance.
    """
    weight = torch.zeros(classes, rows.shape[-1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    search = torch.optim.LBFGS([weight, bias], max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        search.zero_grad()
        total = error(F.linear(rows, weight, bias)) + penalty * weight.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    search.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()
