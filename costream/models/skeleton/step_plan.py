"""State of skeleton networks, and steps of their blocks on its memory, without new tensors.

An operation of a step takes a few microseconds whatever its size, and several times as long when
the weights of a product, read before it, have pushed its code and its operands out of the cache.
A step of ten blocks has a hundred of them. Without creating views, counters and tensors, a step
of ST-GCN takes 3.2 ms in place of 3.5; its products with weights alone take 2.4. When a stream is
long enough, blocks that are faster so become compiled steps (``nn/graph_kernels.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from costream.models.skeleton.folded_block import FoldedBlock, SkeletonBlockState
from costream.models.skeleton.temporal import FoldedConvolution
from costream.nn import fast
from costream.nn.choices import prefers_compiled
from costream.nn.convolution import ConvolutionState
from costream.nn.graph import FoldedGraphConvolution
from costream.nn.pooling import MeanState
from costream.nn.state import State
from costream.nn.timing import ClockedState

_WORTH = 1 << 23  # multiply-accumulates of a step that saves 0.1 ms when compiled


class StepPlan:
    """Steps through blocks, with the same results as ``FoldedBlock.step``.

    Args:
        blocks: of a network in evaluation. ``bodies``: their state of N = M' B persons.
        low: the first of the M' persons. ``scale``, ``shift``: of their frames, [M', 1, V, C].
    """

    def __init__(
        self, blocks: list[FoldedBlock], bodies: PersonState, low: int, scale: Tensor, shift: Tensor
    ) -> None:
        self.blocks, self.scale, self.shift = blocks, scale, shift
        persons, _, joints, channels = scale.shape
        self.present = slice(low, low + persons)
        with torch.inference_mode(False):
            self.frames = scale.new_empty(persons, bodies.batch_size // persons, joints, channels)
            self.rows = self.frames.flatten(0, 1)
        parts = self.frames, scale, shift
        self.arrays = [part.numpy() for part in parts] if fast.has_numpy_view(self.frames) else None
        self._steps: list[tuple[Callable[[Tensor, int], Tensor | None], int, int]] = []
        self.plans: list[BlockPlan] = []  # of blocks that may have compiled steps
        self._single_steps = 0  # that could have been compiled ones
        self._is_compiled = False
        for block, block_state in zip(blocks, bodies.blocks, strict=True):
            temporal, step = block.temporal, _ordinary(block, block_state)
            if isinstance(temporal, FoldedConvolution) and temporal.conv.kernel > 1:
                self.plans.append(BlockPlan(block, block_state, joints))
                step = self.plans[-1].step
            self._steps.append((step, block.timing.delay, block.timing.stride))

    def run(self, x: Tensor, time: int) -> Tensor | None:
        """Take frame number ``time`` [B, M, V, C], return the last block's output, or None.

        The output [N, V, O] is overwritten by the next step.
        """
        if self.arrays is not None and fast.has_numpy_view(x):
            frames, scale, shift = self.arrays
            np.multiply(x.numpy().swapaxes(0, 1)[self.present], scale, out=frames)
            frames += shift
        else:
            torch.addcmul(self.shift, x.transpose(0, 1)[self.present], self.scale, out=self.frames)
        x = self.rows
        self._compile()
        for step, delay, stride in self._steps:
            y = step(x, time)
            if y is None:
                return None
            x, time = y, (time - delay) // stride
        return x

    def _compile(self) -> None:
        """Let the blocks use compiled steps when there have been enough for that."""
        if self._is_compiled or not fast.enabled() or not fast.compiles(self.frames):
            return
        self._single_steps += max(1, sum(plan.macs for plan in self.plans) // _WORTH)
        if fast.kernels_after(self._single_steps):
            room = self.rows.new_empty(max((plan.room for plan in self.plans), default=0))
            for plan in self.plans:
                plan.compile(room)
            self._is_compiled = True


def _ordinary(
    block: FoldedBlock, block_state: SkeletonBlockState
) -> Callable[[Tensor, int], Tensor | None]:
    return lambda x, time: block.step(x, block_state)


class BlockPlan:
    """A block whose temporal unit is a convolution; see ``StepPlan``."""

    def __init__(self, block: FoldedBlock, block_state: SkeletonBlockState, joints: int) -> None:
        conv = cast(FoldedConvolution, block.temporal).conv
        memory = cast(ConvolutionState, block_state.temporal)
        frames = memory.frames
        count, slots, width = frames.shape[0], conv.kernel - 1, conv.in_width
        self._block, self._residual, self._ring = block, block_state.residual, frames
        with torch.inference_mode(False):
            rows, matrix = frames.view(count * joints, -1), conv.matrix  # [N V, (K - 1) C]
            self.slots = rows.view(-1, slots, width).unbind(1)
            # Of each slot with the oldest frame: the frames from there on and their weights, and,
            # when it has the newest, those up to there and theirs.
            self.older, self.newer = [], []
            for k in range(slots):
                self.older.append((rows[:, k * width :], matrix[: (slots - k) * width]))
                self.newer.append((rows[:, : (k + 1) * width], matrix[(slots - k) * width :]))
            self.y = frames.new_empty(count * joints, conv.out_width)
            self.frame = self.y.view(count, joints, -1)
            spatial = block.spatial
            self.graph: GraphPlan | None = None
            if type(spatial) is FoldedGraphConvolution:
                self.graph = GraphPlan(spatial, count, joints, self.slots)
            self.spatial: Callable[[Tensor, int], Any] = (
                self.graph.step
                if self.graph is not None
                else lambda x, slot: self.slots[slot].copy_(spatial(x).flatten(0, 1))
            )
            self.residuals = block_state.residual.frames.unbind(1) if block_state.residual else ()
        self.matrix, self.bias, self.beside = conv.matrix, cast(Tensor, conv.bias), block.beside
        self.delay, self.stride = block.timing.delay, block.timing.stride
        self.has_residual = block.delay is not None
        self.wait = block.delay.delay if block.delay is not None else 0
        states = [memory, *([block_state.residual] if block_state.residual else [])]
        self.clocks = [state.clock.numpy() for state in states]
        mixed = 0 if self.graph is None else self.graph.mixed.numel()
        self._mixed = max(mixed, self.y.numel())  # numbers in memory that compiled steps need
        self.room = self._mixed + conv.kernel * width * len(self.y)
        self.macs = len(self.y) * sum(matrix.numel() for matrix in block.matrices())
        self.compiled: Callable[[int, Any], None] | None = None

    def step(self, x: Tensor, time: int) -> Tensor | None:
        """Take frame number ``time`` [N, V, C], return [N, V, O] or None."""
        for clock in self.clocks:
            clock.fill(time + 1)
        if self.compiled is not None and fast.enabled():
            self.compiled(time, x.contiguous().numpy())
            late = time - self.delay
            return None if late < 0 or late % self.stride else self.frame
        slot, slots = time % len(self.slots), len(self.residuals) if self.wait else 0
        late = time - self.delay
        is_due = late >= 0 and not late % self.stride
        if is_due:
            torch.addmm(self.bias, *self.older[slot], out=self.y)
        self.spatial(x, slot)
        if slots and not time % self.stride:
            self.residuals[time // self.stride % slots].copy_(x)
        if not is_due:
            return None
        past = None
        if self.has_residual:  # without a delay it is the frame itself
            past = self.residuals[(time - self.wait) // self.stride % slots] if slots else x
        self.y.addmm_(*self.newer[slot])
        if past is not None and self.beside is None:
            self.frame.add_(past)
        elif past is not None:
            self.y.addmm_(past.reshape(-1, past.shape[2]), cast(Tensor, self.beside))
        return self.frame.relu_()

    def compile(self, room: Tensor) -> None:
        """Use the compiled step from now on, if there is one and it is faster.

        ``room``: memory [N] of at least ``room`` numbers, which other blocks may use, too.
        """
        count, joints = self.frame.shape[:2]
        trial = BlockPlan(self._block, self._block.init_state(count, joints), joints)
        ours, x = trial._compiled_step(room), self.y.new_zeros(count, joints, self._block.in_width)
        name = f"graph block of {self.macs} products, {count} x {joints} joints"
        if ours is not None and prefers_compiled(
            name, lambda: ours(trial.delay, x.numpy()), lambda: trial.step(x, trial.delay)
        ):
            self.compiled = self._compiled_step(room)

    def _compiled_step(self, room: Tensor) -> Callable[[int, Any], None] | None:
        """Return a function of a frame's number and the frame, which sets ``y``, or None."""
        graph = self.graph
        if graph is None or graph.products.bias.dim() == 2:  # it differs between joints
            return None
        from costream.nn import graph_kernels as kernels

        (count, joints, out), products = self.frame.shape, graph.products
        middle, width = products.weight.shape[1], self._block.in_width
        rings = self._residual is not None and self.wait > 0
        sizes: list[int] = [count, joints, width, middle, out, len(self.slots)]
        sizes += [self.delay, self.stride, products.adds_input, self.has_residual]
        sizes += [self.wait, len(self.residuals) if rings else 0]
        beside = self.y.new_empty(0, 0) if self.beside is None else self.beside
        past = self.y if self._residual is None else self._residual.frames
        window = room[self._mixed :]
        weights = [products.weight.T, products.bias, self.matrix.T, self.bias, beside.T]
        tensors = [*(weight.contiguous() for weight in weights), self.y.new_zeros(out)]
        tensors += [self._ring, past, room, window, self.y]
        arrays = tuple(tensor.view(-1).numpy() for tensor in tensors)
        numbers = np.array(sizes, np.uint64), graph.graph[0].contiguous().numpy()
        return lambda time, x: kernels.step(time, numbers[0], x, numbers[1], arrays)


class GraphPlan:
    """A ``FoldedGraphConvolution`` with its buffers."""

    def __init__(
        self, fold: FoldedGraphConvolution, count: int, joints: int, outs: Sequence[Tensor]
    ) -> None:
        self.products, products, self.outs = fold.products, fold.products, outs
        width = len(products.weight) * joints // len(fold.graph)
        self.graph = fold.graph.expand(count, -1, -1)
        self.mixed = fold.graph.new_empty(count, len(fold.graph), width)
        self.rows = self.mixed.view(count * joints, -1)
        self.y = fold.graph.new_empty(count * joints, products.weight.shape[1])
        self.bias = products.bias.repeat(count, 1) if products.bias.dim() == 2 else products.bias

    def step(self, x: Tensor, slot: int) -> None:
        """Write the output [N V, O] for a frame [N, V, C] into ``outs[slot]``."""
        torch.bmm(self.graph, x, out=self.mixed)
        torch.addmm(self.bias, self.rows, self.products.weight, out=self.y)
        if self.products.adds_input:
            self.y.add_(x.view(-1, x.shape[2]))
        torch.clamp_min(self.y, 0, out=self.outs[slot])


@dataclass
class PersonState(State):
    """State of all blocks for one person of every stream."""

    blocks: tuple[SkeletonBlockState, ...]


@dataclass
class SkeletonState(ClockedState):
    """State of a network for each stream.

    A person who has been absent for long is asleep: its state is out of date, and rebuilt on
    waking.
    """

    steps: Tensor  # int64 [B], frames since the stream began
    empty: Tensor  # int64 [B, M], newest consecutive frames without this person
    asleep: Tensor  # int64 [B, M], 0 or 1
    persons: tuple[PersonState, ...]
    mean: MeanState
    statistics: MeanState | None  # of a network with statistics

    def __post_init__(self) -> None:
        """Store all persons in one tensor, so that one matrix product can process several."""
        super().__post_init__()
        # The counters' memory as NumPy arrays, with a tenth of the access time.
        self.counters: tuple[Any, ...] = (
            self.steps.numpy(),
            self.empty.numpy(),
            self.asleep.numpy(),
        )
        self.plans: dict[tuple[int, int], StepPlan] = {}  # of steps for persons low to high - 1
        self._views: dict[tuple[int, int], PersonState] = {}
        self._joined = PersonState.cat(self.persons)
        self.persons = tuple(self.bodies(m, m + 1) for m in range(len(self.persons)))

    def bodies(self, low: int, high: int) -> PersonState:
        """Return the state of persons ``low`` to ``high - 1``, rows (person, stream)."""
        if (low, high) not in self._views:
            rows = slice(low * self.batch_size, high * self.batch_size)
            self._views[low, high] = self._joined._map([self._joined], lambda t: t[0][rows])
        return self._views[low, high]
