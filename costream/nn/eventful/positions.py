"""Relative positions of tokens along two axes, as ViTDet adds them to attention."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RULES = ("bicubic", "linear")


class _Matrices(NamedTuple):
    """Matrices made from two tables, which are kept alive so that ``key`` stays valid."""

    key: tuple[int, ...]
    y_table: Tensor
    x_table: Tensor
    y: Tensor
    x: Tensor


class RelativePosition(nn.Module):
    """Adds q . R_y[y_q, y_k] + q . R_x[x_q, x_k] to the score of query q and key k.

    R[i, j] is row i - j + size - 1 of a learned table. Li et al., "Exploring plain vision
    transformer backbones for object detection" (ECCV 2022), after Li et al., "MViTv2".

    Args:
        size: height and width, in tokens, that the tables were learned for.
        head_dim: e.
        rule: interpolation to other sizes: "bicubic" resizes the matrix R over queries and keys,
            as the Eventful Transformers do; "linear" the table, as detectron2 does.
        pool: keys are means over squares of ``pool`` x ``pool`` tokens, and so are their positions.

    Raises ValueError for an unknown rule.
    """

    def __init__(
        self, size: tuple[int, int], head_dim: int, rule: str = "bicubic", pool: int = 1
    ) -> None:
        super().__init__()
        if rule not in RULES:
            raise ValueError(f"interpolation rule {rule!r} is not one of {RULES}")
        self.size, self.rule, self.pool = size, rule, pool
        self.y_embedding = nn.Parameter(torch.zeros(2 * size[0] - 1, head_dim))
        self.x_embedding = nn.Parameter(torch.zeros(2 * size[1] - 1, head_dim))
        self._cached: _Matrices | None = None

    def matrices(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Return R_y [h, h / pool, e] and R_x [w, w / pool, e] for frames of this size.

        Raises ValueError if the size is not a multiple of ``pool``.
        """
        if height % self.pool or width % self.pool:
            raise ValueError(f"{height} x {width} tokens cannot be pooled by {self.pool}")
        tables = self.y_embedding, self.x_embedding
        # Tensors made in inference mode do not count their changes, so nothing is cached for them.
        hold = not torch.is_grad_enabled() and not any(t.is_inference() for t in tables)
        key: tuple[int, ...] = (height, width)
        if hold:
            key += tuple(n for t in tables for n in (t.data_ptr(), t._version))
            if self._cached is not None and self._cached.key == key:
                return self._cached.y, self._cached.x
        y = self._matrix(tables[0], self.size[0], height)
        x = self._matrix(tables[1], self.size[1], width)
        if hold:
            self._cached = _Matrices(key, tables[0].detach(), tables[1].detach(), y, x)
        return y, x

    def forward(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is added to the scores along each axis for queries [B, h, w, H, e].

        The shapes are [B, H, h w, h / pool] and [B, H, h w, w / pool].
        """
        y, x = self.matrices(*q.shape[1:3])
        along_y = torch.einsum("byxhe,yke->bhyxk", q, y).flatten(2, 3)
        return along_y, torch.einsum("byxhe,xke->bhyxk", q, x).flatten(2, 3)

    def of_tokens(
        self, q: Tensor, tokens: Tensor, height: int, width: int
    ) -> tuple[Tensor, Tensor]:
        """Return the same for the queries [M, H, e] of some tokens, as two tensors [H, M, ...]."""
        y, x = self.matrices(height, width)
        rows, columns = tokens // width, tokens % width
        along_y = torch.bmm(q, y[rows].transpose(1, 2)).transpose(0, 1)
        return along_y, torch.bmm(q, x[columns].transpose(1, 2)).transpose(0, 1)

    def _matrix(self, table: Tensor, size: int, tokens: int) -> Tensor:
        if self.rule == "linear" and tokens != size:
            table = F.interpolate(table.t()[None], 2 * tokens - 1, mode="linear")[0].t()
            size = tokens
        places = torch.arange(size, device=table.device)
        matrix = table[places[:, None] - places + size - 1]
        if tokens != size:
            images = matrix.permute(2, 0, 1)[None]
            matrix = F.interpolate(images, (tokens, tokens), mode="bicubic")[0].permute(1, 2, 0)
        return torch.unflatten(matrix, 1, (-1, self.pool)).mean(2)


# Attention with these positions by fused kernels, for GPUs.
#
# The score of a query and a key is q . k / sqrt(e) + y[row of the key] + x[column of the key]. As a
# bias, y and x are a matrix of all queries and keys for each head, 400 MB for 4,096 tokens, and a
# fused kernel with a bias mostly reads it. Here y and x are further numbers of the query, and the
# key has a one in its row and another one in its column: the sum is part of the product.


_MULTIPLE = 8  # of the numbers of a query, for kernels that read 16 bytes at once


def attend_with_positions(q: Tensor, k: Tensor, v: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Return the attention [B, H, n, e] of queries [B, H, n, e] to keys and values [B, H, m, e].

    ``y`` [B, H, n, down] and ``x`` [B, H, n, across] are added to the scores of the keys of a row
    and of a column; m = down * across.
    """
    down, across, e = y.shape[3], x.shape[3], q.shape[3]
    ones = _ones(down, across, -(e + down + across) % _MULTIPLE, q.device, q.dtype)
    extra = ones.expand(*k.shape[:2], -1, -1)
    padding = q.new_zeros(1, 1, 1, 1).expand(*q.shape[:3], ones.shape[1] - down - across)
    longer = torch.cat([q * e**-0.5, y.to(q.dtype), x.to(q.dtype), padding], 3)
    return F.scaled_dot_product_attention(longer, torch.cat([k, extra], 3), v, scale=1.0)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _ones(down: int, across: int, padding: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return [down across, down + across + padding]: a one each in the row and in the column."""
    rows, columns = torch.eye(down), torch.eye(across)
    ones = torch.cat([rows.repeat_interleave(across, 0), columns.repeat(down, 1)], 1)
    return F.pad(ones, (0, padding)).to(device, dtype)
