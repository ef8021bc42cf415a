"""Steps of a skeleton network: few large matrix products with weights that are folded once.

Batch norms are folded into the convolutions; the three partitions of a graph are one product,
and so are the nine frames of a temporal kernel. Absent persons cost nothing.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from costream.models.skeleton.blocks import SkeletonLayers
from costream.models.skeleton.folded_block import FoldedBlock
from costream.models.skeleton.step_plan import PersonState, SkeletonState, StepPlan
from costream.nn import fast
from costream.nn.folding import Folded
from costream.nn.graph import scale_and_shift
from costream.nn.state import zeros
from costream.nn.timing import Timing, check_shape, hide_unstarted, in_sequence

_PIECE = 128  # frames processed at once: bounds memory


class FoldedSkeleton(Folded):
    """A ``SkeletonNet`` in evaluation, ready to step."""

    def __init__(self, net: SkeletonLayers) -> None:
        super().__init__([*net.parameters(), *net.buffers()])
        self.mean, self.layers, self.form = net.mean, net.layer_timing, net.form
        self.statistics = net.statistics
        with torch.inference_mode(False), torch.no_grad():
            self._fold(net)

    def _fold(self, net: SkeletonLayers) -> None:
        shape = (net.persons, net.joints, net.channels)
        scale, shift = scale_and_shift(net.data_bn)
        self.scale, self.shift = scale.view(shape), shift.view(shape)
        before = [in_sequence(Timing(), *net.blocks[:k]) for k in range(len(net.blocks))]
        self.blocks = [FoldedBlock(b, t) for b, t in zip(net.blocks, before, strict=True)]
        layers = (net.fc,) if net.reading is None else (net.fc, net.reading)
        self.both = torch.cat([layer.weight.detach().T for layer in layers])
        self.weight, self.bias = self.both[: net.fc.in_features], net.fc.bias.detach()
        self.reading = None if net.reading is None else self.both[net.fc.in_features :]
        self.nobody = self.weight.new_zeros(0, net.joints, self.weight.shape[0])
        self.rests: list[Tensor] = []  # [M, V, C], each block's input for absent persons
        x = self.shift
        for block in self.blocks:
            self.rests.append(x)
            x = block.rest(x)
        # For persons low to high - 1: scale and shift of their frames, [M', 1, V, C], and the
        # contribution of the others to the mean, [O].
        self.ranges: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}
        rest, persons = x.mean(1), net.persons
        for low, high in itertools.combinations_with_replacement(range(persons + 1), 2):
            others = (rest[:low].sum(0) + rest[high:].sum(0)) / persons
            present = slice(low, high)
            self.ranges[low, high] = (
                self.scale[present, None],
                self.shift[present, None],
                others,
            )
        self.share = 1 / (persons * net.joints)

    def init_state(self, batch_size: int) -> SkeletonState:
        """Return the initial state of a batch of streams."""
        persons, joints, channels = self.shift.shape
        numbers = (persons, joints * channels)
        return SkeletonState(
            zeros(batch_size),
            zeros(batch_size),
            zeros(batch_size, persons),
            zeros(batch_size, persons),
            tuple(
                PersonState(tuple(b.init_state(batch_size, joints) for b in self.blocks))
                for _ in range(persons)
            ),
            self.mean.init_state(batch_size, self.weight.shape[:1], self.weight),
            None
            if self.statistics is None
            else self.statistics.init_state(batch_size, numbers, self.weight),
        )

    def step(self, x: Tensor, state: SkeletonState) -> Tensor | None:
        """Take a frame [B, M, V, C] of every stream, return logits [B, K] or None.

        Raises ValueError for frames of another shape.
        """
        check_shape(x.shape, (*state.steps.shape, *self.shift.shape))
        ages = state.steps.clone() if self._has_unstarted(state) else None
        low, high = self._awake(x.unsqueeze(1), state)
        time = state.tick()
        scale, shift, others = self.ranges[low, high]
        if high > low:
            if ages is None:
                y = self._plan(state, low, high).run(x, time)
            else:
                frames = torch.addcmul(shift, x.transpose(0, 1)[low:high], scale)
                y = self._run_unstarted(frames.flatten(0, 1), state.bodies(low, high), ages)
        else:
            y = self.nobody if time == self.layers.next_output(time) else None
        means, held = None, state.statistics
        if self.statistics is not None and held is not None:
            means = self.statistics.push(x.flatten(2), held, y is not None)
        if y is None:
            return None
        one = len(y) == 1  # the same sum with one operation
        total = y.sum(1) if one else y.view(high - low, len(x), *y.shape[1:]).sum((0, 2))
        feature = torch.add(others, total, alpha=self.share)
        if ages is not None:
            feature = hide_unstarted(feature, ages, self.layers.delay)
        mean = self.mean.forward_step(feature, state.mean)
        if mean is None:
            return None
        if means is None or self.statistics is None:
            return torch.addmm(self.bias, mean, self.weight)
        described = self.statistics.describe(means, x.dtype)
        rows = described.mean(1) if described.shape[1] > 1 else described.view(len(x), -1)
        return torch.addmm(self.bias, torch.cat([mean, rows], 1), self.both)

    def _read(self, x: Tensor, state: SkeletonState) -> Tensor | None:
        """Take T frames [B, T, M, V, C], return logits [B, T', K] of their statistics, if any."""
        if self.statistics is None or self.reading is None or state.statistics is None:
            return None
        time = state.statistics.peek()
        rows = self.statistics.forward_steps(x.flatten(3), state.statistics).mean(2)
        given = rows[:, self.layers.next_output(time) - time :: self.layers.stride]
        return torch.matmul(given, self.reading)

    def _plan(self, state: SkeletonState, low: int, high: int) -> StepPlan:
        plan = state.plans.get((low, high))
        if plan is None or plan.blocks is not self.blocks:
            scale, shift, _ = self.ranges[low, high]
            plan = StepPlan(self.blocks, state.bodies(low, high), low, scale, shift)
            state.plans[low, high] = plan
        return plan

    def _run_unstarted(self, x: Tensor, bodies: PersonState, ages: Tensor) -> Tensor | None:
        """Take a frame [N, V, C] of persons, return the last block's output [N, V, O], or None.

        ``ages``: int64 [B], steps of each stream, some of which have not reached all blocks.
        """
        ages = ages.repeat(len(x) // len(ages))
        for block, block_state in zip(self.blocks, bodies.blocks, strict=True):
            y = block.step(x, block_state, ages)
            if y is None:
                return None
            x = y
        return x

    def steps(self, x: Tensor, state: SkeletonState) -> Tensor:
        """Take T frames [B, T, M, V, C], return the outputs of T steps, [B, T', K]."""
        check_shape((len(x), *x.shape[2:]), (*state.steps.shape, *self.shift.shape))
        logits = [self.bias.new_zeros(len(x), 0, len(self.bias))]
        for piece in torch.split(x, _PIECE, 1):
            if self._has_unstarted(state):
                given = [self.step(frame, state) for frame in piece.unbind(1)]
                logits += [out.unsqueeze(1) for out in given if out is not None]
            elif piece.shape[1]:
                logits.append(self._piece(piece, state))
        return torch.cat(logits, 1)

    def _piece(self, x: Tensor, state: SkeletonState) -> Tensor:
        read = self._read(x, state)
        low, high = self._awake(x, state)
        time = state.tick(x.shape[1])
        scale, shift, others = self.ranges[low, high]
        frames = torch.addcmul(shift.unsqueeze(1), x.movedim(2, 0)[low:high], scale.unsqueeze(1))
        y = frames.flatten(0, 1)
        for block, block_state in zip(self.blocks, state.bodies(low, high).blocks, strict=True):
            if y.shape[:2].numel():
                y = block.steps(y, block_state)
        if not y.shape[:2].numel():
            count = self.layers.count_outputs(time + x.shape[1]) - self.layers.count_outputs(time)
            y = self.nobody.new_zeros(len(y), count, *self.nobody.shape[1:])
        total = torch.unflatten(y, 0, (high - low, len(x))).sum((0, 3))
        means = self.mean.forward_steps(torch.add(others, total, alpha=self.share), state.mean)
        logits = torch.matmul(means, self.weight) + self.bias
        return logits if read is None else logits.add_(read)

    def _has_unstarted(self, state: SkeletonState) -> bool:
        """Return whether a stream is so new that ``hide_unstarted`` must suppress outputs.

        In a batch whose streams all began with it, no output comes too early.
        """
        if self.form != "same":
            return False
        ages: list[int] = state.counters[0].tolist()
        clock: list[int] = state.clock.tolist()
        return min(ages) < self.layers.delay and min(ages) != max(clock)

    def _awake(self, x: Tensor, state: SkeletonState) -> tuple[int, int]:
        """Count frames [B, T, M, V, C], return the range of persons to compute.

        A person who rests in every stream falls asleep, and wakes when no longer at rest.
        """
        steps, empty, asleep = state.counters
        ages, counts = steps.tolist(), empty.tolist()
        numbers = x.flatten(3)
        seen: Any = (
            np.logical_or.reduce(numbers.numpy(), 3) if fast.has_numpy_view(x) else numbers.any(3)
        )
        present: list[list[list[bool]]] = seen.tolist()  # stream, frame, person
        whole = all(all(map(all, frames)) for frames in present)
        if whole and not any(any(map(any, rows)) for rows in (counts, asleep.tolist())):
            steps += x.shape[1]
            return 0, x.shape[2]
        awake: list[int] = []
        for stream, frames in enumerate(present):
            for m, count in enumerate(counts[stream]):
                seen = [frame[m] for frame in frames]
                there = any(seen)
                if there or not self._rests(count, ages[stream]):
                    awake.append(m)
                counts[stream][m] = seen[::-1].index(True) if there else count + len(seen)
        steps += x.shape[1]
        empty[:] = counts
        low, high = (min(awake), max(awake) + 1) if awake else (0, 0)
        self._wake(state, low, high)
        return low, high

    def _rests(self, empty: int, steps: int) -> bool:
        """Return whether the blocks see empty frames only, if the next frame is empty too.

        With zero padding before frame 0, this is not so near it.
        """
        fresh = self.form == "none" and empty == steps
        return fresh or empty + 1 >= self.layers.receptive_field

    def _wake(self, state: SkeletonState, low: int, high: int) -> None:
        """Update the states of these persons, let the others sleep."""
        flags = state.counters[2]
        for m, person in enumerate(state.persons):
            asleep: list[int] = flags[:, m].tolist()
            if not low <= m < high:
                flags[:, m] = 1
            elif any(asleep):
                rows = [stream for stream, flag in enumerate(asleep) if flag]
                time = max(state.clock.tolist())
                for block, memory, x in zip(self.blocks, person.blocks, self.rests, strict=True):
                    block.wake(memory, rows, x[m], time)
                flags[:, m] = 0
