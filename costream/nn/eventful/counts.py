"""Operation counts of a step, recorded where the operations are computed."""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import nn


@dataclass
class Operations:
    """Multiply-accumulates of one step by kind, all streams together.

    The bookkeeping is that of Dutson, Li, Gupta, "Eventful Transformers" (ICCV 2023): a
    multiply-accumulate counts 1 and so does a separate addition; layer norms, softmax,
    activations, scaling, norms of errors and the selection of tokens count nothing.
    """

    linear: int = 0  # rows times weights, convolutions
    bias: int = 0
    product: int = 0  # queries times keys, weights times values
    position: int = 0  # queries times relative positions
    add: int = 0  # skips, and positions added to tokens or scores
    gate: int = 0  # differences computed by gates
    accumulate: int = 0  # additions to running sums

    @property
    def total(self) -> int:
        """Sum of all kinds."""
        return sum(getattr(self, field.name) for field in fields(self))

    def add_all(self, other: Operations) -> None:
        """Add the counts of ``other``."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def count_linear(self, rows: int, layer: nn.Linear | nn.Conv2d) -> None:
        """Count ``rows`` rows, or output pixels, of a layer, including its bias."""
        self.linear += rows * layer.weight.numel()
        if layer.bias is not None:
            self.bias += rows * layer.bias.numel()
