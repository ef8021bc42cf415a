"""Augmentation of skeleton motions: body proportions, speed, camera, sensor noise, mirroring."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costream.core.layouts import Layout
from costream.training.skeleton.motions import Joints, resample_joints


@dataclass(frozen=True)
class Variety:
    """Augmentation strengths: standard deviations, or ends of uniform ranges."""

    speed: float = 0.25  # of the logarithm, uniform
    warp: float = 0.08  # shift of the middle in time, relative to the length, uniform
    bone: float = 0.1  # of the logarithm of a bone's length, the same left and right
    turn: float = 3.14159  # radians about the vertical, uniform
    tilt: float = 0.06  # radians about the horizontal axes: cameras that are not level
    jitter: float = 0.01  # of a joint's position in each frame, relative to the height
    shift: float = 0.015  # of a joint's position throughout, relative to the height
    lost: float = 0.2  # probability that an arm or leg is hidden for a while
    mirror: float = 0.3  # probability, if the label has a mirrored counterpart


class Augmenter:
    """Random augmentation of motions in a layout, with 2 or 3 axes (y up).

    ``mirrored`` maps labels to the label of the mirrored action, None without such an action; left
    and right joints are exchanged.
    """

    def __init__(
        self, layout: Layout, axes: int, variety: Variety, mirrored: dict[str, str | None]
    ) -> None:
        self._variety, self._axes, self._mirrored = variety, axes, mirrored
        self._order = [*layout.bones]
        self._order.sort(key=lambda bone: _depth(bone[0], dict(layout.bones)))
        self._other = list(layout.mirrored)
        self._limbs = _limbs(layout)

    def __call__(self, joints: Joints, label: str, rng: np.random.Generator) -> tuple[Joints, str]:
        """Return an augmented version of a motion [T, S, V, A + 1] and its label."""
        v = self._variety
        twin = self._mirrored.get(label, label)
        if twin is not None and rng.random() < v.mirror:
            joints, label = self.mirror(joints), twin
        joints = retime(joints, rng.uniform(-v.speed, v.speed), rng.uniform(-v.warp, v.warp))
        seen: Joints = joints[..., -1:]
        x: npt.NDArray[np.floating] = self._rescale(joints[..., :-1], seen > 0, rng)
        if self._axes == 3:
            x = x @ rotation(rng.uniform(-v.turn, v.turn), *rng.normal(0, v.tilt, 2)).T
        x = x + rng.normal(0, v.shift * rng.random(), (1, *x.shape[1:])) * _height(x, seen)
        x = x + rng.normal(0, v.jitter * rng.random(), x.shape) * _height(x, seen)
        if self._limbs and rng.random() < v.lost:
            seen = self._lose(seen, rng)
        return np.concatenate([x * (seen > 0), seen], -1).astype(np.float32), label

    def mirror(self, joints: Joints) -> Joints:
        """Return the mirrored motion, left and right joints exchanged."""
        out: Joints = joints[:, :, self._other].copy()
        out[..., 0] *= -1
        return out

    def _rescale(
        self, x: npt.NDArray[np.float32], seen: npt.NDArray[np.bool_], rng: np.random.Generator
    ) -> npt.NDArray[np.float32]:
        factors = np.exp(rng.normal(0, self._variety.bone, x.shape[2]))
        factors = np.sqrt(factors * factors[self._other])
        out: Joints = x.copy()
        for child, parent in self._order:
            bone = factors[child] * (x[:, :, child] - x[:, :, parent])
            moved = out[:, :, parent] + bone
            out[:, :, child] = np.where(seen[:, :, parent], moved, x[:, :, child])
        return out

    def _lose(
        self, seen: npt.NDArray[np.float32], rng: np.random.Generator
    ) -> npt.NDArray[np.float32]:
        seen = seen.copy()
        limb = self._limbs[int(rng.integers(len(self._limbs)))]
        long = int(rng.integers(2, 1 + max(3, len(seen) // 4)))
        begin = int(rng.integers(max(1, len(seen) - long + 1)))
        seen[begin : begin + long, :, limb] = 0
        return seen


def retime(joints: Joints, speed: float, warp: float) -> Joints:
    """Return a motion exp(``speed``) times as fast, its middle moved by ``warp`` of its length."""
    count = max(4, round(len(joints) / float(np.exp(speed))))
    share = np.linspace(0, 1, count)
    return resample_joints(joints, (share + warp * np.sin(np.pi * share)) * (len(joints) - 1))


def rotation(turn: float, nod: float, roll: float) -> npt.NDArray[np.float64]:
    """Return the matrix [3, 3]: turn about y, then roll about z, then nod about x (radians)."""

    def about(angle: float, a: int, b: int) -> npt.NDArray[np.float64]:
        out = np.eye(3)
        out[a, a] = out[b, b] = np.cos(angle)
        out[a, b], out[b, a] = -np.sin(angle), np.sin(angle)
        return out

    return about(nod, 1, 2) @ about(roll, 0, 1) @ about(turn, 2, 0)


def _height(x: npt.NDArray[np.floating], seen: npt.NDArray[np.floating]) -> float:
    """Return the vertical extent of the visible joints."""
    heights = x[seen[..., 0] > 0, 1]
    return float(np.ptp(heights)) if len(heights) else 1.0


def _depth(joint: int, parents: dict[int, int]) -> int:
    return 0 if joint not in parents else 1 + _depth(parents[joint], parents)


def _limbs(layout: Layout) -> list[list[int]]:
    """Return the joints of each lower arm and lower leg, found by their names."""
    out = []
    for side in ("left", "right"):
        for parts in (("elbow", "wrist", "hand"), ("knee", "ankle", "foot")):
            limb = [
                k
                for k, name in enumerate(layout.joints)
                if name.startswith(side) and any(part in name for part in parts)
            ]
            if limb:
                out.append(limb)
    return out
