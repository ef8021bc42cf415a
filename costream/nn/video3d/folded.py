"""Parts of 3D networks in evaluation, frame by frame: batch norms folded in, each frame once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from costream.nn.operation import ConversionError
from costream.nn.pooling import MaxState, MeanState, TemporalMax
from costream.nn.state import State
from costream.nn.timing import ClockedState, Timing
from costream.nn.video3d.bottleneck import Bottleneck3dState
from costream.nn.video3d.frame_ring import FrameRingState
from costream.nn.video3d.tap_sums import TapSumsState

if TYPE_CHECKING:
    from costream.nn.chain_program import Map, ProgramBuilder
    from costream.nn.video3d.compiled_step import CompiledStep, StepBuffers


class FoldedPart(Protocol):
    """A part of a network in evaluation. Frames are [B, H, W, C], sizes (H, W, C)."""

    timing: Timing

    def init_state(self, batch_size: int, size: Sequence[int]) -> State:
        """Return the initial state of ``batch_size`` streams."""

    def output_size(self, size: Sequence[int]) -> tuple[int, int, int]:
        """Return the output size for inputs of ``size``."""

    def place(self, state: Any) -> Tensor | None:
        """Return memory where the next frame may be written, to save a copy, or None."""

    def step(self, x: Tensor, state: Any, rows: Sequence[int], out: Tensor | None) -> Tensor | None:
        """Take a frame of every stream, return an output or None.

        ``rows``: see ``FrameRing.push``. ``out``: memory for the output.
        """

    def compile(self, x: Map, program: ProgramBuilder) -> Map:
        """Append the step of a stream that has all of its memory to a program, return its output.

        What it keeps is held in the order of the state. ConversionError if it cannot be compiled.
        """


class FoldedHalving:
    """Maximum of each two frames; a ``FoldedPart``."""

    def __init__(self, pool: TemporalMax, like: Tensor) -> None:
        self.pool, self.timing, self._like = pool, pool.timing, like

    def init_state(self, batch_size: int, size: Sequence[int]) -> MaxState:  # noqa: D102
        return self.pool.init_state(batch_size, size, self._like)

    def output_size(self, size: Sequence[int]) -> tuple[int, int, int]:  # noqa: D102
        return size[0], size[1], size[2]

    def place(self, state: MaxState) -> None:  # noqa: D102
        return None

    def step(  # noqa: D102
        self, x: Tensor, state: MaxState, rows: Sequence[int], out: Tensor | None
    ) -> Tensor | None:
        if rows and not self.pool.padding:  # with padding, the pool knows which streams start
            x[list(rows)] = -torch.inf
        return self.pool.forward_step(x, state)

    def compile(self, x: Map, program: ProgramBuilder) -> Map:  # noqa: D102
        raise ConversionError("maxima over time cannot be compiled")


@dataclass
class VideoState(ClockedState):
    """State of a network."""

    steps: Tensor  # int64 [B], frames since the stream began
    parts: tuple[State, ...]
    mean: MeanState

    def __post_init__(self) -> None:
        super().__post_init__()
        self.taken: Any = self.steps.numpy()  # a NumPy view of the same memory, which is faster
        self.buffers: StepBuffers | None = None  # of compiled steps; parts are views of them

    def memories(self) -> list[FrameRingState | TapSumsState]:
        """Return the states of X3D's parts that hold frames or sums, in order."""
        memories: list[FrameRingState | TapSumsState] = []
        for part in self.parts:
            if isinstance(part, Bottleneck3dState):
                memories += [part.inputs] if part.inner is None else [part.inputs, part.inner]
            elif isinstance(part, FrameRingState):
                memories.append(part)
        return memories

    def compiled(self, step: CompiledStep) -> StepBuffers:
        """Return the buffers of compiled steps, in which the memories of all parts are then."""
        if self.buffers is None or self.buffers.step is not step:
            from costream.nn.video3d.compiled_step import StepBuffers

            self.buffers = StepBuffers(step, self.memories())
        return self.buffers

    def leave(self) -> None:
        """Move the memories out of the buffers of compiled steps, if they are there."""
        if self.buffers is not None:
            self.buffers.leave()
            self.buffers = None
