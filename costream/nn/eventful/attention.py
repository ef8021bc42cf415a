"""Dense attention among all tokens of a frame, the reference for the incremental updates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn.eventful.gates import ChosenTokens
from costream.nn.operations import Operations
from costream.nn.relative import RelativePosition
from costream.nn.state import State, zeros


@dataclass(frozen=True)
class TokenGrid:
    """Token grid of a frame, for attention among all its tokens.

    With ``pool`` p a key is the mean over a square of p x p tokens, and so is its value.
    ``relative``: scores have relative positions added, along the height and along the width.
    """

    height: int
    width: int
    heads: int
    pool: int = 1
    products: torch.dtype = torch.float32  # of the operands of queries times keys etc.
    relative: bool = True

    @property
    def tokens(self) -> int:
        """Number of tokens N."""
        return self.height * self.width

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.tokens // self.pool**2

    @property
    def positions(self) -> tuple[int, int]:
        """Numbers of relative positions along the height and the width; 0 without them."""
        if not self.relative:
            return 0, 0
        return self.height // self.pool, self.width // self.pool

    @property
    def added(self) -> int:
        """Additions per score."""
        return 2 if self.relative else 0

    def columns(self, tokens: Tensor) -> Tensor:
        """Return the keys, in ascending order, that these tokens are part of."""
        if self.pool == 1:
            return tokens
        rows, columns = tokens // self.width // self.pool, tokens % self.width // self.pool
        keys: Tensor = torch.unique(rows * (self.width // self.pool) + columns)
        return keys

    def keys_values(self, qkv: Tensor, columns: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return keys and values, [keys, D] each, of rows ``qkv`` [N, 3 D], or of some columns."""
        kv = qkv[:, qkv.shape[1] // 3 :]
        p, across = self.pool, self.width // self.pool
        if columns is None:
            if p > 1:
                squares = kv.reshape(self.height // p, p, across, p, -1)
                kv = squares.mean((1, 3)).flatten(0, 1)
        elif p == 1:
            kv = kv.index_select(0, columns)
        else:
            corners = columns // across * p * self.width + columns % across * p
            square = torch.arange(p)[:, None] * self.width + torch.arange(p)
            kv = kv[corners[:, None] + square.flatten().to(columns.device)].mean(1)
        keys, values = kv.chunk(2, 1)
        return keys, values


@dataclass
class EmptyState(State):
    """Empty state that holds only the number of streams."""

    streams: Tensor  # int64 [B]


class DenseAttention:
    """Attention recomputed for every frame: the paper's token-wise variant, and STGT.

    The update classes have the same two methods.
    """

    def init_state(self, batch_size: int, frame: TokenGrid, like: Tensor) -> EmptyState:
        """Return an empty state."""
        return EmptyState(zeros(batch_size))

    def step(
        self,
        qkv: Tensor,
        new: Tensor,
        chosen: ChosenTokens,
        state: EmptyState,
        frame: TokenGrid,
        position: RelativePosition | None,
        operations: Operations,
    ) -> Tensor:
        """Write the ``new`` rows [M, 3 D] into ``qkv`` [B, N, 3 D], return attention [B, N, D]."""
        chosen.put(new, qkv)
        count_dense_attention(frame, qkv.shape[2] // 3, len(qkv), operations)
        return attend_frame(qkv, frame, position)


def attend_frame(qkv: Tensor, frame: TokenGrid, position: RelativePosition | None) -> Tensor:
    """Return the attention [B, N, D] of all tokens for rows ``qkv`` [B, N, 3 D]; differentiable.

    ``position`` is None if the frame has no relative positions.
    """
    heads = (frame.heads, -1)
    q = torch.unflatten(qkv[..., : qkv.shape[2] // 3], 2, heads)
    pairs = [frame.keys_values(rows) for rows in qkv.unbind(0)]
    k, v = (torch.unflatten(torch.stack(c), 2, heads) for c in zip(*pairs, strict=True))
    if position is None:
        q, k, v = (t.to(frame.products).transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v)
        return out.transpose(1, 2).flatten(2).to(qkv.dtype)
    along = position(torch.unflatten(q, 1, (frame.height, frame.width)))
    q, k, v = (t.to(frame.products) for t in (q, k, v))
    each = []
    for head in range(frame.heads):  # one head at a time saves memory
        y, x = (part[:, head].to(frame.products) for part in along)
        bias = (y[..., None] + x[..., None, :]).flatten(2)
        one = q[:, :, head], k[:, :, head], v[:, :, head]
        each.append(F.scaled_dot_product_attention(*one, attn_mask=bias))
    return torch.cat(each, 2).to(qkv.dtype)


def count_dense_attention(
    frame: TokenGrid, width: int, streams: int, operations: Operations
) -> None:
    """Count the operations of attention among all tokens, D = ``width``."""
    rows = streams * frame.tokens
    operations.product += 2 * rows * frame.keys * width
    operations.position += rows * width * sum(frame.positions)
    operations.add += frame.added * frame.heads * rows * frame.keys
