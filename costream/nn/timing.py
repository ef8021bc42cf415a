"""Timing of continual blocks: receptive field, padding, stride and delay of their outputs.

The ordinary layer numbers its outputs: number j is centred on input frame j * stride. A stream
returns number j at the step when the last frame it needs has arrived, frame j * stride + delay.
All of this holds for a single block and for a network of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from costream.nn.state import State, zeros


class Timed(Protocol):
    """Anything with timing: a ``Timing``, a block, a network."""

    @property
    def receptive_field(self) -> int: ...  # noqa: D102
    @property
    def padding(self) -> int: ...  # noqa: D102
    @property
    def stride(self) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class Timing:
    """Timing of the outputs of a block, in steps of its input.

    Args:
        receptive_field: frames from the oldest to the newest that an output depends on.
        padding: zeros that the ordinary layer puts before frame 0. Those after the end do not
            exist in a stream.
        stride: steps from one output to the next.
    """

    receptive_field: int = 1
    padding: int = 0
    stride: int = 1

    @property
    def delay(self) -> int:
        """Steps from frame j * stride to output number j; the step, from 0, of the first output.

        Receptive field - padding - 1; Eq. 6 as printed in Hedegaard, Iosifidis, "Continual
        Inference" (ECCV workshops 2022) differs, also from the paper's example.
        """
        return self.receptive_field - self.padding - 1

    def next_output(self, step: int) -> int:
        """Return the first step, from ``step`` on, that has an output."""
        return max(self.delay, step + (self.delay - step) % self.stride)

    def count_outputs(self, steps: int) -> int:
        """Return the number of outputs of a stream after ``steps`` steps."""
        return max(0, -((self.delay - steps) // self.stride))


def kernel_timing(
    kernel: int, stride: int, dilation: int, padding: int | tuple[int, int]
) -> tuple[Timing, int]:
    """Return the timing of a kernel over time, and the padding after the end of a clip.

    ``padding``: on both sides, or (before, after). Raises ValueError for sizes below 1, and for
    more padding before the clip than the kernel reaches back: outputs would precede frame 0.
    """
    if min(kernel, stride, dilation) < 1:
        raise ValueError(f"kernel {kernel}, stride {stride}, dilation {dilation}: minimum is 1")
    left, right = (padding, padding) if isinstance(padding, int) else padding
    reach = (kernel - 1) * dilation
    if not 0 <= left <= reach or right < 0:
        raise ValueError(f"padding {left} before, {right} after: must be 0 to {reach}, at least 0")
    return Timing(reach + 1, left, stride), right


def in_sequence(*parts: Timed) -> Timing:
    """Return the timing of a sequence of parts, each of which takes the outputs of the previous."""
    field, padding, jump = 1, 0, 1
    for part in parts:
        field += (part.receptive_field - 1) * jump
        padding += part.padding * jump
        jump *= part.stride
    return Timing(field, padding, jump)


def in_parallel(*parts: Timed) -> Timing:
    """Return the timing of branches that take the same input and whose outputs are combined.

    There is an output when all branches have one; earlier outputs of fast branches are dropped.
    Raises ValueError for branches whose outputs never, or not always, coincide.
    """
    branches = [Timing(p.receptive_field, p.padding, p.stride) for p in parts]
    last = max(branches, key=lambda branch: branch.delay)
    for branch in branches:
        if branch.stride != last.stride or (last.delay - branch.delay) % last.stride:
            raise ValueError(f"outputs of {branch} and {last} come at different steps")
    field = max(branch.receptive_field for branch in branches)
    return Timing(field, field - 1 - last.delay, last.stride)


class ContinualModule(nn.Module):
    """Base class of modules with a ``timing``."""

    timing: Timing

    @property
    def receptive_field(self) -> int:
        """Frames from the oldest to the newest that an output depends on."""
        return self.timing.receptive_field

    @property
    def padding(self) -> int:
        """Zeros before frame 0."""
        return self.timing.padding

    @property
    def delay(self) -> int:
        """Steps from frame j * stride to output number j."""
        return self.timing.delay

    @property
    def stride(self) -> int:
        """Steps from one output to the next."""
        return self.timing.stride


@dataclass
class ClockedState(State):
    """A state whose streams step together: a block gives outputs for all of them or for none.

    The clock counts the steps of the batch. It determines at which steps a stride gives outputs, so
    it continues when ``reset(rows)`` clears some streams; only ``reset()`` sets it to 0. A stream
    cleared at step t0 continues as if all its frames had been zeros. If t0 is a multiple of the
    stride (of the whole network, in a network), its outputs equal a new stream's, once
    ``hide_unstarted`` has hidden what comes before its first one.

    ``cat`` may join a fresh state to a running one, and ``put`` copy one into it; that stream
    starts at the next step. Streams that have run for different times cannot step together.
    """

    clock: Tensor  # int64 [B], the same for all streams; 0 for one that has just been joined

    def __post_init__(self) -> None:
        # A NumPy view of the same memory, which takes a tenth of the time to read and write.
        self._clock: Any = self.clock.numpy()

    def reset(self, rows: Iterable[int] | None = None) -> None:
        """Clear these streams (default: all)."""
        clock = self.clock.clone()
        super().reset(rows)
        if rows is not None:
            self.clock.copy_(clock)

    def tick(self, steps: int = 1) -> int:
        """Count these steps and return the number of those taken before.

        Raises ValueError if the state joins streams that have run for different times.
        """
        clocks: list[int] = self._clock.tolist()
        taken = max(clocks)
        if len(clocks) > 1 and clocks.count(taken) + clocks.count(0) < len(clocks):
            raise ValueError(f"streams with clocks {clocks} cannot step together")
        self._clock.fill(taken + steps)
        return taken

    def peek(self) -> int:
        """Return the number of steps taken so far."""
        return int(max(self._clock.tolist()))


def check_shape(x: Sequence[int], state: Sequence[int]) -> None:
    """Raise ValueError unless a frame has the shape of its state: torch would broadcast it."""
    if tuple(x) != tuple(state):
        raise ValueError(f"frame of shape {tuple(x)} does not fit the state for {tuple(state)}")


def hide_unstarted(x: Tensor, steps: Tensor, delay: int, value: float = 0.0) -> Tensor:
    """Return a step ``x`` [B, ...] with ``value`` in all streams that have no feature here yet.

    A stream that was reset in a running batch is stepped with the others from its frame 0 on, and
    a layer with a delay then computes values for it that a fresh stream would not have at all.
    The next layer with a memory must take these as zeros (a ``TemporalMax`` as -inf).

    ``steps``: int64 [B], steps each stream has taken before this one, since its reset.
    ``delay``: that of everything between the network's input and ``x``, in the network's steps.
    """
    taken = steps.tolist()
    if min(taken) >= delay:
        return x
    hidden = (steps < delay).view(-1, *[1] * (x.dim() - 1))
    return x.masked_fill(hidden.to(x.device), value)


# Delay over time: the input of some steps ago, for residuals and branches of unequal delay.


@dataclass
class DelayState(ClockedState):
    """The frames still to be output: stored frame i is in slot i mod n."""

    frames: Tensor  # [B, n, ..., C]


class TemporalDelay(ContinualModule):
    """Delay of ``steps`` steps that passes every ``stride``-th frame from frame 0 on.

    A residual around a convolution needs the delay of the kernel's centre, (K - 1) * dilation -
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


def in_order(frames: Tensor, count: int, axis: int = 1) -> Tensor:
    """Return a copy of a ring [B, n, ...] from the oldest to the newest of ``count`` frames.

    ``axis``: dimension of the n slots.
    """
    return torch.roll(frames, -(count % max(1, frames.shape[axis])), axis)


def store(frames: Tensor, rows: Tensor, count: int, axis: int = 1) -> None:
    """Store the last n of ``rows`` [B, n + T, ...] in a ring [B, n, ...] with ``count`` frames.

    ``axis``: dimension of the n slots.
    """
    if slots := frames.shape[axis]:
        newest = rows.narrow(axis, rows.shape[axis] - slots, slots)
        frames.copy_(torch.roll(newest, count % slots, axis))
