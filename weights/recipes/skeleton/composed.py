"""Motions of one or both arms, made of motions of one arm each.

Few people of the sets raise or wave both hands, and most raise their elbows with the hand: what two
arms do at different heights and paces is made of what one does, and elbows are kept down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from costream.core.layouts import BODY_15
from costream.training.skeleton.motions import Joints, Motion, resample_joints, single
from weights.recipes.skeleton.sets import scaled
from weights.recipes.skeleton.streams import facing
from weights.recipes.skeleton.tokens import PARENTS

EACH = 160  # motions of each action
PACE = 0.15  # by which an arm may be done before the motion is over, of the logarithm
LOW = 0.7  # share of motions whose elbows stay below a height
BOTH = {
    "raise both hands": ("raise left hand", "raise right hand"),
    "wave both hands": ("wave left hand", "wave right hand"),
}
_ARMS = {
    side: tuple(BODY_15.joints.index(f"{side} {part}") for part in ("shoulder", "elbow", "wrist"))
    for side in ("left", "right")
}
_AHEAD = np.array([0.0, 0.0, -0.2])  # of the upper arm's length: where elbows go that point up


def composed(motions: Sequence[Motion], seed: int) -> list[Motion]:
    """Return motions of both arms and of one, as body-15, made of ``motions`` of one arm.

    Trunk and legs come from either motion. Empty without motions of both sides.
    """
    rng = np.random.default_rng(seed)
    out = []
    for label, sides in BOTH.items():
        lefts, rights = ([m.joints for m in motions if m.label == side] for side in sides)
        if not lefts or not rights:
            continue
        for k in range(EACH):
            arms = {"left": _one(lefts, rng), "right": _one(rights, rng)}
            out.append(_motion(k, label, _joined(arms, rng), list(arms), rng))
        for name, own, side in zip(sides, (lefts, rights), _ARMS, strict=True):
            for k in range(EACH):
                x, _ = facing(_one(own, rng)[:, 0])
                out.append(_motion(k, name, x, [side], rng))
    return out


def _one(motions: Sequence[Joints], rng: np.random.Generator) -> Joints:
    return motions[int(rng.integers(len(motions)))]


def _motion(
    number: int, label: str, x: np.ndarray, sides: Sequence[str], rng: np.random.Generator
) -> Motion:
    """Return the motion of joints [T, V, 3], whose elbows may stay down on these sides."""
    if rng.random() < LOW:
        height = rng.uniform(-0.98, 0.7)
        for side in sides:
            keep_down(x, _ARMS[side], np.clip(height + rng.normal(0, 0.1), -0.98, 0.98))
    return Motion(f"composed {number}", label, "composed", scaled(single(x)))


def _joined(arms: Mapping[str, Joints], rng: np.random.Generator) -> np.ndarray:
    """Return the joints [T, V, 3] of a body with the left arm of one motion and another's right."""
    steps = sum(map(len, arms.values())) // 2
    bodies = {}
    for side, joints in arms.items():
        last = len(joints) - 1
        times = np.linspace(0, last * np.exp(max(0.0, rng.uniform(-PACE, PACE))), steps)
        bodies[side], _ = facing(resample_joints(joints, times.clip(max=last))[:, 0])
    out: np.ndarray = bodies["left" if rng.random() < 0.5 else "right"].copy()
    for side, arm in _ARMS.items():
        for joint in arm:
            parent = PARENTS[joint]
            out[:, joint] = out[:, parent] + bodies[side][:, joint] - bodies[side][:, parent]
    return out


def keep_down(x: np.ndarray, arm: Sequence[int], height: float) -> None:
    """Keep the elbow of joints [T, V, 3] below a height, in lengths of the upper arm, in place.

    The forearm follows the upper arm and moves as before.
    """
    shoulder, elbow, wrist = arm
    upper = x[:, elbow] - x[:, shoulder]
    length = np.linalg.norm(upper, axis=1)
    low = np.minimum(upper[:, 1], height * length)
    level = (upper + length[:, None] * _AHEAD) * (1, 0, 1)
    level /= np.maximum(np.linalg.norm(level, axis=1, keepdims=True), 1e-6)
    bent = level * np.sqrt(np.maximum(length**2 - low**2, 0))[:, None]
    bent[:, 1] = low
    moved = np.where((upper[:, 1] > low)[:, None], bent - upper, 0)
    x[:, elbow] += moved
    x[:, wrist] += moved
