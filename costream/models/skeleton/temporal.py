"""Temporal units and blocks of skeleton networks for single frames in evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from costream.models.skeleton.blocks import (
    DILATIONS,
    BranchedTemporalUnit,
    SkeletonBlock,
    TemporalUnit,
    sides,
)
from costream.nn.convolution import ConvolutionState, TemporalConvolution
from costream.nn.graph import fold_convolution, scale_and_shift
from costream.nn.pooling import MaxState, TemporalMax
from costream.nn.state import State
from costream.nn.timing import DelayState, TemporalDelay, Timing, hide_unstarted


class FoldedTemporal(Protocol):
    """A temporal unit in evaluation. Frames of N persons are [N, V, C]."""

    def init_state(self, batch_size: int, joints: int) -> State:
        """Return the initial state of ``batch_size`` persons."""

    def step(self, x: Tensor, state: Any, ages: Tensor | None, delay: int) -> Tensor | None:
        """Take a frame, return [N, V, O] or None. ``ages``, ``delay``: see ``FoldedBlock``."""

    def steps(self, x: Tensor, state: Any) -> Tensor:
        """Take T frames [N, T, V, C], return the outputs of T steps, [N, T', V, O]."""

    def matrices(self) -> list[Tensor]:
        """Return the matrices that multiply the rows of a step."""

    def rest(self, x: Tensor) -> Tensor:
        """Return the output [N, V, O] when all frames are ``x``."""

    def wake(self, state: Any, rows: Sequence[int], x: Tensor, time: int) -> None:
        """Set the state of ``rows`` at frame ``time`` as if all frames had been ``x`` [V, C]."""


class FoldedConvolution:
    """A ``TemporalUnit`` in evaluation; see ``FoldedTemporal``."""

    def __init__(self, unit: TemporalUnit, more: Tensor | float) -> None:
        """``more``: added to the bias."""
        scale, shift = scale_and_shift(unit.bn)
        weight = unit.t_conv.weight.detach().squeeze(3)
        bias = cast(Tensor, unit.t_conv.bias).detach()
        self.conv = continual_convolution(
            weight * scale[:, None, None], bias * scale + shift + more, unit.stride, unit.pads
        )

    def init_state(self, batch_size: int, joints: int) -> ConvolutionState:  # noqa: D102
        return self.conv.init_state(batch_size, joints)

    def step(  # noqa: D102
        self, x: Tensor, state: ConvolutionState, ages: Tensor | None, delay: int
    ) -> Tensor | None:
        if ages is not None:
            x = hide_unstarted(x, ages, delay)
        return self.conv.forward_step(x, state)

    def steps(self, x: Tensor, state: ConvolutionState) -> Tensor:  # noqa: D102
        return self.conv.forward_steps(x, state)

    def matrices(self) -> list[Tensor]:  # noqa: D102
        return [self.conv.matrix]

    def rest(self, x: Tensor) -> Tensor:  # noqa: D102
        return constant_output(self.conv, x)

    def wake(  # noqa: D102
        self, state: ConvolutionState, rows: Sequence[int], x: Tensor, time: int
    ) -> None:
        fill_constant(state, rows, x, time)


def continual_convolution(
    weight: Tensor, bias: Tensor, stride: int, pads: tuple[int, int], dilation: int = 1
) -> TemporalConvolution:
    """Return a convolution over time with this weight [O, I, K] and bias [O]."""
    out_width, in_width, kernel = weight.shape
    # No weights are drawn on the device "meta", so the caller's random state does not change.
    with torch.device("meta"):
        conv = TemporalConvolution(
            in_width, out_width, kernel, stride=stride, dilation=dilation, padding=pads
        )
    # Not by "to_empty", which loads SymPy: a third of a second at the start of a program.
    rows = weight.detach().permute(2, 1, 0).clone(memory_format=torch.contiguous_format)
    conv.weight = nn.Parameter(rows.permute(2, 1, 0), requires_grad=False)
    conv.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return conv


def constant_output(conv: TemporalConvolution, x: Tensor) -> Tensor:
    """Return the output [N, V, O] of a convolution when all frames are ``x`` [N, V, C]."""
    return torch.matmul(x.repeat(1, 1, conv.kernel), conv.matrix) + cast(Tensor, conv.bias)


def fill_constant(
    state: ConvolutionState | DelayState | MaxState, rows: Sequence[int], x: Tensor, time: int
) -> None:
    """Set the state of ``rows`` at frame ``time`` as if all frames had been ``x`` [V, C]."""
    wide = isinstance(state, ConvolutionState)
    state.frames[list(rows)] = x[:, None, None] if wide else x
    state.clock.fill_(time)
    if isinstance(state, MaxState):
        state.seen[list(rows)] = max(1, time)


# ST-GCN++'s temporal unit in evaluation, frame by frame.


@dataclass
class BranchesState(State):
    """State of the branches for each person."""

    delays: tuple[DelayState, ...]
    units: tuple[ConvolutionState | MaxState, ...]  # of the first five


class FoldedBranches:
    """A ``BranchedTemporalUnit`` in evaluation; see ``FoldedTemporal``.

    The input of each branch is delayed so that all output the same frame at the same step: by
    4 - d for the kernel with dilation d. Nothing is delayed in the causal form.
    """

    def __init__(self, unit: BranchedTemporalUnit, more: Tensor | float) -> None:
        """``more``: added to the bias."""
        self.width, self.widths = unit.width, list(unit.widths[:-1])
        *reduced, last = list(unit.branches)
        parts = [
            fold_convolution(cast(nn.Conv2d, conv), *scale_and_shift(cast(nn.BatchNorm2d, norm)))
            for conv, norm, *_ in (list(branch.children()) for branch in reduced)
        ]
        self.reduce = torch.cat([weight for weight, _ in parts], 1)
        self.reduce_bias = torch.cat([bias for _, bias in parts])
        self.last, self.last_bias = fold_convolution(cast(nn.Conv2d, last))
        self.convs = [
            continual_convolution(
                conv.weight.detach().squeeze(3),
                cast(Tensor, conv.bias).detach(),
                unit.stride,
                sides(unit.padding, 3, dilation),
                dilation,
            )
            for conv, dilation in zip(unit.kernels, DILATIONS, strict=True)
        ]
        self.max = TemporalMax(3, unit.stride, 1, sides(unit.padding, 3))
        # Each takes its own type of state.
        self.units: list[Any] = [*self.convs, self.max]
        reach = max(DILATIONS) if unit.padding == "same" else 0
        self.delays = [TemporalDelay(max(0, reach - d)) for d in (*DILATIONS, 1)]
        self.delays.append(
            TemporalDelay(reach, unit.stride)
        )  # of the last branch: of the frame itself
        norm, _, out = unit.transform
        self.scale, self.shift = scale_and_shift(cast(nn.BatchNorm2d, norm))
        scale, shift = scale_and_shift(unit.bn)
        self.out, self.out_bias = fold_convolution(cast(nn.Conv2d, out), scale, shift + more)

    def init_state(self, batch_size: int, joints: int) -> BranchesState:  # noqa: D102
        delays = [
            delay.init_state(batch_size, (joints, width), self.out)
            for delay, width in zip(self.delays, [*self.widths, self.width], strict=True)
        ]
        maximum = self.max.init_state(batch_size, (joints, self.widths[-1]), self.out)
        convolutions = [conv.init_state(batch_size, joints) for conv in self.convs]
        return BranchesState(tuple(delays), (*convolutions, maximum))

    def step(  # noqa: D102
        self, x: Tensor, state: BranchesState, ages: Tensor | None, delay: int
    ) -> Tensor | None:
        rows = self._enter(x)
        if ages is not None:
            rows = hide_unstarted(rows, ages, delay)
        outputs = []
        for k, part in enumerate(torch.split(rows, self.widths, -1)):
            late = self.delays[k].forward_step(part, state.delays[k])
            if late is not None:
                late = self.units[k].forward_step(late, state.units[k])
            outputs.append(late)
        own = self.delays[-1].past(x, state.delays[-1])
        given = [out for out in outputs if out is not None]
        return None if own is None or len(given) < len(outputs) else self._leave(given, own)

    def steps(self, x: Tensor, state: BranchesState) -> Tensor:  # noqa: D102
        outputs = []
        for k, part in enumerate(torch.split(self._enter(x), self.widths, -1)):
            late = self.delays[k].forward_steps(part, state.delays[k])
            outputs.append(self.units[k].forward_steps(late, state.units[k]))
        return self._leave(outputs, self.delays[-1].forward_steps(x, state.delays[-1]))

    def matrices(self) -> list[Tensor]:  # noqa: D102
        return [self.reduce, *(conv.matrix for conv in self.convs), self.last, self.out]

    def rest(self, x: Tensor) -> Tensor:  # noqa: D102
        *parts, maximum = torch.split(self._enter(x), self.widths, -1)
        outputs = [
            constant_output(conv, part) for conv, part in zip(self.convs, parts, strict=True)
        ]
        return self._leave([*outputs, maximum], x)

    def wake(  # noqa: D102
        self, state: BranchesState, rows: Sequence[int], x: Tensor, time: int
    ) -> None:
        for k, part in enumerate(torch.split(self._enter(x), self.widths, -1)):
            fill_constant(state.delays[k], rows, part, time)
            fill_constant(state.units[k], rows, part, self.delays[k].timing.count_outputs(time))
        fill_constant(state.delays[-1], rows, x, time)

    def _enter(self, x: Tensor) -> Tensor:
        """Return the inputs [..., O'] of the first five branches, concatenated."""
        return torch.matmul(x, self.reduce).add_(self.reduce_bias).relu_()

    def _leave(self, outputs: Sequence[Tensor], own: Tensor) -> Tensor:
        """Return the output [..., O], from those of the first branches and the frame itself."""
        last = torch.matmul(own, self.last).add_(self.last_bias)
        joined = torch.addcmul(self.shift, torch.cat([*outputs, last], -1), self.scale).relu_()
        return torch.matmul(joined, self.out).add_(self.out_bias)


# Blocks: a graph convolution, a temporal unit and a residual.


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
