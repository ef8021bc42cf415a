"""Residual bottlenecks of 3D networks over whole clips, with gradients.

Clips are [B, C, T, H, W]. ``form`` is the padding in time: "same", as in the ordinary network,
has zeros on both sides. The others are what a stream computes from the frames so far: "zeros"
before frame 0 only, or copies of frame 0 ("replicate"); then there is no padding after the newest
frame, and squeeze-excitation acts on each frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.timing import Timing


def pad_time(x: Tensor, form: str, kernel: int) -> Tensor:
    """Return a clip [B, C, T, H, W] padded in time for an odd kernel."""
    if form == "replicate":
        return torch.cat([x[:, :, :1].expand(-1, -1, kernel - 1, -1, -1), x], 2)
    half = kernel // 2
    return F.pad(x, (0, 0, 0, 0, half, half if form == "same" else 0))


def centre_frames(x: Tensor, form: str, kernel: int) -> Tensor:
    """Return the frames of a clip on which the outputs of a kernel are centred."""
    half = kernel // 2
    if not half or form == "same":
        return x
    if form == "zeros":
        return x[:, :, :-half]
    return torch.cat([x[:, :, :1].expand(-1, -1, half, -1, -1), x[:, :, :-half]], 2)


def odd_kernel_timing(kernel: int, start: str) -> Timing:
    """Return the timing of an odd kernel in a stream."""
    return Timing(kernel, kernel // 2 if start == "zeros" else kernel - 1)


class SqueezeExcitation(nn.Module):
    """Channels scaled by a function of their means over a clip or a frame (Hu et al., 2018)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor, form: str) -> Tensor:
        """Return the scaled clips, [B, C, T, H, W] as ``x``."""
        whole = form == "same"
        means = x.mean((2, 3, 4)) if whole else x.mean((3, 4)).transpose(1, 2)
        gate = self.gate(means)
        return x * (
            gate[:, :, None, None, None] if whole else gate.transpose(1, 2)[..., None, None]
        )

    def gate(self, means: Tensor) -> Tensor:
        """Return the factors of the channels, [..., C], for their means [..., C]."""
        return torch.sigmoid(cast(Tensor, self.fc2(torch.relu(self.fc1(means)))))


class Bottleneck3d(nn.Module):
    """``relu(c(b(a(x))) + shortcut(x))``, each convolution with a batch norm.

    Args:
        in_width, inner_width, out_width: channels before, inside and after.
        kernel: over time, odd. It belongs to a, a pointwise convolution (Slow, I3D), or to b.
        depthwise: b is depthwise, has the kernel over time, and is followed by squeeze-excitation
            of inner width ``squeeze``, if that is not 0, and by swish (X3D).
        stride: of b, in pixels.
    """

    def __init__(
        self,
        in_width: int,
        inner_width: int,
        out_width: int,
        *,
        kernel: int = 3,
        stride: int = 1,
        depthwise: bool = False,
        squeeze: int = 0,
    ) -> None:
        super().__init__()
        self.kernel, self.depthwise, self.stride = kernel, depthwise, stride
        first, second = (1, kernel) if depthwise else (kernel, 1)
        groups = inner_width if depthwise else 1
        self.a = convolution(in_width, inner_width, (first, 1, 1))
        self.a_bn = nn.BatchNorm3d(inner_width)
        self.b = convolution(inner_width, inner_width, (second, 3, 3), stride, groups)
        self.b_bn = nn.BatchNorm3d(inner_width)
        self.squeeze = SqueezeExcitation(inner_width, squeeze) if squeeze else None
        self.c = convolution(inner_width, out_width, (1, 1, 1))
        self.c_bn = nn.BatchNorm3d(out_width)
        self.shortcut: nn.Conv3d | None = None
        if stride > 1 or in_width != out_width:
            self.shortcut = convolution(in_width, out_width, (1, 1, 1), stride)
            self.shortcut_bn = nn.BatchNorm3d(out_width)

    @property
    def activation(self) -> Callable[..., Tensor]:
        """Activation after b."""
        return F.silu if self.depthwise else F.relu

    def forward(self, x: Tensor, form: str) -> Tensor:
        """Return [B, O, T', H', W'] for clips ``x`` [B, C, T, H, W]."""
        early, late = (1, self.kernel) if self.depthwise else (self.kernel, 1)
        y = F.relu(self.a_bn(self.a(pad_time(x, form, early))))
        y = self.b_bn(self.b(pad_time(y, form, late)))
        y = self.activation(y if self.squeeze is None else self.squeeze(y, form))
        beside = centre_frames(x, form, self.kernel)
        if self.shortcut is not None:
            beside = self.shortcut_bn(self.shortcut(beside))
        return F.relu(self.c_bn(self.c(y)) + beside)


def convolution(
    in_width: int, out_width: int, kernel: tuple[int, int, int], stride: int = 1, groups: int = 1
) -> nn.Conv3d:
    """Return a convolution without bias, padded in space, not in time; ``stride`` is in pixels."""
    sides = (0, kernel[1] // 2, kernel[2] // 2)
    strides = (1, stride, stride)
    return nn.Conv3d(in_width, out_width, kernel, strides, sides, groups=groups, bias=False)
