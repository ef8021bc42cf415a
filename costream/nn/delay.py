"""Delay over time: the input of some steps ago, for residuals and branches of unequal delay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from costream.nn.state import zeros
from costream.nn.timing import ClockedState, ContinualModule, Timing, check_shape


@dataclass
class DelayState(ClockedState):
    """The frames still to be output: stored frame i is in slot i mod n."""

    frames: Tensor  # [B, n, ..., C]


class Delay(ContinualModule):
    """Delay of ``steps`` steps that passes every ``stride``-th frame from frame 0 on.

    A residual beside a convolution needs the delay of the kernel's centre, (K - 1) * dilation -
    padding or, without padding, half of that. In a clip, output number j is frame j * stride.

    Raises ValueError for ``steps`` below 0 or a stride below 1.
    """

    def __init__(self, steps: int, stride: int = 1) -> None:
        super().__init__()
        if steps < 0 or stride < 1:
            raise ValueError(f"delay of {steps} steps (minimum 0) with stride {stride} (minimum 1)")
        self.timing = Timing(steps + 1, 0, stride)
        self._steps, self._stride = steps, stride  # plain attributes are read faster

    def forward(self, x: Tensor) -> Tensor:
        """Return every ``stride``-th frame of a clip [B, T, ..., C], as [B, T', ..., C]."""
        return x[:, :: self.stride]

    def init_state(self, batch_size: int, shape: Sequence[int], like: Tensor) -> DelayState:
        """Return the initial state of ``batch_size`` streams.

        ``shape``: of a frame of one stream, (P, C). ``like``: a tensor of its type and device.
        """
        slots = self.delay // self.stride + 1
        return DelayState(zeros(batch_size), zeros(batch_size, slots, *shape, like=like))

    def forward_step(self, x: Tensor, state: DelayState) -> Tensor | None:
        """Take a frame [B, ..., C] of every stream, return the one of ``steps`` ago or None."""
        past = self.past(x, state)
        return None if past is None else past.clone()

    def past(self, x: Tensor, state: DelayState) -> Tensor | None:
        """Return what ``forward_step`` would, as a view of the state valid until the next step."""
        frames, stride = state.frames, self._stride
        check_shape(x.shape, (frames.shape[0], *frames.shape[2:]))
        time, slots = state.tick(), frames.shape[1]
        number, phase = divmod(time, stride)
        if not phase:
            frames.select(1, number % slots).copy_(x.detach() if x.requires_grad else x)
        number, phase = divmod(time - self._steps, stride)
        return frames.select(1, number % slots) if number >= 0 and not phase else None

    def forward_steps(self, x: Tensor, state: DelayState) -> Tensor:
        """Take T frames [B, T, ..., C], return what T steps would, [B, T', ..., C]."""
        frames, stride, count = state.frames, self.stride, x.shape[1]
        check_shape((len(x), *x.shape[2:]), (frames.shape[0], *frames.shape[2:]))
        time = state.tick(count)
        kept = -(-time // stride)  # frames stored so far
        rows = torch.cat([in_order(frames, kept), x[:, -time % stride :: stride]], 1)
        first, stop = self.timing.count_outputs(time), self.timing.count_outputs(time + count)
        oldest = kept - frames.shape[1]
        store(frames, rows.detach(), -(-(time + count) // stride))
        return rows[:, first - oldest : stop - oldest]

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step: none."""
        return 0


def in_order(frames: Tensor, count: int) -> Tensor:
    """Return a copy of a ring [B, n, ...] from the oldest to the newest of ``count`` frames."""
    return torch.roll(frames, -(count % max(1, frames.shape[1])), 1)


def store(frames: Tensor, rows: Tensor, count: int) -> None:
    """Store the last n of ``rows`` [B, n + T, ...] in a ring [B, n, ...] with ``count`` frames."""
    if slots := frames.shape[1]:
        frames.copy_(torch.roll(rows[:, -slots:], count % slots, 1))
