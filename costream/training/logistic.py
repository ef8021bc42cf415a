"""Multinomial logistic regression, for linear classifiers of few examples."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

_ITERATIONS = 200


def logistic_regression(
    rows: Tensor, classes: int, error: Callable[[Tensor], Tensor], penalty: float
) -> tuple[Tensor, Tensor]:
    """Return weight [K, D] and bias [K] with the least penalised loss of ``rows`` [..., D].

    ``error``: a convex loss of logits [..., K]. ``penalty``: factor of the squared weights.
    L-BFGS from zeros, so the result is deterministic.
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
