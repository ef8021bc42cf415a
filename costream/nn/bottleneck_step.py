"""Residual bottlenecks of 3D networks in evaluation, frame by frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn.frame_ring import FrameRing, FrameRingState
from costream.nn.state import State
from costream.nn.video3d.blocks import Bottleneck3d, SqueezeExcitation, odd_kernel_timing
from costream.nn.video3d.convolution import VolumeStep


@dataclass
class Bottleneck3dState(State):
    """Input frames of a block, and those of its kernel over time if that is inside."""

    inputs: FrameRingState
    inner: FrameRingState | None


class _Gate:
    """A ``SqueezeExcitation``: the factors of the channels of frames [B, 1, H, W, C]."""

    def __init__(self, unit: SqueezeExcitation) -> None:
        self._weights = [fc.weight.detach().T.contiguous() for fc in (unit.fc1, unit.fc2)]
        self._biases = [fc.bias.detach() for fc in (unit.fc1, unit.fc2)]

    def __call__(self, y: Tensor) -> Tensor:
        # ``mean`` creates a tensor for its divisor, which takes 50 us.
        sums, share = y.sum((1, 2, 3)), 1 / (y.shape[2] * y.shape[3])
        hidden = torch.addmm(self._biases[0], sums, self._weights[0], alpha=share).relu_()
        gate = torch.addmm(self._biases[1], hidden, self._weights[1]).sigmoid_()
        return gate.view(len(y), 1, 1, 1, -1)


class FoldedBottleneck:
    """A ``Bottleneck`` in evaluation; no gradients. See ``video_step.Part``.

    ``start``: see ``FrameRing``.
    """

    def __init__(self, block: Bottleneck3d, start: str) -> None:
        self.timing = odd_kernel_timing(block.kernel, start)
        self.half, self.depthwise = block.kernel // 2, block.depthwise
        self.a = VolumeStep(block.a, block.a_bn)
        self.b = VolumeStep(block.b, block.b_bn)
        self.c = VolumeStep(block.c, block.c_bn)
        self.shortcut = None
        if block.shortcut is not None:
            self.shortcut = VolumeStep(block.shortcut, block.shortcut_bn)
            self.shortcut.bias = self.shortcut.bias + self.c.bias  # the output of c is added to it
        self.squeeze = None if block.squeeze is None else _Gate(block.squeeze)
        self.inputs = FrameRing(self.half + 1 if block.depthwise else block.kernel, start)
        self.inner = FrameRing(block.kernel, start) if block.depthwise else None
        self._like = block.a.weight.detach()

    def init_state(self, batch_size: int, size: Sequence[int]) -> Bottleneck3dState:  # noqa: D102
        inner = None
        if self.inner is not None:
            inner = self.inner.init_state(batch_size, self.a.output_size(size), self._like)
        return Bottleneck3dState(self.inputs.init_state(batch_size, size, self._like), inner)

    def output_size(self, size: Sequence[int]) -> tuple[int, int, int]:  # noqa: D102
        return self.c.output_size(self.b.output_size(size))

    def place(self, state: Bottleneck3dState) -> Tensor:  # noqa: D102
        return self.inputs.next_slot(state.inputs)

    def step(  # noqa: D102
        self, x: Tensor, state: Bottleneck3dState, rows: Sequence[int], out: Tensor | None
    ) -> Tensor | None:
        time = self.inputs.push(x, state.inputs, rows)
        y = self._first(x, state, rows, time)
        if y is None:
            return None
        if self.squeeze is not None:
            y.mul_(self.squeeze(y))
        y = F.silu(y, inplace=True) if self.depthwise else y.relu_()
        past = self.inputs.frame(state.inputs, time - self.half)
        given = self.c.multiply(y.squeeze(1), out)
        if self.shortcut is None:
            return self.c.rectify(given, past)
        self.shortcut.add(past, given)
        return self.shortcut.rectify(given)

    def _first(
        self, x: Tensor, state: Bottleneck3dState, rows: Sequence[int], time: int
    ) -> Tensor | None:
        """Return the output of b, [B, 1, H', W', C], or None."""
        late = time < self.timing.delay
        if self.inner is None:
            if late:
                return None
            hidden = self.a.over_time(state.inputs, time).squeeze(1).relu_()
            return self.b.convolve(hidden.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).unsqueeze(1)
        inner = cast(FrameRingState, state.inner)
        slot = self.inner.next_slot(inner)
        self.a.rectify(self.a.multiply(x, slot))
        self.inner.push(slot, inner, rows)
        return None if late else self.b.over_time(inner, time)
