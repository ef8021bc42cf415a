"""Blocks of skeleton networks in evaluation: a graph convolution, a temporal unit, a residual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from costream.models.skeleton.blocks import (
    BranchedTemporalUnit,
    SkeletonBlock,
)
from costream.models.skeleton.branches import FoldedBranches
from costream.models.skeleton.temporal import FoldedConvolution, FoldedTemporal, fill_constant
from costream.nn.graph import fold_convolution, scale_and_shift
from costream.nn.state import State
from costream.nn.timing import DelayState, TemporalDelay, Timing


class FoldedBlock:
    """A ``SkeletonBlock`` in evaluation; no gradients. Its methods are ``FoldedTemporal``'s.

    ``before``: the timing of all blocks before this one. The kernel takes frames before a
    stream's first one as zeros; in a running batch, ``ages`` (int64 [N], steps of the network
    for each row since its stream began) and the delay of ``before`` determine which these are.
    """

    def __init__(self, block: SkeletonBlock, before: Timing) -> None:
        self.before, self.timing = before, block.timing
        self.spatial = cast(Any, block.gcn).fold()
        self.beside: Tensor | None = None
        more: Tensor | float = 0.0
        if block.residual is not None:
            folded = scale_and_shift(block.residual.bn)
            self.beside, more = fold_convolution(block.residual.t_conv, *folded)
        delay = TemporalDelay(block.residual_delay, block.stride) if block.has_residual else None
        self.delay, self.in_width = delay, block.in_width
        self.temporal: FoldedTemporal
        if isinstance(block.tcn, BranchedTemporalUnit):
            self.temporal = FoldedBranches(block.tcn, more)
        else:
            self.temporal = FoldedConvolution(block.tcn, more)
        self._like = block.tcn.bn.weight.detach()

    def init_state(self, batch_size: int, joints: int) -> SkeletonBlockState:
        """Return the initial state of ``batch_size`` persons."""
        residual = None
        if self.delay is not None:
            residual = self.delay.init_state(batch_size, (joints, self.in_width), self._like)
        return SkeletonBlockState(self.temporal.init_state(batch_size, joints), residual)

    def matrices(self) -> list[Tensor]:
        """Return all matrices [C, O] that multiply the rows of a step."""
        beside = [] if self.beside is None else [self.beside]
        return [*self.spatial.matrices(), *self.temporal.matrices(), *beside]

    def step(
        self, x: Tensor, state: SkeletonBlockState, ages: Tensor | None = None
    ) -> Tensor | None:
        """Take a frame [N, V, C], return [N, V, O] or None."""
        y = self.temporal.step(self.spatial(x), state.temporal, ages, self.before.delay)
        if self.delay is None or state.residual is None:
            return None if y is None else y.relu_()
        past = self.delay.past(x, state.residual)
        return None if y is None or past is None else self._finish(y, past)

    def steps(self, x: Tensor, state: SkeletonBlockState) -> Tensor:
        """Take T frames [N, T, V, C], return the outputs of T steps, [N, T', V, O]."""
        seen = torch.unflatten(self.spatial(x.flatten(0, 1)), 0, x.shape[:2])
        y = self.temporal.steps(seen, state.temporal)
        if self.delay is None or state.residual is None:
            return y.relu_()
        past = self.delay.forward_steps(x, state.residual)
        return self._finish(y, past[:, past.shape[1] - y.shape[1] :])  # padding "none": it is early

    def rest(self, x: Tensor) -> Tensor:
        """Return the output [N, V, O] when all frames are ``x``."""
        y = self.temporal.rest(self.spatial(x))
        return y.relu_() if self.delay is None else self._finish(y, x)

    def _finish(self, y: Tensor, past: Tensor) -> Tensor:
        if self.beside is None:
            return y.add_(past).relu_()
        rows = past.reshape(-1, self.in_width)
        y.view(-1, self.beside.shape[1]).addmm_(rows, self.beside)
        return y.relu_()

    def wake(self, state: SkeletonBlockState, rows: Sequence[int], x: Tensor, time: int) -> None:
        """Set the state of ``rows`` at step ``time`` as if all frames had been ``x`` [V, C]."""
        clock = self.before.count_outputs(time)
        self.temporal.wake(state.temporal, rows, self.spatial(x[None])[0], clock)
        if state.residual is not None:
            fill_constant(state.residual, rows, x, clock)


@dataclass
class SkeletonBlockState(State):
    """State of a block."""

    temporal: State
    residual: DelayState | None
