"""Baselines on features: nearest class mean and logistic regression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

CENTROID = "nearest centroid of mean tokens"
PROTOTYPES = "nearest centroid of boxes"
SHARPNESS = 10.0  # scale of the softmax over cosines; does not affect the argmax
_ITERATIONS = 200


def nearest_centroid(
    rows: npt.NDArray[np.floating[Any]],
    labels: Sequence[int],
    checks: npt.NDArray[np.floating[Any]],
    classes: int,
) -> list[npt.NDArray[Any]]:
    """Return probabilities [1, K] for each row of ``checks`` [M, D], a softmax of cosines.

    ``rows`` [N, D] and ``labels`` [N] are the training examples: mean features over time. Each
    class is represented by the mean of its rows; a class without examples has probability 0.
    """
    present = sorted(set(labels))
    where = np.asarray(labels)
    centres = np.stack([rows[where == label].mean(0) for label in present])
    cosines = _unit(checks) @ _unit(centres).T
    weights = np.exp(SHARPNESS * (cosines - cosines.max(1, keepdims=True)))
    probabilities = np.zeros((len(checks), classes))
    probabilities[:, present] = weights / weights.sum(1, keepdims=True)
    return [row[None] for row in probabilities]


def _unit(rows: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.floating[Any]]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    out: npt.NDArray[np.floating[Any]] = rows / np.maximum(lengths, 1e-9)
    return out


def logistic_regression(
    rows: Tensor, classes: int, error: Callable[[Tensor], Tensor], penalty: float
) -> tuple[Tensor, Tensor]:
    """Return weight [K, D] and bias [K] with the least penalised loss of ``rows`` [..., D].

    ``error``: a convex loss of logits [..., K]. ``penalty``: factor of the squared weights.
    L-BFGS from zeros, so the result is deterministic.
    """
    weight = torch.zeros(classes, rows.shape[-1], requires_grad=True, device=rows.device)
    bias = torch.zeros(classes, requires_grad=True, device=rows.device)
    search = torch.optim.LBFGS([weight, bias], max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        search.zero_grad()
        total = error(F.linear(rows, weight, bias)) + penalty * weight.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    search.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()
