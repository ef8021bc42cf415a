"""Weights in eight bits: int8 with a scale for each row, symmetric; activations stay float32.

Row o of a weight is ``scale[o] * values[o]``, ``scale[o] = max |row| / 127``, so a number is off by
at most half a scale. A step of one row of a large linear layer takes as long as its weights take to
be read; four times fewer bytes are read here, and turned into float32 in registers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn import fast

LARGE = 1 << 19  # numbers of a weight from which on it stays int8 in memory: it leaves the caches
_ROWS = 4  # at once, up to which the compiled loop was measured to be faster than float32 weights


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 values of the shape of a weight [n, ...], and the scales [n] of its rows."""
    rows = weight.detach().float().flatten(1)
    scale = rows.abs().amax(1) / 127
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    values = (rows / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
    return values.view(weight.shape), scale


def dequantise(values: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the weight of int8 values and the scales of their rows."""
    return values.to(dtype) * scale.to(dtype).view(-1, *[1] * (values.dim() - 1))


class Int8Linear(nn.Module):
    """A linear layer with int8 weights, for inference.

    Args:
        weight: int8 [n, m]. ``scale``: [n]. ``bias``: [n] or None.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("weight", weight.contiguous())
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., n] for ``x`` [..., m]. A few float32 rows on a CPU are a compiled loop."""
        rows = x.numel() // self.in_features
        if not fast.enabled() or rows > _ROWS or not fast.compiles(x):
            return F.linear(x, dequantise(self.weight, self.scale, x.dtype), self.bias)
        from costream.nn.int8_kernel import int8_product

        out = x.new_empty(*x.shape[:-1], self.out_features)
        flat = x.detach().reshape(rows, self.in_features).contiguous()
        int8_product(flat, self.weight, self.scale, out.view(rows, -1))
        return out if self.bias is None else out.add_(self.bias)
