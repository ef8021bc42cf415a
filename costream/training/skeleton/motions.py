"""Labelled motions: skeleton sequences of one action each, as frontend input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Joints = npt.NDArray[np.float32]  # [T, S, V, A + 1]: coordinates of S persons, then the score


@dataclass(frozen=True)
class Motion:
    """One action, with frames from ``models.skeleton.joints.JointStreams.prepare``.

    ``group``: never on both sides of a split (a subject, a style, a file).
    """

    name: str
    label: str
    group: str
    joints: Joints


def single(positions: npt.NDArray[np.floating]) -> Joints:
    """Return the motion [T, 1, V, A + 1] of one person's joints [T, V, A]; all zeros: unseen."""
    x = np.asarray(positions, np.float32)
    seen = np.any(x != 0, axis=(1, 2), keepdims=True)
    scores = np.broadcast_to(seen, (*x.shape[:2], 1)).astype(np.float32)
    return np.concatenate([x, scores], 2)[:, None]


def resample_joints(joints: Joints, times: npt.NDArray[np.floating]) -> Joints:
    """Return a motion resampled at ``times`` [N], in units of its frames.

    Joints seen in both neighbouring frames are interpolated; others are copied from the nearer one.
    """
    last = len(joints) - 1
    low = np.clip(np.floor(times).astype(int), 0, last)
    high = np.minimum(low + 1, last)
    share = np.clip(times - low, 0, 1).astype(np.float32)[:, None, None, None]
    a, b = joints[low], joints[high]
    both = (a[..., -1:] > 0) & (b[..., -1:] > 0)
    out: Joints = np.where(both, a + (b - a) * share, np.where(share < 0.5, a, b))
    return out


def batch(clips: Sequence[Joints]) -> Tensor:
    """Return clips as one tensor [B, T, S, V, A + 1], padded with zeros (nobody seen)."""
    length, persons = (max(clip.shape[k] for clip in clips) for k in (0, 1))
    out = np.zeros((len(clips), length, persons, *clips[0].shape[2:]), np.float32)
    for row, clip in zip(out, clips, strict=True):
        row[: len(clip), : clip.shape[1]] = clip
    return torch.from_numpy(out)
