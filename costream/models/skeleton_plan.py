"""Steps of skeleton blocks on the memory of one state, with preallocated views and buffers.

An operation of a step takes a few microseconds whatever its size, and several times as long when
the weights of a product, read before it, have pushed its code and its operands out of the cache.
A step of ten blocks has a hundred of them. Without creating views, counters and tensors, a step
of ST-GCN takes 3.2 ms in place of 3.5; its products with weights alone take 2.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from costream.models.skeleton.temporal import FoldedConvolution
from costream.models.skeleton_state import PersonState, SkeletonBlockState
from costream.nn.convolution import ConvolutionState
from costream.nn.graph import FoldedGraphConvolution

if TYPE_CHECKING:
    from costream.models.skeleton_fold import FoldedBlock


class StepPlan:
    """Steps through blocks, with the same results as ``FoldedBlock.step``.

    Args:
        blocks: of a network in evaluation. ``bodies``: their state of N persons.
        joints: V.
    """

    def __init__(self, blocks: list[FoldedBlock], bodies: PersonState, joints: int) -> None:
        self.blocks = blocks
        self._steps: list[tuple[Callable[[Tensor, int], Tensor | None], int, int]] = []
        for block, kept in zip(blocks, bodies.blocks, strict=True):
            temporal, step = block.temporal, _ordinary(block, kept)
            if isinstance(temporal, FoldedConvolution) and temporal.conv.kernel > 1:
                step = BlockPlan(block, kept, joints).step
            self._steps.append((step, block.timing.delay, block.timing.stride))

    def run(self, x: Tensor, time: int) -> Tensor | None:
        """Take frame number ``time`` [N, V, C], return the last block's output, or None.

        The output [N, V, O] is overwritten by the next step.
        """
        for step, delay, stride in self._steps:
            y = step(x, time)
            if y is None:
                return None
            x, time = y, (time - delay) // stride
        return x


def _ordinary(
    block: FoldedBlock, kept: SkeletonBlockState
) -> Callable[[Tensor, int], Tensor | None]:
    return lambda x, time: block.step(x, kept)


class BlockPlan:
    """A block whose temporal unit is a convolution; see ``StepPlan``."""

    def __init__(self, block: FoldedBlock, kept: SkeletonBlockState, joints: int) -> None:
        conv = cast(FoldedConvolution, block.temporal).conv
        memory = cast(ConvolutionState, kept.temporal)
        frames = memory.frames
        count, before, width = frames.shape[0], conv.kernel - 1, conv.in_width
        with torch.inference_mode(False):
            # [N V, L, C]; the first K - 1 of L slots repeat the last ones of the previous lap
            ring = frames.view(count * joints, -1, width)
            laps, flat = ring.shape[1] - before, ring.flatten(1)
            self.slots = ring[:, before:].unbind(1)
            self.windows = [flat.narrow(1, k * width, conv.kernel * width) for k in range(laps)]
            self.front, self.back = ring[:, :before], ring[:, -before:]
            self.y = frames.new_empty(count * joints, conv.out_width)
            self.frame = self.y.view(count, joints, -1)
            spatial = block.spatial
            self.spatial: Callable[[Tensor, Tensor], Any] = (
                GraphPlan(spatial, count, joints).step
                if type(spatial) is FoldedGraphConvolution
                else lambda x, out: out.copy_(spatial(x).flatten(0, 1))
            )
            self.kept = kept.residual.frames.unbind(1) if kept.residual else ()
        self.matrix, self.bias, self.beside = conv.matrix, cast(Tensor, conv.bias), block.beside
        self.delay, self.stride = block.timing.delay, block.timing.stride
        self.wait = block.delay.delay if block.delay is not None else 0
        states = [memory, *([kept.residual] if kept.residual else [])]
        self.clocks = [state.clock.numpy() for state in states]

    def step(self, x: Tensor, time: int) -> Tensor | None:
        """Take frame number ``time`` [N, V, C], return [N, V, O] or None."""
        for clock in self.clocks:
            clock.fill(time + 1)
        slot, slots = time % len(self.slots), len(self.kept)
        if time and not slot:
            self.front.copy_(self.back)
        self.spatial(x, self.slots[slot])
        if slots and not time % self.stride:
            self.kept[time // self.stride % slots].copy_(x)
        late = time - self.delay
        if late < 0 or late % self.stride:
            return None
        torch.addmm(self.bias, self.windows[slot], self.matrix, out=self.y)
        if slots:
            past = self.kept[(time - self.wait) // self.stride % slots]
            if self.beside is None:
                self.frame.add_(past)
            else:
                self.y.addmm_(past.reshape(-1, past.shape[2]), self.beside)
        return self.frame.relu_()


class GraphPlan:
    """A ``FoldedGraphConvolution`` with its buffers."""

    def __init__(self, fold: FoldedGraphConvolution, count: int, joints: int) -> None:
        self.products, products = fold.products, fold.products
        partitions = len(fold.graph) // joints
        width = products.weight.shape[0] // partitions
        self.graph = fold.graph.expand(count, -1, -1)
        self.mixed = fold.graph.new_empty(count, len(fold.graph), width)
        self.rows = self.mixed.view(count * joints, -1)
        self.y = fold.graph.new_empty(count * joints, products.weight.shape[1])
        self.bias = products.bias.repeat(count, 1) if products.bias.dim() == 2 else products.bias

    def step(self, x: Tensor, out: Tensor) -> None:
        """Write the output [N V, O] for a frame [N, V, C] into ``out``."""
        torch.bmm(self.graph, x, out=self.mixed)
        products, own = self.products, x.view(-1, x.shape[2])
        if products.adds_input:
            torch.addmm(own, self.rows, products.weight, out=self.y).add_(self.bias)
        else:
            torch.addmm(self.bias, self.rows, products.weight, out=self.y)
        if products.beside is not None:
            self.y.addmm_(own, products.beside)
        torch.clamp_min(self.y, 0, out=out)
