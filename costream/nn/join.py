"""Joins: a function of branches whose outputs wait for one another in queues.

Outputs are numbered. Output j of a sum is the sum of outputs j of its branches, in a clip as in a
stream; there, outputs of the faster branches wait for the slowest. So a branch
needs no delay, whatever strides and paddings it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from functools import reduce as fold
from typing import Any

import torch
from torch import Tensor

from costream.nn.parts import Part, PartState, frames_of, room
from costream.nn.state import zeros
from costream.nn.timing import ClockedState, Timing, in_order, store


def _sum(*xs: Tensor) -> Tensor:
    return fold(torch.add, xs)


def _product(*xs: Tensor) -> Tensor:
    return fold(torch.mul, xs)


def _maximum(*xs: Tensor) -> Tensor:
    return fold(torch.maximum, xs)


def _concatenated(*xs: Tensor) -> Tensor:
    return torch.cat(xs, 1)


# Functions with names, so that networks can be pickled.
REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "sum": _sum,
    "mul": _product,
    "max": _maximum,
    "concat": _concatenated,
}


def paired(*branches: Timing) -> Timing:
    """Return the timing of outputs that are made of outputs of the same number of all branches.

    Raises ValueError for branches of unequal stride.
    """
    strides = {b.stride for b in branches}
    if len(strides) > 1:
        raise ValueError(f"branches with strides {sorted(strides)}: outputs cannot be paired")
    delay, padding = max(b.delay for b in branches), max(b.padding for b in branches)
    return Timing(delay + padding + 1, padding, strides.pop())


@dataclass
class QueueState(ClockedState):
    """Outputs of a branch that wait for other branches: number i is in slot i mod n.

    The clock counts those that have come.
    """

    frames: Tensor  # [B, C, n, ...], or [B, m, C, n, ...]: see ``room``
    rank: int  # dimensions of the clips

    @cached_property
    def views(self) -> tuple[Tensor, ...]:
        """Each slot, [B, C, 1, ...]; of frames [B, C, n, ...]."""
        with torch.inference_mode(False):
            return torch.split(self.frames, 1, 2)


@dataclass
class JoinState(PartState):
    """State of a join; the clock counts the outputs."""

    queues: tuple[QueueState, ...]


class Join(Part):
    """A function of branches, called with outputs of the same numbers of all of them.

    Args:
        reduce: of clips [B, C, T, ...]: "sum", "mul", "max", "concat" (of channels), or a function
            that treats every frame alone.
        branches: their timing, None for a value without time. ``axes``: their dimension of time.
    """

    def __init__(
        self,
        reduce: str | Callable[..., Tensor],
        branches: Sequence[Timing | None],
        axes: Sequence[int] | None = None,
        out_axis: int = 2,
    ) -> None:
        super().__init__()
        if isinstance(reduce, str) and reduce not in REDUCTIONS:
            raise ValueError(f"reduce {reduce!r} is not one of {sorted(REDUCTIONS)}")
        self.reduce = REDUCTIONS[reduce] if isinstance(reduce, str) else reduce
        self.axes = [2] * len(branches) if axes is None else list(axes)
        self.axis = out_axis
        self.brief = False  # the function keeps nothing that it is called with; axes are all 2
        self.result = paired(*[b for b in branches if b is not None])
        self.slots = [
            None if b is None else -((b.delay - self.result.delay) // b.stride) for b in branches
        ]

    def forward(self, *clips: Any) -> Tensor:
        """Return the function of the first outputs of clips, as many as all have."""
        timed = [k for k, n in enumerate(self.slots) if n is not None]
        count = min(clips[k].shape[self.axes[k]] for k in timed)
        cut = list(clips)
        for k in timed:
            cut[k] = clips[k].narrow(self.axes[k], 0, count)
        return self.reduce(*cut)

    def start(self, batch_size: int, *clips: Any) -> JoinState:
        """Return the initial state; ``clips``: of one frame of one stream, of each branch."""
        empty = room(batch_size, self(*clips), self.out_axis, 0, merged=True)
        queues = []
        for clip, axis, slots in zip(clips, self.axes, self.slots, strict=True):
            if slots is not None:
                held = room(batch_size, clip, axis, slots + (self.brief and slots > 0))
                queues.append(QueueState(zeros(batch_size), held, clip.dim()))
        return JoinState(zeros(batch_size), empty, tuple(queues))

    def join(self, xs: Sequence[Any], state: JoinState) -> Tensor | None:
        """Take what came of each branch, or None, return the function of what is complete."""
        done = state.peek()
        if self.brief and (ready := self._at_once(xs, state, done)) is not None:
            state.tick()
            return self.reduce(*ready)
        timed = [k for k, n in enumerate(self.slots) if n is not None]
        came = [0 if xs[k] is None else int(xs[k].shape[self.axes[k]]) for k in timed]
        held = [queue.tick(n) - done for queue, n in zip(state.queues, came, strict=True)]
        count = min(h + n for h, n in zip(held, came, strict=True))
        ready = list(xs)
        for k, queue, waiting in zip(timed, state.queues, held, strict=True):
            if self.slots[k]:
                frames = frames_of(queue.frames, queue.rank)
                ready[k] = _through(xs[k], frames, self.axes[k], done, waiting, count)
        if not count:
            return None
        state.tick(count)
        return self.reduce(*ready)

    def _at_once(self, xs: Sequence[Any], state: JoinState, done: int) -> list[Any] | None:
        """Return what the function is called with when a frame of each branch has come.

        Frames that waited are views of the queues, which have a slot more. None in all other cases.
        """
        if any(x is None or x.shape[2] > 1 for x in xs):
            return None
        waiting = [queue.peek() - done for queue in state.queues]
        if waiting != self.slots or any(q.frames.dim() != q.rank for q in state.queues):
            return None
        ready = list(xs)
        for k, (queue, count) in enumerate(zip(state.queues, waiting, strict=True)):
            queue.tick()
            if count:
                slots = queue.views
                slots[(done + count) % len(slots)].copy_(xs[k].detach())
                ready[k] = slots[done % len(slots)]
        return ready


def _through(
    x: Tensor | None, frames: Tensor, axis: int, done: int, waiting: int, count: int
) -> Tensor | None:
    """Put ``x`` behind the frames that wait in a queue, take ``count`` from its front."""
    slots = frames.shape[axis]
    if x is not None and x.shape[axis] == 1 and count <= 1:
        out = x if not waiting else frames.narrow(axis, done % slots, 1)
        if count and waiting:
            out = out.clone()
        if not count or waiting:
            frames.narrow(axis, (done + waiting) % slots, 1).copy_(x.detach())
        return out if count else None
    if x is None and count == 1:
        return frames.narrow(axis, done % slots, 1).clone()
    new = frames.narrow(axis, 0, 0) if x is None else x
    rows = torch.cat([in_order(frames, done + waiting, axis), new], axis)
    store(frames, rows.detach(), done + waiting + new.shape[axis], axis)
    return rows.narrow(axis, slots - waiting, count) if count else None
