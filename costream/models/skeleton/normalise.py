"""Skeleton normalisation for position, size and heading, step by step.

It is causal. Coordinates of joints that are not visible are zero before and after it. A step is
about forty operations on a few numbers, for which NumPy takes a fifth of the time of PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.core.layouts import Layout
from costream.nn.state import State, zeros

Array: TypeAlias = npt.NDArray[np.float32]
Flags: TypeAlias = npt.NDArray[np.bool_]

SMALLEST = 1e-4  # skeletons whose mean bone length is below this are ignored


@dataclass
class ReferenceFrameState(State):
    """Frame of reference of each stream; the meaning of the values depends on the normaliser."""

    values: Tensor  # float32 [B, K]
    counts: Tensor  # float32 [B, 3], steps in each mean, at most its memory


class Normaliser(Protocol):
    """Transforms joints [B, P, V, A], visible where [B, P, V], into a frame of reference.

    The first person is the main one; ``changed``, bool [B]: whether it is another one than before.
    Returns the joints and, bool [B], whether there is a frame of reference yet.
    """

    macs: int  # multiply-accumulates per joint

    def init_state(self, batch_size: int) -> ReferenceFrameState: ...  # noqa: D102

    def __call__(  # noqa: D102
        self, x: Array, seen: Flags, changed: Flags, state: ReferenceFrameState
    ) -> tuple[Array, Flags]: ...


class FixedScaling:
    """``scale`` times the coordinates around ``middle``.

    Image coordinates are 0 to 1 along x and, as y is up, 0 to -1 along y; the middle is
    (0.5, -0.5). Scale (1, 1) is then what continual-skeletons does for Kinetics; pyskl, whose y
    is down, has (2, -2).
    """

    macs = 0

    def __init__(self, middle: Sequence[float] = (0.0,), scale: Sequence[float] = (1.0,)) -> None:
        self._middle, self._scale = (np.array(v, np.float32) for v in (middle, scale))

    def init_state(self, batch_size: int) -> ReferenceFrameState:
        """Return an empty state."""
        return _state(batch_size, 0, 0)

    def __call__(
        self, x: Array, seen: Flags, changed: Flags, state: ReferenceFrameState
    ) -> tuple[Array, Flags]:
        """Return the joints; they are always ready."""
        moved = (x - self._middle) * self._scale * seen[..., None]
        return moved, np.ones_like(changed)


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

    def init_state(self, batch_size: int) -> ReferenceFrameState:
        """Return the initial state: origin [3], rotation [9]."""
        return _state(batch_size, 12, 1)

    def __call__(
        self, x: Array, seen: Flags, changed: Flags, state: ReferenceFrameState
    ) -> tuple[Array, Flags]:
        """Return the joints in the frame of reference, once there is one."""
        main, ok = x[:, 0], seen[:, 0]
        values, counts = state.values.numpy(), state.counts.numpy()
        known = counts[:, 0] > 0
        first = ok[:, [self.base, self.spine, self.left, self.right]].all(1) & ~known
        centred = ok[:, self.spine] & (first if self._fixed else (first | known))
        values[centred, :3] = main[centred, self.spine]
        up = np.array([0.0, 0.0, 1.0], np.float32)
        stand = _shortest_rotation(main[first, self.spine] - main[first, self.base], up)
        across = np.einsum("bij,bj->bi", stand, main[first, self.right] - main[first, self.left])
        turn = _shortest_rotation(across, np.roll(up, 1)) @ stand
        values[first, 3:] = turn.reshape(-1, 9)
        counts[first] += 1
        turned = (x - values[:, None, None, :3]) @ values[:, 3:].reshape(-1, 1, 3, 3).swapaxes(2, 3)
        return turned * seen[..., None], known | first


class BodyNormaliser:
    """Person-centred frame: hips at the origin, bones of mean length 1, heading aligned.

    Each is a running mean over the main person's last steps: ``origin``, ``unit`` and
    ``heading`` are its memory in steps (None: all steps; 0: not done; 1: only the present step).
    Heading rotates about the vertical (y) until shoulders and hips, left to right, point to +x; it
    needs three axes. Coordinates must be right-handed.

    For the compiled loop: ``ends`` [2, E], the joints at the ends of the ``bones`` and of the
    lines from left to right, ``centre``, the ``memory`` [3] of the means and which of these each
    value is part of, ``mean_of`` [A + 3].
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
        self._used = np.array([steps != 0 for steps in memory])
        self.memory = np.array([math.inf if m is None else m for m in memory], np.float32)
        self.mean_of = np.array([0] * axes + [1, 2, 2])  # which mean each value is part of
        self._moves, self._turns = memory[0] != 0, memory[2] != 0
        self._axes, self.centre = axes, layout.centre
        sides = [
            (layout.joints.index(f"right {part}"), layout.joints.index(f"left {part}"))
            for part in ("shoulder", "hip")
            if f"left {part}" in layout.joints and f"right {part}" in layout.joints
        ]
        self.bones, self.ends = len(layout.bones), np.array([*layout.bones, *sides]).T.copy()

    def init_state(self, batch_size: int) -> ReferenceFrameState:
        """Return the initial state: origin [A], unit, heading [2]."""
        return _state(batch_size, self._axes + 3, 3)

    def __call__(
        self, x: Array, seen: Flags, changed: Flags, state: ReferenceFrameState
    ) -> tuple[Array, Flags]:
        """Return the joints in the frame of reference, once the hips have been visible."""
        values, counts = state.values.numpy(), state.counts.numpy()
        if changed.any():
            values[changed], counts[changed] = 0, 0
        self._follow(*self._measure(x[:, 0], seen[:, 0]), values, counts)
        origin, unit = values[:, : self._axes], values[:, self._axes]
        placed = x - origin[:, None, None]
        placed /= np.where(unit > 0, unit, 1)[:, None, None, None]
        if self._turns:
            _turn(placed, values[:, self._axes + 1 :])
        ready = counts[:, 0] > 0 if self._moves else np.ones_like(changed)
        placed *= seen[..., None]
        return placed, ready

    def _measure(self, main: Array, ok: Flags) -> tuple[Array, Flags]:
        """Return origin, unit and heading [B, A + 3] of a step, and which are known [B, 3]."""
        values = np.zeros((len(main), self._axes + 3), np.float32)
        known = np.zeros((len(main), 3), np.bool_)
        values[:, : self._axes], known[:, 0] = main[:, self.centre], ok[:, self.centre]
        both: Flags = np.all(ok[:, self.ends], 1)
        ends = main[:, self.ends]
        lines = (ends[:, 0] - ends[:, 1]) * both[..., None]
        bones, across = lines[:, : self.bones], lines[:, self.bones :, 0::2]
        lengths, count = np.sqrt((bones * bones).sum(2)), both[:, : self.bones].sum(1)
        values[:, self._axes] = lengths.sum(1) / np.maximum(count, 1)
        known[:, 1] = values[:, self._axes] > SMALLEST
        if self._turns:
            values[:, self._axes + 1 :] = across.sum(1)
            known[:, 2] = both[:, self.bones :].any(1)
        return values, known

    def _follow(self, new: Array, known: Flags, values: Array, counts: Array) -> None:
        """Update the running means with ``new`` values [B, A + 3] where they are known [B, 3]."""
        known = known & self._used
        np.minimum(counts + known, self.memory, out=counts)
        weight = (known / np.maximum(counts, 1))[:, self.mean_of]
        values *= 1 - weight
        values += weight * new


def _turn(x: Array, heading: Array) -> None:
    """Rotate ``x`` [B, P, V, 3] about y so that ``heading`` [B, 2] (x, z) points to +x."""
    length = np.hypot(heading[:, 0], heading[:, 1])
    known, length = length > SMALLEST, np.maximum(length, SMALLEST)
    cos = np.where(known, heading[:, 0] / length, 1)[:, None, None]
    sin = np.where(known, heading[:, 1] / length, 0)[:, None, None]
    across, away = x[..., 0], x[..., 2]
    x[..., 0], x[..., 2] = cos * across + sin * away, cos * away - sin * across


def _shortest_rotation(start: Array, end: Array) -> Array:
    """Return the shortest rotations [B, 3, 3] from ``start`` [B, 3] to ``end`` [3].

    Opposite directions and a zero ``start`` give the identity, as in the original code.
    """
    start = start / np.maximum(np.linalg.norm(start, axis=1, keepdims=True), 1e-12)
    axis = np.cross(start, end)
    cosine = (start @ end)[:, None, None]
    x, y, z = axis.T
    none = np.zeros_like(x)
    cross = np.stack((none, -z, y, z, none, -x, -y, x, none), 1).reshape(-1, 3, 3)
    bent = cross + cross @ cross / np.maximum(1 + cosine, 1e-6)
    turns = (np.abs(axis).sum(1) > 1e-6)[:, None, None]
    rotations: Array = np.eye(3, dtype=np.float32) + np.where(turns, bent, 0)
    return rotations


def _state(batch_size: int, values: int, counts: int) -> ReferenceFrameState:
    like = torch.zeros(())
    parts = (zeros(batch_size, count, like=like) for count in (values, counts))
    return ReferenceFrameState(*parts)
