"""Mean and maximum pooling over time, ordinary and continual."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn import fast
from costream.nn.ring import DeviceCounters, recording
from costream.nn.state import zeros
from costream.nn.timing import (
    ClockedState,
    ContinualModule,
    Timing,
    check_shape,
    in_order,
    kernel_timing,
    store,
)

_FEW = 4096  # numbers; above this, torch is as fast


@dataclass
class MeanState(ClockedState):
    """The sum of a window in two parts, from neither of which anything is ever subtracted.

    Steps come in blocks of n. In step i of a block, slots 0 to i of ``rows`` hold the features of
    this block, whose sum is ``newest``; slot k > i holds the sum of the features k to n - 1 of
    the previous block, and slot n zeros.
    """

    rows: Tensor  # [B, n + 1, ..., C]
    newest: Tensor  # [B, ..., C]
    seen: Tensor | None  # int64 [B]: number of features of each stream, for partial means

    def __post_init__(self) -> None:
        super().__post_init__()
        few = self.rows.is_cpu and self.newest.numel() <= _FEW
        self.arrays = MeanArrays(self) if few else None


class MeanArrays:
    """The memory of a ``MeanState`` as arrays of NumPy.

    For a few numbers its operations take a fifth of the time of torch's, with the same results to
    the last bit.
    """

    def __init__(self, state: MeanState) -> None:
        rows: Any = state.rows.detach().numpy()
        self.slots = [rows[:, k] for k in range(rows.shape[1])]
        self.newest: Any = state.newest.detach().numpy()
        self.seen: Any = None if state.seen is None else state.seen.numpy()
        # A feature of numbers and their squares, see ``TemporalStatistics``.
        self.powers: Any = self.newest.copy()
        self.numbers, self.squares = (self.powers[..., k] for k in _halves(self.newest.shape[-1]))


def _halves(width: int) -> tuple[slice, slice]:
    return slice(0, width // 2), slice(width // 2, None)


class TemporalMean(ContinualModule):
    """Mean over the last ``window`` features.

    Args:
        window: n.
        zeros: features before the first that count as zeros; the first mean is that of
            n - zeros features and these.
        partial: return means from the first step on, over the features seen so far; each stream
            has its own count.

    A window is the newest features of one block and the last ones of the previous block, and both
    sums are available (see ``MeanState``): three additions per feature, and as accurate after a
    year as after one window. Half precision is summed in single precision.

    Raises ValueError unless 0 <= zeros < window, and for zeros with ``partial``.
    """

    def __init__(self, window: int, *, zeros: int = 0, partial: bool = False) -> None:
        super().__init__()
        if not 0 <= zeros < window or (partial and zeros):
            raise ValueError(f"window {window}, zeros {zeros}: must be below window, 0 if partial")
        self.window, self.partial = window, partial
        self.timing = Timing(window, window - 1 if partial else zeros)

    def forward(self, x: Tensor) -> Tensor:
        """Return the means [B, T', ..., C] of a clip [B, T, ..., C]."""
        rows = F.pad(x.flatten(2).transpose(1, 2), (self.padding, 0))
        if rows.shape[2] < self.window:
            return x[:, :0]
        means = F.avg_pool1d(rows, self.window, 1)
        if self.partial:
            seen = torch.arange(1, x.shape[1] + 1, device=x.device).clamp_(max=self.window)
            means = means * (self.window / seen.to(x.dtype))
        return means.transpose(1, 2).reshape(x.shape[0], -1, *x.shape[2:])

    def init_state(self, batch_size: int, shape: Sequence[int], like: Tensor) -> MeanState:
        """Return the initial state of ``batch_size`` streams.

        ``shape``: of a feature of one stream, (P, C) or (C,). ``like``: has its dtype and device.
        """
        like = like.new_empty(0, dtype=torch.promote_types(like.dtype, torch.float32))
        rows = zeros(batch_size, self.window + 1, *shape, like=like)
        newest = zeros(batch_size, *shape, like=like)
        seen = zeros(batch_size) if self.partial else None
        return MeanState(zeros(batch_size), rows, newest, seen)

    def fill(self, state: MeanState, rows: Sequence[int], x: Tensor) -> None:
        """Set these streams to ones whose features so far all were ``x`` [rows, ..., C]."""
        slot, each = state.peek() % self.window, list(rows)
        left = torch.arange(self.window, -1, -1, device=x.device)
        left[:slot] = 1
        shape = (1, -1, *[1] * (x.dim() - 1))
        state.rows[each] = x.to(state.rows.dtype).unsqueeze(1) * left.view(shape)
        state.newest[each] = x.to(state.rows.dtype) * slot
        if state.seen is not None:
            state.seen[each] = self.window

    def forward_step(self, x: Tensor, state: MeanState) -> Tensor | None:
        """Take a feature [B, ..., C] of every stream, return the mean [B, ..., C] or None."""
        check_shape(x.shape, state.newest.shape)
        if (recorded := recording()) is not None:
            return self._step_recorded(x, state, recorded)
        if state.arrays is not None and fast.enabled() and fast.has_numpy_view(x):
            total = self.push(x.numpy(), state)
            return None if total is None else torch.from_numpy(total).to(x.dtype)
        time = state.tick()
        slot = time % self.window
        feature = x.detach() if x.requires_grad else x
        newest = state.newest.add_(feature)
        total = newest + state.rows.select(1, slot + 1)
        state.rows.select(1, slot).copy_(feature)
        if slot + 1 == self.window:
            self._turn(state)
        counts = self._count(state, 1)
        if time < self.delay:
            return None
        return self._divide(total.unsqueeze(1), counts).squeeze(1).to(x.dtype)

    def _step_recorded(self, x: Tensor, state: MeanState, recorded: DeviceCounters) -> Tensor:
        """Do a step of streams with full windows whose slot is computed where they are."""
        slot = recorded.times(state.clock)[:1] % self.window
        newest = state.newest.add_(x)
        total = newest + state.rows.index_select(1, slot + 1).squeeze(1)
        state.rows.index_copy_(1, slot, x.to(newest.dtype).unsqueeze(1))
        if (state.peek() + 1) % self.window == 0:
            self._turn(state)
        recorded.count(state.clock)
        if state.seen is not None:
            recorded.count(state.seen)
        return self._divide(total, None).to(x.dtype)

    def push(self, feature: Any, state: MeanState, wanted: bool = True) -> Any:
        """Do a step in NumPy: take a feature of every stream, return the mean or None.

        For states that have ``arrays``. ``wanted``: whether the mean is.
        """
        held = cast(MeanArrays, state.arrays)
        time = state.tick()
        slot = time % self.window
        held.newest += feature
        total: Any = held.newest + held.slots[slot + 1] if wanted else None
        held.slots[slot][...] = feature
        if slot + 1 == self.window:
            self._turn(state)
        if held.seen is not None:
            if wanted and min(held.seen.tolist()) + 1 < self.window:
                counts = self._count(state, 1)
                return self._divide(torch.from_numpy(total).unsqueeze(1), counts)[:, 0].numpy()
            held.seen += 1
        if not wanted or time < self.delay:
            return None
        total /= self.window
        return total

    def forward_steps(self, x: Tensor, state: MeanState) -> Tensor:
        """Take T features [B, T, ..., C], return what T steps would, [B, T', ..., C]."""
        check_shape((len(x), *x.shape[2:]), state.newest.shape)
        time = state.tick(x.shape[1])
        totals, done = [x[:, :0]], 0
        while done < x.shape[1]:
            slot = (time + done) % self.window
            part = x[:, done : done + self.window - slot]
            totals.append(self._add(part, state, slot))
            done += part.shape[1]
        means = self._divide(torch.cat(totals, 1), self._count(state, x.shape[1]))
        return means[:, self.timing.next_output(time) - time :].to(x.dtype)

    def count_macs(self, numbers: int = 1) -> int:
        """Return the additions of a step for one stream with ``numbers`` numbers per feature."""
        return 3 * numbers

    def _add(self, x: Tensor, state: MeanState, slot: int) -> Tensor:
        """Add ``x`` [B, T, ..., C], features from ``slot`` of a block on; return their sums."""
        stop = slot + x.shape[1]
        newest = x.cumsum(1, dtype=state.rows.dtype) + state.newest.unsqueeze(1)
        sums = newest + state.rows[:, slot + 1 : stop + 1]
        state.rows[:, slot:stop] = x.detach()
        state.newest.copy_(newest[:, -1].detach())
        if stop == self.window:
            self._turn(state)
        return sums

    def _turn(self, state: MeanState) -> None:
        """Start a block: replace the features of the previous one by sums of those that remain."""
        block = state.rows[:, : self.window]
        block.copy_(block.flip(1).cumsum(1).flip(1))
        state.newest.zero_()

    def _count(self, state: MeanState, steps: int) -> Tensor | None:
        """Count steps; return the features in each mean, [B, steps], None if always the window."""
        if state.seen is None:
            return None
        seen = state.seen.clone()
        state.seen.add_(steps)
        if int(seen.min()) + 1 >= self.window:
            return None
        return (seen[:, None] + torch.arange(1, steps + 1)).clamp_(max=self.window)

    def _divide(self, sums: Tensor, counts: Tensor | None) -> Tensor:
        """Return the means of ``sums`` [B, T, ..., C]."""
        if counts is None:
            return sums / self.window
        return sums / counts.view(*counts.shape, *[1] * (sums.dim() - 2)).to(sums)


@dataclass
class MaxState(ClockedState):
    """The frames before the newest that later maxima need; frame i is in slot i mod n."""

    frames: Tensor  # [B, n, ..., C]
    seen: Tensor  # int64 [B]: number of frames of each stream


class TemporalMax(ContinualModule):
    """Maximum over the frames under a kernel.

    Args:
        kernel: K. ``stride``, ``dilation``: in frames.
        padding: frames before and after a clip that are ignored; a stream only has those before.

    Raises ValueError as ``kernel_timing`` does.
    """

    def __init__(
        self,
        kernel: int,
        stride: int = 1,
        dilation: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__()
        self.kernel, self.dilation = kernel, dilation
        self.timing, self.right_padding = kernel_timing(kernel, stride, dilation, padding)

    def forward(self, x: Tensor) -> Tensor:
        """Return the maxima [B, T', ..., C] of a clip [B, T, ..., C]."""
        sides = [0, 0] * (x.dim() - 2) + [self.padding, self.right_padding]
        return self._pool(F.pad(x, sides, value=-math.inf))

    def init_state(self, batch_size: int, shape: Sequence[int], like: Tensor) -> MaxState:
        """Return the initial state of ``batch_size`` streams.

        ``shape``: of a frame of one stream, (P, C). ``like``: a tensor of its type and device.
        """
        slots = (self.kernel - 1) * self.dilation
        frames = zeros(batch_size, slots, *shape, like=like)
        return MaxState(zeros(batch_size), frames, zeros(batch_size))

    def forward_step(self, x: Tensor, state: MaxState) -> Tensor | None:
        """Take a frame [B, ..., C] of every stream, return the maxima [B, ..., C] or None."""
        frames = state.frames
        check_shape(x.shape, (frames.shape[0], *frames.shape[2:]))
        time, slots = self._begin(state, 1), frames.shape[1]
        out = None
        if time == self.timing.next_output(time):
            ages = range(self.dilation, slots + 1, self.dilation)
            past = (frames.select(1, (time - age) % slots) for age in ages)
            out = reduce(torch.maximum, past, x)
        if slots:
            frames.select(1, time % slots).copy_(x.detach())
        return out

    def forward_steps(self, x: Tensor, state: MaxState) -> Tensor:
        """Take T frames [B, T, ..., C], return what T steps would, [B, T', ..., C]."""
        frames, count = state.frames, x.shape[1]
        check_shape((len(x), *x.shape[2:]), (frames.shape[0], *frames.shape[2:]))
        time = self._begin(state, count)
        rows = torch.cat([in_order(frames, time), x], 1)
        store(frames, rows.detach(), time + count)
        return self._pool(rows[:, self.timing.next_output(time) - time :])

    def count_macs(self, numbers: int = 1) -> int:
        """Return the comparisons of a step with an output, per stream of ``numbers`` values."""
        return (self.kernel - 1) * numbers

    def _begin(self, state: MaxState, steps: int) -> int:
        """Count steps; set empty slots of new streams, which hold zeros, to -inf."""
        seen = state.seen.tolist()
        if fresh := [row for row, count in enumerate(seen) if not count]:
            state.frames[fresh] = -math.inf
        state.seen.add_(steps)
        return state.tick(steps)

    def _pool(self, x: Tensor) -> Tensor:
        if x.shape[1] < self.receptive_field:
            return x[:, :0]
        rows = x.flatten(2).transpose(1, 2)
        out = F.max_pool1d(rows, self.kernel, self.stride, 0, self.dilation)
        return out.transpose(1, 2).reshape(x.shape[0], -1, *x.shape[2:])


# Mean and standard deviation over time, ordinary and continual.


LEAST = 1e-4  # minimum standard deviation: less is rounding error


class TemporalStatistics(ContinualModule):
    """Mean and standard deviation of each number over the last ``window`` features.

    Statistics pooling: Snyder et al., "X-vectors: Robust DNN embeddings for speaker recognition"
    (ICASSP 2018). Until there are ``window`` features they are of the features so far, and
    each stream has its own count. Computed in double precision: the variance is a difference of
    means, in which half of the digits are lost.
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        self.mean = TemporalMean(window, partial=True)
        self.timing = self.mean.timing

    def forward(self, x: Tensor) -> Tensor:
        """Return means and deviations [B, T, ..., 2 C] at every step of a clip [B, T, ..., C]."""
        return _describe(self.mean(_powers(x))).to(x.dtype)

    def init_state(self, batch_size: int, shape: Sequence[int], like: Tensor) -> MeanState:
        """Return the initial state of ``batch_size`` streams.

        ``shape``: of a feature of one stream, (..., C). ``like``: a tensor on its device.
        """
        return self.mean.init_state(batch_size, (*shape[:-1], 2 * shape[-1]), like.double())

    def forward_step(self, x: Tensor, state: MeanState) -> Tensor:
        """Take a feature [B, ..., C] of every stream, return [B, ..., 2 C]."""
        return self.describe(cast(Tensor, self.push(x, state)), x.dtype)

    def push(self, x: Tensor, state: MeanState, wanted: bool = True) -> Tensor | None:
        """Take a feature [B, ..., C] of every stream; return means for ``describe`` if wanted."""
        held = state.arrays
        if held is None or not fast.enabled() or not fast.has_numpy_view(x):
            return self.mean.forward_step(_powers(x), state)
        check_shape(x.shape, held.numbers.shape)
        held.numbers[...] = x.numpy()
        held.squares[...] = held.numbers
        held.squares *= held.numbers
        means = self.mean.push(held.powers, state, wanted)
        return None if means is None else torch.from_numpy(means)

    def describe(self, means: Tensor, dtype: torch.dtype) -> Tensor:
        """Return means and deviations [B, ..., 2 C] of what ``push`` returned."""
        if not fast.enabled() or not fast.has_numpy_view(means) or means.numel() > _FEW:
            return _describe(means).to(dtype)
        rows: Any = means.numpy()
        mean, square = (rows[..., k] for k in _halves(rows.shape[-1]))
        square -= mean * mean
        square.clip(LEAST**2, None, square)
        square **= 0.5
        return means.to(dtype)

    def forward_steps(self, x: Tensor, state: MeanState) -> Tensor:
        """Take T features [B, T, ..., C], return what T steps would, [B, T, ..., 2 C]."""
        return _describe(self.mean.forward_steps(_powers(x), state)).to(x.dtype)


def _powers(x: Tensor) -> Tensor:
    double = x.double()
    return torch.cat([double, double.square()], -1)


def _describe(means: Tensor) -> Tensor:
    mean, square = means.chunk(2, -1)
    variance = torch.addcmul(square, mean, mean, value=-1)
    return torch.cat([mean, variance.clamp(min=LEAST**2).sqrt()], -1)
