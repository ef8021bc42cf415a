"""A convolution over time and pictures, frame by frame.

A step multiplies the last K frames with their weights once (Hedegaard, Iosifidis, "Continual 3D
Convolutional Neural Networks for Real-time Processing of Videos", ECCV 2022). There the products
of a frame with all K taps are kept; here the frames are (``costream.nn.frame_ring``), so that
what is kept is no wider than the input and serves a residual too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.graph import scale_and_shift

# From so many pixels on, a depthwise tap a time is faster than all at once: with AVX-512 0.25 ms
# against 0.52 for 40 x 40 x 54, and 0.16 against 0.15 for 10 x 10 x 216. With AVX2 it never is:
# 0.49 against 0.34, and 0.31 against 0.15.
_TAP_BY_TAP = {"AVX512": 256}


class VolumeStep:
    """A ``torch.nn.Conv3d`` and the batch norm behind it, in evaluation; no gradients.

    Zeros surround pictures as ``conv.padding`` says; what is before a clip lies in the ring.
    """

    def __init__(self, conv: nn.Conv3d, norm: nn.BatchNorm3d | None = None) -> None:
        weight = conv.weight.detach()
        bias = None if conv.bias is None else conv.bias.detach()
        if norm is not None:
            scale, shift = scale_and_shift(norm)
            weight = weight * scale[:, None, None, None, None]
            bias = shift if bias is None else bias * scale + shift
        self.bias, self.groups = bias, conv.groups
        self.pixel_stride, self.sides = conv.stride[1], conv.padding[1:]
        self.kernel = cast("tuple[int, int, int]", conv.kernel_size)
        self.out_width = conv.out_channels
        self.pointwise = self.kernel[1:] == (1, 1)
        taps = weight.unbind(2)  # oldest first
        if not self.pointwise:
            taps = tuple(tap.contiguous() for tap in taps)
        elif self.groups > 1:
            taps = tuple(tap.flatten() for tap in taps)
        else:
            taps = tuple(tap.flatten(1).T.contiguous() for tap in taps)
        self.taps = taps
        # For each slot of the newest frame the weights in the order of the slots.
        self.turned = [weight.roll(k + 1, 2) for k in range(self.kernel[0])]
        self._most = _TAP_BY_TAP.get(torch.backends.cpu.get_cpu_capability(), 0)

    def output_size(self, size: Sequence[int]) -> tuple[int, int, int]:
        """Give height, width and channels of outputs for inputs of ``size``, (H, W, I)."""
        step = self.pixel_stride
        return -(-size[0] // step), -(-size[1] // step), self.out_width

    def __call__(self, frames: Tensor, time: int = 0) -> Tensor:
        """Give the output [B, H', W', O] of a ring [B, K, H, W, I] whose newest frame is ``time``.

        Frame t lies in slot t mod K.
        """
        size = self.kernel[0]
        if not self.pointwise and size > 1 and self.groups > 1 and not self._by_taps(frames):
            return self._convolve_all(frames, time % size)
        given = [frames.select(1, (time + 1 + k) % size) for k in range(size)]
        if not self.pointwise:
            return self._convolve(given)
        if self.pixel_stride > 1:
            given = [f[:, :: self.pixel_stride, :: self.pixel_stride] for f in given]
        return self._weigh(given) if self.groups > 1 else self._multiply(given)

    def _by_taps(self, frames: Tensor) -> bool:
        return 0 < self._most <= frames.shape[2] * frames.shape[3]

    def _convolve_all(self, frames: Tensor, slot: int) -> Tensor:
        stride, sides = (1, self.pixel_stride, self.pixel_stride), (0, *self.sides)
        volume, weight = frames.permute(0, 4, 1, 2, 3), self.turned[slot]
        out = F.conv3d(volume, weight, self.bias, stride, sides, 1, self.groups)
        return out.squeeze(2).permute(0, 2, 3, 1)

    def _convolve(self, frames: Sequence[Tensor]) -> Tensor:
        total, bias = None, self.bias
        for frame, tap in zip(frames, self.taps, strict=True):
            maps = frame.permute(0, 3, 1, 2)
            out = F.conv2d(maps, tap, bias, self.pixel_stride, self.sides, 1, self.groups)
            total, bias = (out if total is None else total.add_(out)), None
        return cast(Tensor, total).permute(0, 2, 3, 1)

    def _weigh(self, frames: Sequence[Tensor]) -> Tensor:
        """Depthwise, over time alone."""
        out = frames[-1] * self.taps[-1]
        for frame, tap in zip(frames[:-1], self.taps[:-1], strict=True):
            out.addcmul_(frame, tap)
        return out if self.bias is None else out.add_(self.bias)

    def _multiply(self, frames: Sequence[Tensor]) -> Tensor:
        rows = [frame.reshape(-1, frame.shape[3]) for frame in frames]
        if self.bias is None:
            out = torch.mm(rows[-1], self.taps[-1])
        else:
            out = torch.addmm(self.bias, rows[-1], self.taps[-1])
        for row, tap in zip(rows[:-1], self.taps[:-1], strict=True):
            out.addmm_(row, tap)
        return out.view(*frames[-1].shape[:3], -1)
