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

from costream.nn.frame_ring import FramesState
from costream.nn.graph import scale_and_shift


class VolumeStep:
    """A ``torch.nn.Conv3d`` and the batch norm behind it, in evaluation; no gradients.

    Zeros surround pictures as ``conv.padding`` says; what is before a clip lies in the ring.
    """

    def __init__(self, conv: nn.Conv3d, norm: nn.BatchNorm3d | None = None) -> None:
        weight = conv.weight.detach()
        bias = weight.new_zeros(len(weight)) if conv.bias is None else conv.bias.detach()
        if norm is not None:
            scale, shift = scale_and_shift(norm)
            weight, bias = weight * scale[:, None, None, None, None], bias * scale + shift
        self.bias, self.groups, self.out_width = bias, conv.groups, conv.out_channels
        self.pixel_stride, self.sides = conv.stride[1], cast("tuple[int, ...]", conv.padding)[1:]
        self.kernel = cast("tuple[int, int, int]", conv.kernel_size)
        self.pointwise = self.kernel[1:] == (1, 1)
        taps = weight.unbind(2)  # oldest first
        # For each slot of the newest frame the weights in the order of the slots.
        self.turned: list[Tensor] = []
        if self.pointwise and self.groups > 1:
            taps = tuple(tap.flatten() for tap in taps)
            self._wide: dict[int, list[Tensor]] = {}  # see ``_widen``
        elif self.pointwise:
            taps = tuple(tap.flatten(1).T.contiguous() for tap in taps)
        else:
            single = taps if len(taps) == 1 else ()  # for ``convolve``
            taps = tuple(tap.contiguous(memory_format=torch.channels_last) for tap in single)
            self.turned = [weight.roll(k + 1, 2) for k in range(self.kernel[0])]
        self.taps = taps

    def output_size(self, size: Sequence[int]) -> tuple[int, int, int]:
        """Give height, width and channels of outputs for inputs of ``size``, (H, W, I)."""
        step = self.pixel_stride
        return -(-size[0] // step), -(-size[1] // step), self.out_width

    def multiply(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Give [B, H', W', O] of a frame [B, H, W, I]; of a pointwise convolution with K = 1.

        ``out``: where it shall lie, such as a slot of a ring.
        """
        if self.pixel_stride > 1:
            x = x[:, :: self.pixel_stride, :: self.pixel_stride]
        if out is None:
            out = x.new_empty(*x.shape[:3], self.out_width)
        # A slot has its rows together within a stream only.
        rows = out.view(len(x), -1, self.out_width)
        torch.baddbmm(self.bias, x.flatten(1, 2), self._shared(len(x)), out=rows)
        return out

    def add(self, x: Tensor, out: Tensor) -> None:
        """Add what ``multiply`` would give, without the bias, to frames [B, H, W, O]."""
        rows = out.view(len(x), -1, self.out_width)
        rows.baddbmm_(x.flatten(1, 2), self._shared(len(x)))

    def _shared(self, streams: int) -> Tensor:
        return self.taps[0].expand(streams, -1, -1)

    def convolve(self, x: Tensor) -> Tensor:
        """Give [B, O, H', W'] of a frame [B, I, H, W]; K = 1."""
        stride, sides = self.pixel_stride, self.sides
        return F.conv2d(x, self.taps[0], self.bias, stride, sides, 1, self.groups)

    def over_time(self, state: FramesState, time: int) -> Tensor:
        """Give [B, 1, H', W', O] of the K frames of a ring up to frame ``time``."""
        if self.pointwise and self.groups > 1:
            return self.weigh(state, time).unsqueeze(1)
        if self.pointwise:
            return self._mix(self._frames(state, time))
        weight, step = self.turned[time % self.kernel[0]], self.pixel_stride
        strides, sides = (1, step, step), (0, *self.sides)
        out = F.conv3d(state.volume, weight, self.bias, strides, sides, 1, self.groups)
        return out.permute(0, 2, 3, 4, 1)

    def weigh(self, state: FramesState, time: int, out: Tensor | None = None) -> Tensor:
        """Give what ``over_time`` does, as [B, H, W, O], of a depthwise one over time alone.

        ``out``: where it shall lie.
        """
        frames = self._frames(state, time)
        if out is None:
            out = torch.empty_like(frames[0])
        # Rows of pictures in place of single pixels: loops over few channels are slow.
        batch, height, width, _ = out.shape
        rows, (bias, *taps) = out.view(batch, height, -1), self._widen(width)
        olds = [frame.view(batch, height, -1) for frame in frames]
        torch.addcmul(bias, olds[-1], taps[-1], out=rows)
        for old, tap in zip(olds[:-1], taps[:-1], strict=True):
            rows.addcmul_(old, tap)
        return out

    def _widen(self, width: int) -> list[Tensor]:
        """Give bias and taps for a row of so many pixels."""
        if width not in self._wide:
            with torch.inference_mode(False):
                self._wide[width] = [t.repeat(width) for t in (self.bias, *self.taps)]
        return self._wide[width]

    def _frames(self, state: FramesState, time: int) -> list[Tensor]:
        """Give the K frames of a ring up to frame ``time``, the oldest first."""
        size = self.kernel[0]
        return [state.slots[(time + 1 + k) % size] for k in range(size)]

    def _mix(self, frames: Sequence[Tensor]) -> Tensor:
        """Pointwise."""
        rows = [frame.reshape(-1, frame.shape[3]) for frame in frames]
        out = torch.addmm(self.bias, rows[-1], self.taps[-1])
        for row, tap in zip(rows[:-1], self.taps[:-1], strict=True):
            out.addmm_(row, tap)
        return out.view(frames[0].shape[0], 1, *frames[0].shape[1:3], -1)
