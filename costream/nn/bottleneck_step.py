"""Residual bottlenecks of 3D networks in evaluation, frame by frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn.bottleneck import Bottleneck, timing
from costream.nn.frame_ring import FrameRing, FramesState
from costream.nn.state import State
from costream.nn.volume import VolumeStep


@dataclass
class BottleneckState(State):
    """The frames that a block takes, and those that its kernel over time does if it is inside."""

    inputs: FramesState
    inner: FramesState | None


class FoldedBottleneck:
    """A ``Bottleneck`` in evaluation; no gradients. See ``video_step.Part``.

    ``start``: see ``FrameRing``.
    """

    def __init__(self, block: Bottleneck, start: str) -> None:
        self.timing = timing(block.kernel, start)
        self.half, self.depthwise = block.kernel // 2, block.depthwise
        self.a = VolumeStep(block.a, block.a_bn)
        self.b = VolumeStep(block.b, block.b_bn)
        self.c = VolumeStep(block.c, block.c_bn)
        self.shortcut = None
        if block.shortcut is not None:
            self.shortcut = VolumeStep(block.shortcut, block.shortcut_bn)
        self.squeeze = block.squeeze
        self.inputs = FrameRing(self.half + 1 if block.depthwise else block.kernel, start)
        self.inner = FrameRing(block.kernel, start) if block.depthwise else None
        self._like = block.a.weight.detach()

    def init_state(self, batch_size: int, size: Sequence[int]) -> BottleneckState:  # noqa: D102
        inner = None
        if self.inner is not None:
            inner = self.inner.init_state(batch_size, self.a.output_size(size), self._like)
        return BottleneckState(self.inputs.init_state(batch_size, size, self._like), inner)

    def output_size(self, size: Sequence[int]) -> tuple[int, int, int]:  # noqa: D102
        return self.c.output_size(self.b.output_size(size))

    def place(self, state: BottleneckState) -> Tensor:  # noqa: D102
        return self.inputs.next_slot(state.inputs)

    def step(  # noqa: D102
        self, x: Tensor, state: BottleneckState, rows: Sequence[int], out: Tensor | None
    ) -> Tensor | None:
        time = self.inputs.push(x, state.inputs, rows)
        y = self._first(x, state, rows, time)
        if y is None:
            return None
        if self.squeeze is not None:
            y.mul_(self.squeeze.gate(y.mean((1, 2)))[:, None, None])
        y = F.silu(y, inplace=True) if self.depthwise else y.relu_()
        y = self.c(y.unsqueeze(1))
        past = self.inputs.frame(state.inputs, time - self.half)
        y.add_(past if self.shortcut is None else self.shortcut(past.unsqueeze(1)))
        return y.relu_() if out is None else torch.clamp_min(y, 0, out=out)

    def _first(
        self, x: Tensor, state: BottleneckState, rows: Sequence[int], time: int
    ) -> Tensor | None:
        """Give what comes from b, or None."""
        late = time < self.timing.delay
        if self.inner is None:
            return None if late else self.b(self.a(state.inputs.frames, time).relu_().unsqueeze(1))
        inner = cast(FramesState, state.inner)
        slot = self.inner.next_slot(inner)
        torch.clamp_min(self.a(x.unsqueeze(1)), 0, out=slot)
        self.inner.push(slot, inner, rows)
        return None if late else self.b(inner.frames, time)
