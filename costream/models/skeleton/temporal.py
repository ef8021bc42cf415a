"""Temporal units and blocks of skeleton networks for single frames in evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from costream.models.skeleton.blocks import (
    TemporalUnit,
)
from costream.nn.convolution import ConvolutionState, TemporalConvolution
from costream.nn.graph import scale_and_shift
from costream.nn.pooling import MaxState
from costream.nn.state import State
from costream.nn.timing import DelayState, hide_unstarted


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
    # As rows [O, K I], which compiled products read; the matrix of a step is their transposed view.
    rows = weight.detach().permute(0, 2, 1).clone(memory_format=torch.contiguous_format)
    conv.weight = nn.Parameter(rows.permute(0, 2, 1), requires_grad=False)
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
