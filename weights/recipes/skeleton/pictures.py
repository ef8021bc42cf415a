"""Skeletons as cameras see them: projections of 3-D streams, and the joints of JHMDB's films."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from costream.training.skeleton.motions import Motion, resample_joints, single
from weights.recipes.skeleton.sets import RATE_HZ, between_hips, read_pack, scaled
from weights.recipes.skeleton.streams import StreamBatch
from weights.recipes.skeleton.tokens import body_tokens

NEAREST, FARTHEST = 8.0, 32.0  # distance of the camera, in mean bones (about 0.28 m)
PITCH = (-0.15, 0.7)  # radians that the camera looks down
STEEP = 1.3  # the same, from a ceiling
# JHMDB's neck, belly, face, then right and left of shoulder, hip, elbow, knee, wrist, ankle.
_JHMDB = (1, 0, 2, 4, 8, 12, 3, 7, 11, 6, 10, 14, 5, 9, 13)
_LABELS = {
    "catch": "catch",
    "clap": "clap",
    "golf": "golf swing",
    "jump": "jump",
    "pick": "pick up",
    "push": "push",
    "run": "run",
    "sit": "sit down",
    "stand": "stand up",
    "throw": "throw",
    "walk": "walk",
}


def picture_tokens(batch: StreamBatch, chance: torch.Generator) -> Tensor:
    """Return tokens [B, T, 1, V, 6] of streams seen by a random camera each."""
    return body_tokens(projected(batch, chance), batch.seen)


def projected(batch: StreamBatch, chance: torch.Generator, steep: float = 0.0) -> Tensor:
    """Return the places [B, T, V, 2] of streams that a random camera each sees, y up.

    ``steep``: share of cameras that look down from ``PITCH`` to ``STEEP``.
    """
    x = batch.joints
    share = torch.rand(len(x), 2, generator=chance, device=x.device)
    distance = (NEAREST + (FARTHEST - NEAREST) * share[:, 0])[:, None, None]
    pitch = PITCH[0] + (PITCH[1] - PITCH[0]) * share[:, 1]
    if steep:
        down, kind = torch.rand(2, len(x), generator=chance, device=x.device)
        pitch = torch.where(kind < steep, PITCH[1] + (STEEP - PITCH[1]) * down, pitch)
    pitch = pitch[:, None, None]
    a, up, away = x.unbind(-1)
    up, away = (
        up * pitch.cos() + away * pitch.sin(),
        away * pitch.cos() - up * pitch.sin(),
    )
    scale = distance / (distance + away).clamp(min=NEAREST / 4)
    return torch.stack((-a, up), -1) * scale[..., None]


def flat(motions: Sequence[Motion]) -> list[Motion]:
    """Return 3-D motions as a far camera sees them in their sensor's direction (x right, y up)."""
    sign = np.array((-1, 1, 1), np.float32)
    return [replace(m, joints=m.joints[..., [0, 1, 3]] * sign) for m in motions]


def upright(motions: Sequence[Motion]) -> list[Motion]:
    """Return motions in pictures as flat figures in space, which face the camera."""
    return [replace(m, joints=np.insert(m.joints, 2, 0, axis=-1)) for m in motions]


def read_films(folder: Path, *, test: bool) -> list[Motion]:
    """Return a part of JHMDB in the labels that the sets share. UsageError if it is missing."""
    pack = read_pack(folder, "jhmdb2d", "the joints of films")
    x = between_hips(pack["x"].astype(np.float32)[:, _JHMDB]) * np.array((1, -1), np.float32)
    speed = float(pack["fps"]) / RATE_HZ
    out = []
    for k, (begin, length) in enumerate(zip(pack["start"], pack["length"], strict=True)):
        label = _LABELS.get(str(pack["classes"][pack["y"][k]]))
        if label is None or pack["is_test"][k] != test:
            continue
        joints = single(x[begin : begin + length])
        joints = resample_joints(joints, np.arange(0, length - 1 + 1e-6, speed))
        out.append(Motion(f"jhmdb2d {k}", label, f"film {k}", scaled(joints)))
    return out
