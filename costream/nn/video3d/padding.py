"""Padding in time of clips [B, C, T, H, W], and the timing of kernels in a stream.

``form``: "same", as in the ordinary network, has zeros on both sides. The others are what a stream
computes from the frames so far: "zeros" before frame 0 only, or copies of frame 0 ("replicate");
then there is no padding after the newest frame.
"""

from __future__ import annotations

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


def convolution(
    in_width: int, out_width: int, kernel: tuple[int, int, int], stride: int = 1, groups: int = 1
) -> nn.Conv3d:
    """Return a convolution without bias, padded in space, not in time; ``stride`` is in pixels."""
    sides = (0, kernel[1] // 2, kernel[2] // 2)
    strides = (1, stride, stride)
    return nn.Conv3d(in_width, out_width, kernel, strides, sides, groups=groups, bias=False)
