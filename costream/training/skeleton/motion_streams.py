"""Streams of labelled motions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costream.labels.recording import UNSCORED
from costream.training.skeleton.motion_augment import Augmenter
from costream.training.skeleton.motions import Joints, Motion, resample_joints

RAMP = 24  # steps after which an ongoing action should be recognisable


@dataclass(frozen=True)
class SkeletonStream:
    """Skeletons with the action of every step (T steps)."""

    joints: Joints  # [T, S, V, A + 1]
    labels: npt.NDArray[np.int64]  # [T], UNSCORED: between classes
    weights: npt.NDArray[np.float32]  # [T], weight of a step in the loss


class StreamMaker:
    """Draws streams: motions of random classes, with pauses and transitions between them.

    Pauses and transitions have the label ``background``; without one they are not scored.
    """

    def __init__(
        self,
        motions: Sequence[Motion],
        labels: Sequence[str],
        augment: Augmenter,
        background: str | None,
    ) -> None:
        self._augment, self._labels = augment, list(labels)
        self._between = UNSCORED if background is None else self._labels.index(background)
        self._by_class: dict[str, list[Motion]] = {}
        for motion in motions:
            self._by_class.setdefault(motion.label, []).append(motion)
        self._classes = sorted(self._by_class)

    def draw(self, steps: int, rng: np.random.Generator) -> SkeletonStream:
        """Return a stream of ``steps`` steps; one in two begins with a motion's first frame."""
        parts: list[tuple[Joints, int, npt.NDArray[np.float32]]] = []
        begin_inside = rng.random() < 0.5
        length = 0
        while length < steps:
            joints, label = self._motion(rng)
            if parts:
                joints = follow(parts[-1][0], joints)
                way = self._between_them(parts[-1][0], joints, rng)
                parts.append((way, self._between, np.ones(len(way), np.float32)))
            elif begin_inside:
                before = self._between_them(joints[:1], joints, rng)
                parts.append((before, self._between, np.ones(len(before), np.float32)))
            parts.append((joints, label, importance(len(joints))))
            length = sum(len(part[0]) for part in parts)
        return SkeletonStream(
            np.concatenate([joints for joints, _, _ in parts])[:steps],
            np.concatenate([np.full(len(j), label) for j, label, _ in parts])[:steps],
            np.concatenate([w for _, _, w in parts])[:steps],
        )

    def _motion(self, rng: np.random.Generator) -> tuple[Joints, int]:
        motions = self._by_class[self._classes[int(rng.integers(len(self._classes)))]]
        motion = motions[int(rng.integers(len(motions)))]
        joints, label = self._augment(motion.joints, motion.label, rng)
        if rng.random() < 0.3:  # streams begin anywhere, and trackers detect people late
            joints = joints[int(rng.integers(1 + len(joints) // 3)) :]
        return joints, self._labels.index(label)

    def _between_them(self, before: Joints, after: Joints, rng: np.random.Generator) -> Joints:
        """Return a cut (no steps), a transition between poses, or a rest with a transition."""
        kind = rng.random()
        if kind < 0.3:
            return before[:0]
        way = glide(before[-1], after[0], int(rng.integers(2, 12)))
        if kind < 0.6:
            return way
        return np.concatenate([rest(before[-1], int(rng.integers(4, 40)), rng), way])


def follow(before: Joints, after: Joints) -> Joints:
    """Return ``after`` shifted to begin where the main person of ``before`` ends."""
    out: Joints = after.copy()
    seen = out[..., -1:] > 0
    if seen[0, 0].any() and (before[-1, 0, :, -1] > 0).any():
        way = _middle(before[-1, 0]) - _middle(after[0, 0])
        out[..., :-1] += way * seen
    return out


def glide(start: npt.NDArray[np.float32], end: npt.NDArray[np.float32], steps: int) -> Joints:
    """Return a smooth transition between two poses [S, V, A + 1], without these."""
    share = np.linspace(0, 1, steps + 2)[1:-1]
    return resample_joints(np.stack([start, end]), 0.5 - 0.5 * np.cos(np.pi * share))


def rest(pose: npt.NDArray[np.float32], steps: int, rng: np.random.Generator) -> Joints:
    """Return a person resting in a pose [S, V, A + 1], swaying a little."""
    time = np.arange(steps)[:, None, None, None]
    shape = (1, *pose.shape[:2], pose.shape[2] - 1)
    sway = rng.normal(0, 0.006, shape) * np.sin(time * rng.uniform(0.1, 0.5) + rng.uniform(0, 6))
    out: Joints = np.repeat(pose[None], steps, 0)
    out[..., :-1] += sway * (out[..., -1:] > 0)
    return out


def importance(steps: int) -> npt.NDArray[np.float32]:
    """Return the loss weights of a motion's steps: its beginning is hardly recognisable."""
    reached = np.arange(1, steps + 1) / min(steps, RAMP)
    return np.minimum(1, reached**1.5).astype(np.float32)


def _middle(pose: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    seen = pose[:, -1] > 0
    middle: npt.NDArray[np.float32] = pose[seen, :-1].mean(0)
    return middle
