"""Stem of 3D networks, over clips and frame by frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.operation import ConversionError
from costream.nn.video3d.convolution import VolumeStep
from costream.nn.video3d.frame_ring import FrameRing, FrameRingState
from costream.nn.video3d.padding import convolution, odd_kernel_timing, pad_time

if TYPE_CHECKING:
    from costream.nn.chain_program import Map, ProgramBuilder


class VideoStem(nn.Module):
    """Convolution, batch norm, ReLU.

    Args:
        width: output channels. ``kernel``: over time, odd.
        separate: X3D's form, a convolution over 3 x 3 pixels with stride 2 followed by a depthwise
            one over time; otherwise ResNet's, one over both, 7 x 7 pixels with stride 2, and the
            maxima of 3 x 3 with stride 2.
    """

    def __init__(self, width: int, kernel: int, separate: bool) -> None:
        super().__init__()
        self.kernel, self.separate, self.width = kernel, separate, width
        if separate:
            self.conv_xy = convolution(3, width, (1, 3, 3), 2)
            self.conv = convolution(width, width, (kernel, 1, 1), groups=width)
        else:
            self.conv = convolution(3, width, (kernel, 7, 7), 2)
        self.bn = nn.BatchNorm3d(width)

    def forward(self, x: Tensor, form: str) -> Tensor:
        """Return [B, O, T', H', W'] for clips ``x`` [B, 3, T, H, W]."""
        y = self.conv_xy(x) if self.separate else x
        y = F.relu(self.bn(self.conv(pad_time(y, form, self.kernel))))
        return y if self.separate else F.max_pool3d(y, (1, 3, 3), (1, 2, 2), (0, 1, 1))


class FoldedStem:
    """A ``VideoStem`` in evaluation; no gradients. See ``encoder.FoldedPart``.

    In X3D's form, the ring has the frames before the newest one, after the stride in space.
    ``start``: see ``FrameRing``.
    """

    def __init__(self, stem: VideoStem, start: str) -> None:
        self.timing = odd_kernel_timing(stem.kernel, start)
        self.ring = FrameRing(stem.kernel - stem.separate, start)
        self.pixels = VolumeStep(stem.conv_xy) if stem.separate else None
        self.conv = VolumeStep(stem.conv, stem.bn)
        self._like = stem.conv.weight.detach()

    def init_state(self, batch_size: int, size: Sequence[int]) -> FrameRingState:  # noqa: D102
        shape = size if self.pixels is None else self.pixels.output_size(size)
        return self.ring.init_state(batch_size, shape, self._like)

    def output_size(self, size: Sequence[int]) -> tuple[int, int, int]:  # noqa: D102
        if self.pixels is not None:
            return self.pixels.output_size(size)
        height, width, channels = self.conv.output_size(size)
        return -(-height // 2), -(-width // 2), channels

    def place(self, state: FrameRingState) -> None:  # noqa: D102
        return None

    def step(  # noqa: D102
        self, x: Tensor, state: FrameRingState, rows: Sequence[int], out: Tensor | None
    ) -> Tensor | None:
        if self.pixels is not None:
            return self._weigh(self.pixels, x, state, rows, out)
        time = self.ring.push(x, state, rows)
        if time < self.timing.delay:
            return None
        y = self.conv.over_time(state, time).squeeze(1)
        y = F.max_pool2d(y.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1)
        return torch.clamp_min(y, 0, out=out)

    def compile(self, x: Map, program: ProgramBuilder) -> Map:  # noqa: D102
        if self.pixels is None:
            raise ConversionError("a stem over time and space cannot be compiled")
        return program.apply(self.conv.compile(self.pixels.compile(x, program), program), F.relu)

    def _weigh(
        self,
        pixels: VolumeStep,
        x: Tensor,
        state: FrameRingState,
        rows: Sequence[int],
        out: Tensor | None,
    ) -> Tensor | None:
        new = pixels.convolve(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        if rows and self.ring.start == "zeros":
            new[list(rows)] = 0
        time = state.peek()
        self.ring.past(new, state, rows)
        y = None
        if time >= self.timing.delay:
            before = [self.ring.frame(state, time + k) for k in range(self.ring.slots)]
            y = self.conv.rectify(self.conv.weigh_frames([*before, new], out))
        self.ring.replace(new, state, rows)
        return y
