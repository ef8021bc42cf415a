"""One transformer encoder block: attention and feed-forward around a residual stream."""

from __future__ import annotations

from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.attention import MultiheadAttention
from costream.nn.fast import gelu, layer_norm, linear

A = TypeVar("A", bound=MultiheadAttention, covariant=True)
# gelu is the exact form, with erf
ACTIVATIONS = {"gelu": gelu, "relu": torch.relu, "none": torch.positive}


class EncoderBlock(nn.Module, Generic[A]):
    """Attention and feed-forward, with the parameter names of ``nn.TransformerEncoderLayer``.

    Post-norm: y = LN1(x + MHA(x)), z = LN2(y + W2 act(W1 y)).
    Pre-norm: y = x + MHA(LN1(x)), z = y + W2 act(W1 LN2(y)).

    The two halves are separate methods, because continual attention takes other rows than it
    returns: ``enter`` precedes the attention, ``leave`` follows it.
    """

    def __init__(
        self,
        self_attn: A,
        feedforward: int,
        norm_first: bool = False,
        activation: str = "gelu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation {activation!r} is not one of {sorted(ACTIVATIONS)}")
        width = self_attn.embed_dim
        self.self_attn = self_attn
        self.linear1 = nn.Linear(width, feedforward)
        self.linear2 = nn.Linear(feedforward, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.norm_first, self.dropout = norm_first, dropout
        self.activate = ACTIVATIONS[activation]

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return all rows of a window [B, n, d]. ``mask``: bool [B, n], False: no row."""
        return self.leave(x, self.self_attn(self.enter(x), mask))

    def enter(self, x: Tensor) -> Tensor:
        """Return the attention input for input rows ``x`` [..., d]."""
        return layer_norm(self, "norm1", x) if self.norm_first else x

    def leave(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return the output rows [..., d] from input rows ``x`` and their attention output.

        ``attended`` is overwritten.
        """
        y = (self._drop(attended) if self.training else attended).add_(x)
        if self.norm_first:
            return self._feedforward(layer_norm(self, "norm2", y)).add_(y)
        y = layer_norm(self, "norm1", y)
        return layer_norm(self, "norm2", self._feedforward(y).add_(y))

    def _feedforward(self, y: Tensor) -> Tensor:
        hidden = self.activate(linear(self, "linear1", y))
        if not self.training:
            return linear(self, "linear2", hidden)
        return self._drop(linear(self, "linear2", self._drop(hidden)))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout)

    def count_macs(self, rows: int) -> int:
        """Return the multiply-accumulates of the feed-forward over ``rows`` rows."""
        return 2 * rows * self.linear1.weight.numel()
