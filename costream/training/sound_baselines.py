"""What own sounds can be told by without a temporal model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.training.sound_recordings import Heard

PENALTY = 1e-2  # on the squared weights


def linear(
    heard: Sequence[Heard], checks: Sequence[Heard], labels: Sequence[str]
) -> list[npt.NDArray[Any]]:
    """Give the probabilities [1, K] that a linear classifier has for the mean token of each check.

    It learns from the mean tokens of the examples ``heard`` and of their variants.
    """
    rows = torch.stack([tokens.mean(0) for h in heard for tokens in h.tokens])
    target = torch.tensor([labels.index(h.label) for h in heard for _ in h.tokens])
    centre, spread = rows.mean(0), rows.std(0) + 1e-6
    layer = nn.Linear(rows.shape[1], len(labels))
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        error = F.cross_entropy(layer((rows - centre) / spread), target)
        total = error + PENALTY * layer.weight.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        means = torch.stack([h.tokens[0].mean(0) for h in checks])
        told = layer((means - centre) / spread).softmax(-1)
    return [row[None].numpy() for row in told]
