"""What a step really computed, counted where it is computed."""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import nn


@dataclass
class Operations:
    """Multiply-accumulates of one step by kind, all streams together.

    The bookkeeping is that of Dutson, Li, Gupta, "Eventful Transformers" (ICCV 2023): a
    multiply-accumulate counts 1 and so does an addition that stands alone; layer norms, softmax,
    activations, scaling, norms of errors and the choice of tokens count nothing.
    """

    linear: int = 0  # rows times weights, convolutions
    bias: int = 0
    product: int = 0  # queries times keys, weights times values
    position: int = 0  # queries times relative positions
    add: int = 0  # skips, and positions added to tokens or scores
    gate: int = 0  # differences that gates take
    accumulate: int = 0  # what is added to running sums

    @property
    def total(self) -> int:
        """All kinds together."""
        return sum(getattr(self, field.name) for field in fields(self))

    def count_linear(self, rows: int, layer: nn.Linear | nn.Conv2d) -> None:
        """Count this many rows, or output pixels, of a layer; its bias too."""
        self.linear += rows * layer.weight.numel()
        if layer.bias is not None:
            self.bias += rows * layer.bias.numel()
