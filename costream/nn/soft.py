"""SOFT attention, which has no softmax, and the block with scaled residuals used with it.

SOFT attention (Lu et al., SOFT: Softmax-free Transformer with Linear Complexity, NeurIPS 2021)
weighs rows by a Gaussian of their distance. The analysis of DeepCoT (2025) uses it, in blocks
without activation and layer norms.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from costream.nn.attention import AttentionState, SingleOutputAttention
from costream.nn.block import A, EncoderBlock
from costream.nn.position import turn_pairs


class SoftAttention(SingleOutputAttention):
    """Single-output attention with weights exp(-|q - k|^2 / (2 e)), which are not normalised.

    Keys are projected as queries are, so ``in_proj_weight`` is [Wq; Wv], [2 d, d].
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        window: int,
        *,
        qkv_bias: bool = True,
        out_bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            embed_dim, num_heads, window, qkv_bias=qkv_bias, out_bias=out_bias, dropout=dropout
        )
        self._split = (2, num_heads, self.head_dim)
        self.in_proj_weight = nn.Parameter(torch.empty(2 * embed_dim, embed_dim))
        nn.init.xavier_uniform_(self.in_proj_weight)
        if qkv_bias:
            self.in_proj_bias = nn.Parameter(torch.zeros(2 * embed_dim))

    def project(self, x: Tensor, turns: Tensor | None = None) -> Tensor:
        """Return queries, keys equal to them, and values [..., 3, h, e] of rows ``x`` [..., d].

        ``turns``: complex [..., e / 2], rotates the queries and keys of each row.
        """
        rows = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias)
        rows = torch.unflatten(rows, -1, self._split)
        if turns is not None:
            turn_pairs(rows.narrow(-3, 0, 1), turns[..., None, None, :])
        return torch.cat([rows.narrow(-3, 0, 1), rows], -3)

    def _weigh(self, q: Tensor, k: Tensor, hidden: Tensor | None) -> Tensor:
        # |q|^2 + |k|^2 - 2 q k would cancel where rows are close, which is where weights are large.
        wide = torch.promote_types(q.dtype, torch.float32)  # cdist does not support 16-bit types
        mode = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(q.to(wide), k.mT.to(wide).contiguous(), compute_mode=mode)
        weights = distance.square().mul(-0.5 / self.head_dim).exp()
        if hidden is not None:
            weights = weights.masked_fill(hidden, 0.0)
        return weights.to(q.dtype)

    def _step_alone(self, x: Tensor, state: AttentionState, turns: Tensor | None) -> Tensor:
        return self._step_together(x, state, turns)

    def count_macs(self, rows: int | None = None, changed: bool = False) -> int:
        """Return the multiply-accumulates of one step of a stream over ``rows`` rows, or n."""
        return super().count_macs(rows, changed) - self.embed_dim**2


class ScaledBlock(EncoderBlock[A]):
    """A block whose residual branches are divided by the depth L, in place of layer norms.

    y = x + MHA(x) / L, z = y + W2 act(W1 y) / L.
    """

    def __init__(
        self,
        self_attn: A,
        feedforward: int,
        depth: int,
        activation: str = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(self_attn, feedforward, False, activation, dropout)
        del self.norm1, self.norm2
        self.scale = 1 / depth

    def leave(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return the output rows [..., d] from input rows ``x`` and their attention output.

        ``attended`` is overwritten.
        """
        y = (self._drop(attended) if self.training else attended).mul_(self.scale).add_(x)
        return self._feedforward(y).mul_(self.scale).add_(y)
