"""A learned policy: which tokens of a frame matter, by their change and their content."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from costream.nn.eventful.counts import Operations

_LEAST = 1e-8  # squared distances below it are alike


class TokenGate(nn.Module):
    """Scores of tokens: how much outputs are expected to differ if a token keeps its last results.

    The score is the mean of the logarithm of the squared distance from the reference, and of an
    estimate: the logarithm of a weighted squared distance, plus a small network of what the token
    shows and how much it has changed in a few directions. The estimate is trained on gradients of
    outputs; alone it neglects what it takes for background.

    Args:
        dim: D, of tokens. ``content``: numbers that describe a token. ``changes``: directions in
            which its change is measured. ``hidden``: width of the network.
    """

    def __init__(self, dim: int, content: int = 8, changes: int = 4, hidden: int = 16) -> None:
        super().__init__()
        self.log_weights = nn.Parameter(torch.zeros(dim))
        self.content = nn.Linear(dim, content)
        self.changes = nn.Linear(dim, changes, bias=False)
        self.score = nn.Sequential(
            nn.Linear(content + 1 + changes, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def estimate(self, change: Tensor, tokens: Tensor) -> Tensor:
        """Return the estimates [..., N] for ``tokens`` [..., N, D] and their ``change``."""
        squared = (change**2 * self.log_weights.exp()).sum(-1, keepdim=True)
        distance = squared.clamp(min=_LEAST).log()
        along = (self.changes(change) ** 2 + 100 * _LEAST).log() - distance
        seen = torch.cat([self.content(tokens), distance, along], -1)
        out: Tensor = distance + self.score(seen)
        return out.squeeze(-1)

    def forward(self, change: Tensor, tokens: Tensor) -> Tensor:
        """Return scores [..., N] of ``tokens`` [..., N, D] and their ``change`` since computed."""
        distance = (change**2).sum(-1).clamp(min=_LEAST).log()
        return (distance + self.estimate(change, tokens)) / 2

    def count(self, tokens: int, operations: Operations) -> None:
        """Count the operations of the scores of so many tokens."""
        operations.gate += tokens * sum(p.numel() for p in self.parameters())
