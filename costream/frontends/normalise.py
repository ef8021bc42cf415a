"""Skeleton normalisation for position, size and heading, step by step.

It is causal. Coordinates of joints that are not visible are zero before and after.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from costream.layouts import Layout
from costream.nn.state import State, zeros

_SMALLEST = 1e-4  # skeletons whose mean bone length is below this are ignored


@dataclass
class ReferenceFrameState(State):
    """Frame of reference of each stream; the meaning of the values depends on the normaliser."""

    values: Tensor  # float32 [B, K]
    counts: Tensor  # float32 [B, 3], steps in each mean, up to its memory


class Normaliser(Protocol):
    """Transforms joints [B, P, V, A], visible where [B, P, V], into a frame of reference.

    The first person is the main one; ``changed``, bool [B]: a different one than before. Returns
    the joints and, bool [B], whether there is a frame of reference yet.
    """

    macs: int  # multiply-accumulates per joint

    def init_state(self, batch_size: int, like: Tensor) -> ReferenceFrameState: ...  # noqa: D102

    def __call__(  # noqa: D102
        self, x: Tensor, seen: Tensor, changed: Tensor, state: ReferenceFrameState
    ) -> tuple[Tensor, Tensor]: ...


class FixedScaling:
    """``scale`` times the coordinates around ``middle``.

    Image coordinates are 0 to 1 along x and, as y is up, 0 to -1 along y; the middle is
    (0.5, -0.5). Scale (1, 1) is then what continual-skeletons does for Kinetics; pyskl, whose y
    is down, has (2, -2).
    """

    macs = 0

    def __init__(self, middle: Sequence[float] = (0.0,), scale: Sequence[float] = (1.0,)) -> None:
        self._middle, self._scale = tuple(middle), tuple(scale)

    def init_state(self, batch_size: int, like: Tensor) -> ReferenceFrameState:
        """Return an empty state."""
        return ReferenceFrameState(zeros(batch_size, 0, like=like), zeros(batch_size, 0, like=like))

    def __call__(
        self, x: Tensor, seen: Tensor, changed: Tensor, state: ReferenceFrameState
    ) -> tuple[Tensor, Tensor]:
        """Return the joints; they are always ready."""
        moved = (x - x.new_tensor(self._middle)) * x.new_tensor(self._scale) * seen[..., None]
        return moved, torch.ones_like(changed)


class NTUNormaliser:
    """Streaming form of the preparation of NTU RGB+D for graph networks (2s-AGCN).

    The middle of the main person's spine becomes the origin of every step (``fixed``: of the
    first); the first valid step turns the spine to +z and then the shoulders, left to right, to
    +x. While the main person is absent, its last position is used.
    """

    macs = 9
    base, spine, left, right = 0, 1, 4, 8  # ntu-25: spine base, mid spine, shoulders

    def __init__(self, *, fixed: bool) -> None:
        self._fixed = fixed

    def init_state(self, batch_size: int, like: Tensor) -> ReferenceFrameState:
        """Return the initial state: origin [3], rotation [9]."""
        return ReferenceFrameState(
            zeros(batch_size, 12, like=like), zeros(batch_size, 1, like=like)
        )

    def __call__(
        self, x: Tensor, seen: Tensor, changed: Tensor, state: ReferenceFrameState
    ) -> tuple[Tensor, Tensor]:
        """Return the joints in that frame of reference, once there is one."""
        main, ok = x[:, 0], seen[:, 0]
        known = state.counts[:, 0] > 0
        first = ok[:, [self.base, self.spine, self.left, self.right]].all(1) & ~known
        centred = ok[:, self.spine] & (first if self._fixed else (first | known))
        origin = torch.where(centred[:, None], main[:, self.spine], state.values[:, :3])
        up = torch.tensor([0.0, 0.0, 1.0]).to(x)
        stand = _shortest_rotation(main[:, self.spine] - main[:, self.base], up)
        across = torch.einsum("bij,bj->bi", stand, main[:, self.right] - main[:, self.left])
        turn = _shortest_rotation(across, up.roll(1)) @ stand
        turn = torch.where(first[:, None], turn.flatten(1), state.values[:, 3:])
        state.values.copy_(torch.cat((origin, turn), 1))
        state.counts[:, 0] += first
        turned = (x - origin[:, None, None]) @ turn.view(-1, 1, 3, 3).mT
        return turned * seen[..., None], known | first


class BodyNormaliser:
    """Person-centred frame: hips at the origin, bones of mean length 1, heading aligned.

    Each is a running mean over the main person's last steps: ``origin``, ``unit`` and
    ``heading`` are its memory in steps (None: all of them; 0: not done; 1: each step by
    itself). Heading rotates about the vertical (y) until shoulders and hips, left to right, point
    to +x; it needs three axes. Coordinates must be right-handed.
    """

    def __init__(
        self,
        layout: Layout,
        axes: int,
        origin: int | None,
        unit: int | None,
        heading: int | None,
    ) -> None:
        self.macs = 4 if axes == 3 and heading != 0 else 0
        memory = (origin, unit, heading if axes == 3 else 0)
        self._used = torch.tensor([steps != 0 for steps in memory])
        self._memory = torch.tensor([math.inf if steps is None else steps for steps in memory])
        self._mean_of = torch.tensor([0] * axes + [1, 2, 2])  # which mean each value is part of
        self._moves, self._turns = memory[0] != 0, memory[2] != 0
        self._axes, self._centre = axes, layout.centre
        self._child = torch.tensor([child for child, _ in layout.bones])
        self._parent = torch.tensor([parent for _, parent in layout.bones])
        sides = [
            (layout.joints.index(f"left {part}"), layout.joints.index(f"right {part}"))
            for part in ("shoulder", "hip")
            if f"left {part}" in layout.joints and f"right {part}" in layout.joints
        ]
        self._left, self._right = torch.tensor(sides, dtype=torch.long).view(-1, 2).unbind(1)

    def init_state(self, batch_size: int, like: Tensor) -> ReferenceFrameState:
        """Return the initial state: origin [A], unit, heading [2]."""
        values = zeros(batch_size, self._axes + 3, like=like)
        return ReferenceFrameState(values, zeros(batch_size, 3, like=like))

    def __call__(
        self, x: Tensor, seen: Tensor, changed: Tensor, state: ReferenceFrameState
    ) -> tuple[Tensor, Tensor]:
        """Return the joints in that frame of reference, once the hips have been visible."""
        state.values.masked_fill_(changed[:, None], 0.0)
        state.counts.masked_fill_(changed[:, None], 0.0)
        self._follow(*self._measure(x[:, 0], seen[:, 0]), state)
        origin, unit, heading = torch.tensor_split(state.values, (self._axes, self._axes + 1), 1)
        placed = (x - origin[:, None, None]) / torch.where(unit > 0, unit, 1.0)[:, None, None]
        if self._turns:
            placed = _turn(placed, heading)
        ready = state.counts[:, 0] > 0 if self._moves else torch.ones_like(changed)
        return placed * seen[..., None], ready

    def _measure(self, main: Tensor, ok: Tensor) -> tuple[Tensor, Tensor]:
        """Return origin, unit and heading [B, A + 3] of a step, and which are known [B, 3]."""
        length, has_bones = self._length(main, ok)
        across, has_sides = self._across(main, ok)
        known = torch.stack((ok[:, self._centre], has_bones, has_sides), 1)
        return torch.cat((main[:, self._centre], length, across), 1), known

    def _follow(self, values: Tensor, known: Tensor, state: ReferenceFrameState) -> None:
        """Update the running means with ``values`` [B, A + 3] where they are ``known`` [B, 3]."""
        device = values.device
        known = known & self._used.to(device)
        torch.minimum(state.counts + known, self._memory.to(device), out=state.counts)
        weight = (known / state.counts.clamp(min=1.0))[:, self._mean_of.to(device)]
        state.values.lerp_(values, weight)

    def _length(self, main: Tensor, ok: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean length [B, 1] of the visible bones and whether there is one."""
        child, parent = self._child.to(main.device), self._parent.to(main.device)
        both = ok[:, child] & ok[:, parent]
        lengths = (main[:, child] - main[:, parent]).norm(dim=-1) * both
        mean = lengths.sum(1, keepdim=True) / both.sum(1, keepdim=True).clamp(min=1)
        return mean, mean[:, 0] > _SMALLEST

    def _across(self, main: Tensor, ok: Tensor) -> tuple[Tensor, Tensor]:
        """Return the direction from left to right [B, 2] (x, z) and whether it is known."""
        if not self._turns:
            return main.new_zeros(len(main), 2), torch.zeros_like(ok[:, 0])
        left, right = self._left.to(main.device), self._right.to(main.device)
        both = ok[:, left] & ok[:, right]
        return ((main[:, right] - main[:, left])[..., 0::2] * both[..., None]).sum(1), both.any(1)


def _turn(x: Tensor, heading: Tensor) -> Tensor:
    """Rotate ``x`` [B, P, V, 3] about y so that ``heading`` [B, 2] (x, z) points to +x."""
    length = heading.norm(dim=1)
    known = length > _SMALLEST
    cos = torch.where(known, heading[:, 0] / length.clamp(min=_SMALLEST), 1.0)[:, None, None]
    sin = torch.where(known, heading[:, 1] / length.clamp(min=_SMALLEST), 0.0)[:, None, None]
    across, up, away = x.unbind(-1)
    return torch.stack((cos * across + sin * away, up, cos * away - sin * across), -1)


def _shortest_rotation(start: Tensor, end: Tensor) -> Tensor:
    """Return the shortest rotations [B, 3, 3] from ``start`` [B, 3] to ``end`` [3].

    Opposite directions and a zero ``start`` give the identity, as in the original code.
    """
    start = start / start.norm(dim=1, keepdim=True).clamp(min=1e-12)
    axis = torch.linalg.cross(start, end.expand_as(start), dim=1)
    cosine = (start * end).sum(1)[:, None, None]
    x, y, z = axis.unbind(1)
    none = torch.zeros_like(x)
    cross = torch.stack((none, -z, y, z, none, -x, -y, x, none), 1).view(-1, 3, 3)
    bent = cross + cross @ cross / (1 + cosine).clamp(min=1e-6)
    turns = (axis.abs().sum(1) > 1e-6)[:, None, None]
    return torch.eye(3).to(start) + torch.where(turns, bent, 0.0)
