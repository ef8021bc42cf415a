"""The temporal unit of ST-GCN++ in evaluation, frame by frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from costream.models.skeleton.blocks import (
    DILATIONS,
    BranchedTemporalUnit,
    sides,
)
from costream.models.skeleton.temporal import constant_output, continual_convolution, fill_constant
from costream.nn.convolution import ConvolutionState
from costream.nn.graph import fold_convolution, scale_and_shift
from costream.nn.pooling import MaxState, TemporalMax
from costream.nn.state import State
from costream.nn.timing import DelayState, TemporalDelay, hide_unstarted


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
        # With different types of state.
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
        frame = self.delays[-1].past(x, state.delays[-1])
        ready = [out for out in outputs if out is not None]
        if frame is None or len(ready) < len(outputs):
            return None
        return self._leave(ready, frame)

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

    def _leave(self, outputs: Sequence[Tensor], frame: Tensor) -> Tensor:
        """Return the output [..., O] from the outputs of the first branches and the frame."""
        last = torch.matmul(frame, self.last).add_(self.last_bias)
        joined = torch.addcmul(self.shift, torch.cat([*outputs, last], -1), self.scale).relu_()
        return torch.matmul(joined, self.out).add_(self.out_bias)
