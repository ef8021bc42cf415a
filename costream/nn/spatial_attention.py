"""Attention among the joints of a frame, the spatial unit of S-TR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.graph import fold_convolution, normalise, scale_and_shift

HEADS = 8


class SpatialAttention(nn.Module):
    """S-TR's spatial unit: ``relu(BN(attention over joints + x))``, each frame by itself.

    The batch norm has separate parameters for each joint; queries and keys are O / 4 wide, values
    O wide, in 8 heads of consecutive features; the residual, without norm, exists if widths agree.
    Plizzari et al., "Spatial temporal transformer network" (ICPR 2021).

    Args:
        in_width, out_width: C, and O, a multiple of 32. ``joints``: V.
    """

    def __init__(self, in_width: int, out_width: int, joints: int) -> None:
        super().__init__()
        if out_width % (4 * HEADS):
            raise ValueError(f"width {out_width} of attention is not a multiple of {4 * HEADS}")
        self.in_width, self.out_width, self.joints = in_width, out_width, joints
        self.key_width = out_width // 4
        self.data_bn = nn.BatchNorm1d(in_width * joints)
        self.attention_conv = nn.ModuleDict(
            {
                "qkv_conv": nn.Conv2d(in_width, out_width + 2 * self.key_width, 1),
                "attn_out": nn.Conv2d(out_width, out_width, 1),
            }
        )
        self.bn = nn.BatchNorm2d(out_width)

    @property
    def _convolutions(self) -> tuple[nn.Conv2d, nn.Conv2d]:
        first, last = (self.attention_conv[name] for name in ("qkv_conv", "attn_out"))
        return cast(nn.Conv2d, first), cast(nn.Conv2d, last)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, V, O] for a clip ``x`` [N, T, V, C]."""
        first, last = self._convolutions
        rows = self.data_bn(x.transpose(2, 3).flatten(2).flatten(0, 1))  # features (c, v)
        frames = rows.view(-1, self.in_width, self.joints).transpose(1, 2)
        qkv = F.linear(frames, first.weight.flatten(1), first.bias)
        scale = (self.key_width // HEADS) ** -0.5
        attended = _attend(qkv, self.key_width, scale).view(*x.shape[:3], self.out_width)
        y = F.linear(attended, last.weight.flatten(1), last.bias)
        return F.relu(normalise(self.bn, y + x if self.in_width == self.out_width else y))

    def fold(self) -> FoldedAttention:
        """Return the unit with everything that is the same for all frames precomputed."""
        first, last = self._convolutions
        scale, shift = scale_and_shift(self.data_bn)
        own = (scale.view(-1, self.joints).T, shift.view(-1, self.joints).T)  # [V, C]
        ones = torch.ones_like(cast(Tensor, first.bias))
        ones[: self.key_width] = (self.key_width // HEADS) ** -0.5
        qkv, qkv_bias = fold_convolution(first, ones)
        scale, shift = scale_and_shift(self.bn)
        out, out_bias = fold_convolution(last, scale, shift)
        kept = scale if self.in_width == self.out_width else None
        return FoldedAttention(
            own[0].contiguous(),
            own[1].contiguous(),
            qkv,
            qkv_bias,
            out,
            out_bias,
            kept,
            self.key_width,
        )

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one frame of one person."""
        v, c, o, e = self.joints, self.in_width, self.out_width, self.key_width
        return v * c * (o + 2 * e) + v * v * (e + o) + v * o * o


@dataclass(frozen=True)
class FoldedAttention:
    """A ``SpatialAttention`` in evaluation, for frames [N, V, C]; no gradients."""

    scale: Tensor  # [V, C]
    shift: Tensor  # [V, C]
    qkv: Tensor  # [C, 1.5 O], queries scaled
    qkv_bias: Tensor
    out: Tensor  # [O, O]
    out_bias: Tensor
    kept: Tensor | None  # [O], factor of the input that is added
    key_width: int

    def matrices(self) -> list[Tensor]:
        """Return the matrices [C, O] by which the rows of all joints are multiplied."""
        return [self.qkv, self.out]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output [N, V, O]."""
        rows = torch.addcmul(self.shift, x, self.scale).flatten(0, 1)
        qkv = torch.addmm(self.qkv_bias, rows, self.qkv)
        attended = _attend(torch.unflatten(qkv, 0, x.shape[:2]), self.key_width, None)
        y = torch.addmm(self.out_bias, attended.flatten(0, 1), self.out)
        y = torch.unflatten(y, 0, x.shape[:2])
        return (y if self.kept is None else y.addcmul_(x, self.kept)).relu_()


def _attend(qkv: Tensor, key_width: int, scale: float | None) -> Tensor:
    """Return the attention [N, V, O] for queries, keys and values [N, V, 1.5 O]."""
    q, k, v = torch.split(qkv, [key_width, key_width, qkv.shape[-1] - 2 * key_width], -1)
    heads = [torch.unflatten(t, -1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v)]
    q = heads[0] if scale is None else heads[0] * scale
    weights = torch.matmul(q, heads[1].transpose(2, 3)).softmax(-1)
    return torch.matmul(weights, heads[2]).transpose(1, 2).flatten(2)
