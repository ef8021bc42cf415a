"""Low-rank adapters of layers, with and without masks of rows and columns.

A layer with weights W_s of m inputs and n outputs learns a low-rank difference. For ``LoRA`` (Hu
et al., "LoRA: Low-rank adaptation of large language models", ICLR 2022), and for ``SPLoRA``
(Hedegaard et al., "Structured Pruning Adapters", Eqs. 1-4) with 0/1 masks of rows and columns:

    W_t = W_s + W_down W_up
    W_t = W_s * (m_row m_col^T) + (W_down * m_row 1^T) (W_up * 1 m_col^T)

An adapter is a parametrization of ``torch.nn.utils.parametrize``: the layer is still the layer, and
its ``weight`` is W_t.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Mask(nn.Module):
    """Masks of the rows and columns of a weight, W_s * (m_row m_col^T): fine-pruning.

    Args:
        weight: W_s [n, m / groups, ...]; further dimensions are the kernel's.
        groups: of a convolution. A row of a grouped convolution sees the columns of its group.
    """

    rows: Tensor  # m_row, bool [n]
    columns: Tensor  # m_col, bool [m]

    def __init__(self, weight: Tensor, groups: int = 1) -> None:
        super().__init__()
        self.groups = groups
        columns = weight.shape[1] * groups
        self.register_buffer("rows", weight.new_ones(len(weight), dtype=torch.bool))
        self.register_buffer("columns", weight.new_ones(columns, dtype=torch.bool))

    def forward(self, weight: Tensor) -> Tensor:
        """Return W_t for W_s, of its shape."""
        mask = self.mask()
        return weight * mask.view(*mask.shape, *[1] * (weight.dim() - 2))

    def mask(self) -> Tensor:
        """Return m_row m_col^T, [n, m / groups]."""
        rows, columns = self.rows.view(self.groups, -1, 1), self.columns.view(self.groups, 1, -1)
        return (rows & columns).flatten(0, 1)

    def count_learnt(self, weight: Tensor) -> int:
        """Return the learnt numbers that are left of W_s: those in rows and columns of the mask."""
        return int(self.mask().sum()) * math.prod(weight.shape[2:])


class LoRA(nn.Module):
    """W_s + W_down W_up; it learns rank (n + m) numbers.

    W_down starts at zero and W_up uniformly in +-1 / sqrt(m), so the first W_t is W_s bit for bit.
    (The authors of SPLoRA start both within +-1e-4.) In a kernel of several taps the difference
    acts on the tap in the middle, number k // 2 of k in each dimension; in a grouped convolution it
    is the part of W_down W_up that is within groups.

    Args:
        weight: W_s [n, m / groups, ...]. ``groups``: of a convolution. ``rank``: at least 1.
    """

    def __init__(self, weight: Tensor, groups: int, rank: int) -> None:
        super().__init__()
        if rank < 1:
            raise ValueError(f"rank {rank} of an adapter: must be at least 1")
        self.groups = groups
        self.down = nn.Parameter(weight.new_zeros(len(weight), rank))
        self.up = nn.Parameter(weight.new_empty(rank, weight.shape[1] * groups))
        bound = 1 / math.sqrt(self.up.shape[1])
        nn.init.uniform_(self.up, -bound, bound)

    @property
    def rank(self) -> int:
        """Inner size of W_down W_up."""
        return self.up.shape[0]

    def forward(self, weight: Tensor) -> Tensor:
        """Return W_t for W_s, of its shape."""
        return weight + self._difference(self.down, self.up, weight)

    def count_learnt(self, weight: Tensor) -> int:
        """Return the number of learnt numbers, rank (n + m)."""
        return self.down.numel() + self.up.numel()

    def _difference(self, down: Tensor, up: Tensor, weight: Tensor) -> Tensor:
        """Return the product on the middle tap, of the shape of ``weight``."""
        rank, groups = self.rank, self.groups
        left, right = down.view(groups, -1, rank), up.view(rank, groups, -1).transpose(0, 1)
        product = torch.bmm(left, right).flatten(0, 1)
        taps = weight.shape[2:]
        sides = [side for k in reversed(taps) for side in (k // 2, k - 1 - k // 2)]
        return F.pad(product.view(*product.shape, *[1] * len(taps)), sides) if taps else product


class SPLoRA(LoRA):
    """W_s * (m_row m_col^T) + (W_down * m_row 1^T) (W_up * 1 m_col^T); the masks are ones at first.

    It learns rank (|m_row| + |m_col|) numbers.

    Args:
        weight: W_s [n, m / groups, ...]. ``groups``: of a convolution. ``rank``: at least 1.
    """

    def __init__(self, weight: Tensor, groups: int, rank: int) -> None:
        super().__init__(weight, groups, rank)
        self.kept = Mask(weight, groups)

    def forward(self, weight: Tensor) -> Tensor:
        """Return W_t for W_s, of its shape."""
        rows, columns = self.kept.rows[:, None], self.kept.columns
        difference = self._difference(self.down * rows, self.up * columns, weight)
        return self.kept(weight) + difference  # type: ignore[no-any-return]

    def count_learnt(self, weight: Tensor) -> int:
        """Return the number of learnt numbers, rank (|m_row| + |m_col|)."""
        return self.rank * int(self.kept.rows.sum() + self.kept.columns.sum())
