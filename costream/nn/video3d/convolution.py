"""Convolution over time and space, frame by frame.

A step multiplies the last K frames with their weights once (Hedegaard, Iosifidis, "Continual 3D
Convolutional Neural Networks for Real-time Processing of Videos", ECCV 2022). There the products
of a frame with all K taps are stored, as here in ``TapSums``; other layers store the frames
(``FrameRing``), so that the state is as wide as the input and also serves a residual.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from costream.nn.fused import IDENTITY, FusedActivation, PackedConvolution
from costream.nn.graph import scale_and_shift
from costream.nn.operation import ConversionError
from costream.nn.video3d.frame_ring import FrameRingState

if TYPE_CHECKING:
    from costream.nn.chain_program import Map, ProgramBuilder


class VolumeStep:
    """A ``torch.nn.Conv3d`` and the batch norm after it, in evaluation; no gradients.

    Frames are zero-padded by ``conv.padding``; the frames before a clip are in the ring.
    ``strided``: False for frames without the pixels that a pointwise convolution's stride omits.
    """

    def __init__(
        self, conv: nn.Conv3d, norm: nn.BatchNorm3d | None = None, *, strided: bool = True
    ) -> None:
        weight = conv.weight.detach()
        bias = weight.new_zeros(len(weight)) if conv.bias is None else conv.bias.detach()
        if norm is not None:
            scale, shift = scale_and_shift(norm)
            weight, bias = weight * scale[:, None, None, None, None], bias * scale + shift
        self.bias, self.groups, self.out_width = bias, conv.groups, conv.out_channels
        self.pixel_stride, self.sides = (
            conv.stride[1] if strided else 1,
            cast("tuple[int, ...]", conv.padding)[1:],
        )
        self.kernel = cast("tuple[int, int, int]", conv.kernel_size)
        self.pointwise = self.kernel[1:] == (1, 1)
        # Only the forms of weights that are used. Taps: oldest first.
        if self.pointwise:
            taps = weight.flatten(2)  # [O, I, K]; stored as [K, C] if depthwise, else [K, I, O]
            self.taps = (taps[:, 0].T if self.groups > 1 else taps.permute(2, 1, 0)).contiguous()
        else:
            self._weight = weight

    @cached_property
    def _turned(self) -> list[PackedConvolution]:
        """Convolutions of the slots of a ring, for each slot of the newest frame."""
        step = self.pixel_stride
        arguments = (0, *self.sides), (1, step, step), (1, 1, 1), self.groups
        with torch.inference_mode(False):
            weights = [self._weight.roll(k + 1, 2) for k in range(self.kernel[0])]
            return [PackedConvolution(weight, self.bias, *arguments) for weight in weights]

    @cached_property
    def _flat(self) -> PackedConvolution:
        """The convolution of frames; K = 1."""
        with torch.inference_mode(False):
            weight = self._weight[:, :, 0].contiguous(memory_format=torch.channels_last)
            strides = self.pixel_stride, self.pixel_stride
            return PackedConvolution(weight, self.bias, self.sides, strides, (1, 1), self.groups)

    @cached_property
    def _spread(self) -> PackedConvolution:
        """The convolution of a frame and K - 1 frames of zeros on both sides, without bias."""
        step, late = self.pixel_stride, self.kernel[0] - 1
        arguments = (late, *self.sides), (1, step, step), (1, 1, 1), self.groups
        return PackedConvolution(self._weight, None, *arguments)

    def output_size(self, size: Sequence[int]) -> tuple[int, int, int]:
        """Return height, width and channels of outputs for inputs of ``size``, (H, W, I)."""
        step = self.pixel_stride
        return -(-size[0] // step), -(-size[1] // step), self.out_width

    def product(
        self, x: Tensor, out: Tensor | None = None, other: Tensor | None = None, relu: bool = True
    ) -> Tensor:
        """Return [B, H', W', O] of a frame [B, H, W, I]; pointwise, with K = 1.

        ``out``: memory for the result, such as a slot of a ring. ``other``: frames added to it. The
        frame of one stream is contiguous in both; frames of several streams need not be adjacent.
        ``relu``: whether to return the ReLU of the sum.
        """
        if out is None:
            height, width, _ = self.output_size(x.shape[1:])
            out = x.new_empty(len(x), height, width, self.out_width)
        if self.pixel_stride > 1:
            x = x[:, :: self.pixel_stride, :: self.pixel_stride]
        rows = out.view(len(out), -1, self.out_width)
        before = self.bias
        if other is not None:
            torch.add(other, self.bias, out=out)
            before = rows
        if len(x) == 1:  # starts sooner than a batch of products
            before = before if other is None else before[0]
            torch.addmm(before, x.flatten(0, 2), self.taps[0], out=rows[0])
        else:
            taps = self.taps.expand(len(x), -1, -1)
            torch.baddbmm(before, x.flatten(1, 2), taps, out=rows)
        return out.relu_() if relu else out

    def compile(self, x: Map, program: ProgramBuilder) -> Map:
        """Append the convolution of a frame to a program, which holds what later frames need.

        Raises ConversionError for one of several frames and all channels, and for a stride of
        single pixels.
        """
        from costream.nn.chain_program import Window

        over_time, each = self.kernel[0] > 1, self.groups == self.out_width > 1
        if over_time != each or (self.pointwise and self.pixel_stride > 1):
            raise ConversionError(f"a convolution of {self.kernel} cannot be compiled")
        if self.pointwise and each:
            return program.convolve_over_time(x, self.taps.T, self.bias)
        if self.pointwise:
            return program.multiply(x, self.taps[0].T, self.bias)
        size = self.output_size((x.height, x.width, x.channels))[:2]
        window = Window(size, self.pixel_stride, *self.sides)
        if each:
            return program.convolve_in_time(x, self._weight[:, 0], self.bias, window)
        return program.convolve(x, self._weight[:, :, 0], self.bias, window)

    def rectify(self, x: Tensor) -> Tensor:
        """Return the ReLU of frames [B, H, W, O] plus bias, computed in place."""
        x += self.bias
        return x.relu_()

    def convolve(self, x: Tensor, activation: FusedActivation = IDENTITY) -> Tensor:
        """Return the activated output [B, O, H', W'] of a frame [B, I, H, W]; K = 1."""
        return self._flat(x, activation)

    def over_time(
        self, state: FrameRingState, time: int, activation: FusedActivation = IDENTITY
    ) -> Tensor:
        """Return [B, 1, H', W', O] of the K frames of a ring up to frame ``time``, activated.

        For all but depthwise convolutions over time alone, which ``weigh`` computes.
        """
        if self.pointwise:
            return activation.apply(self._mix(self._frames(state, time)))
        if self.kernel[0] == 1:
            frame = state.slots[0].permute(0, 3, 1, 2)
            return self.convolve(frame, activation).permute(0, 2, 3, 1).unsqueeze(1)
        oldest = (time + 1) % self.kernel[0]
        return self._turned[oldest - 1](state.volume, activation).permute(0, 2, 3, 4, 1)

    def spread(self, x: Tensor) -> Tensor:
        """Return the products [B, K, H', W', O] of a frame [B, H, W, I] with the K taps.

        The newest tap is first: product k belongs to the output k steps later. Without bias.
        """
        return self._spread(x.unsqueeze(1).permute(0, 4, 1, 2, 3)).permute(0, 2, 3, 4, 1)

    def weigh(self, state: FrameRingState, time: int, out: Tensor | None = None) -> Tensor:
        """Return ``weigh_frames`` of the K frames of a ring up to frame ``time``."""
        return self.weigh_frames(self._frames(state, time), out)

    def weigh_frames(self, frames: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        """Return the result of a depthwise convolution over time alone, without bias.

        The shape is [B, H, W, O], as of each of the K frames, the oldest first. ``out``: memory for
        the result.
        """
        if out is None:
            out = torch.empty_like(frames[0], memory_format=torch.contiguous_format)
        torch.mul(frames[0], self.taps[0], out=out)
        for frame, tap in zip(frames[1:], self.taps[1:], strict=True):
            out.addcmul_(frame, tap)
        return out

    def _frames(self, state: FrameRingState, time: int) -> list[Tensor]:
        """Return the K frames of a ring up to frame ``time``, the oldest first."""
        size = self.kernel[0]
        return [state.slots[(time + 1 + k) % size] for k in range(size)]

    def _mix(self, frames: Sequence[Tensor]) -> Tensor:
        """Return the pointwise convolution of these frames."""
        rows = [frame.reshape(-1, frame.shape[3]) for frame in frames]
        out = torch.addmm(self.bias, rows[-1], self.taps[-1])
        for row, tap in zip(rows[:-1], self.taps[:-1], strict=True):
            out.addmm_(row, tap)
        return out.view(frames[0].shape[0], 1, *frames[0].shape[1:3], -1)
