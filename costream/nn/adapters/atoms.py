"""Channels of which some are the same: a disjoint-set forest."""

from __future__ import annotations

import torch
from torch import Tensor


class Atoms:
    """Channels, numbered from 1, and which of them can only be removed together."""

    def __init__(self) -> None:
        self.parents = [0]
        self.fixed: dict[int, str] = {}  # representative -> reason

    def new(self, count: int) -> Tensor:
        """Return the numbers of new channels."""
        start = len(self.parents)
        self.parents += range(start, start + count)
        return torch.arange(start, start + count)

    def find(self, label: int) -> int:
        """Return the representative of a channel."""
        while self.parents[label] != label:
            self.parents[label] = label = self.parents[self.parents[label]]
        return label

    def unite(self, a: Tensor, b: Tensor) -> None:
        """Make channels one wherever both labels, of one shape, are channels."""
        pairs = torch.stack([a.flatten(), b.flatten()], 1)
        for x, y in torch.unique(pairs[(pairs > 0).all(1) & (a != b).flatten()], dim=0).tolist():
            x, y = self.find(x), self.find(y)
            if x == y:
                continue
            self.parents[y] = x
            if y in self.fixed:
                self.fixed.setdefault(x, self.fixed.pop(y))

    def fix(self, labels: Tensor, reason: str) -> None:
        """Keep these channels."""
        for label in torch.unique(labels).tolist():
            if label:
                self.fixed.setdefault(self.find(label), reason)
