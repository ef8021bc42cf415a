"""Random clips for training: start, speed, geometry and colours."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weights.recipes.action.rendering.scenes import UNSCORED, LabelledClip


class Sampler:
    """Random sampler of pieces of clips; rare labels are oversampled.

    ``steps`` is the length of a piece. A label is drawn with a probability proportional to the
    square root of its frequency, then one of its frames, which lies anywhere in the piece.
    """

    def __init__(
        self, clips: Sequence[LabelledClip], classes: int, steps: int, rate_hz: float
    ) -> None:
        self._clips, self._steps = clips, steps
        self._targets = [soften(clip, classes, rate_hz) for clip in clips]
        owner = np.concatenate([np.full(len(c.labels), k) for k, c in enumerate(clips)])
        frame = np.concatenate([np.arange(len(c.labels)) for c in clips])
        label = np.concatenate([c.labels for c in clips])
        self._places = [np.stack((owner[label == k], frame[label == k]), 1) for k in range(classes)]
        weight = np.sqrt([len(p) for p in self._places])
        self._weight = weight / weight.sum()

    def draw(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return frames float32 [T, 3, H, W], distorted, and target probabilities [T, C].

        A row of zeros marks a frame that is ignored.
        """
        places = self._places[rng.choice(len(self._places), p=self._weight)]
        owner, frame = places[rng.integers(len(places))]
        clip, speed = self._clips[owner], rng.uniform(0.8, 1.3)
        before = rng.integers(0, self._steps) * speed
        start = np.clip(frame - before, 0, max(0, len(clip.labels) - self._steps * speed))
        # Nearest frame not newer than the tick, as in the clock.
        index = np.minimum(
            (start + speed * np.arange(self._steps)).astype(int), len(clip.labels) - 1
        )
        frames, _ = distort(torch.from_numpy(clip.frames[index]), rng, clip.overhead)
        return frames, self._targets[owner][torch.from_numpy(index)]

    def moment(
        self, rng: np.random.Generator, lags: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return frames float32 [1 + lags, 3, H, W] of a moment and before it, and its target [C].

        The third is the mask of the person, float32 [H, W], or None if unknown.
        """
        places = self._places[rng.choice(len(self._places), p=self._weight)]
        owner, frame = places[rng.integers(len(places))]
        clip, speed = self._clips[owner], rng.uniform(0.8, 1.3)
        index = frame - np.rint(speed * np.array([0, *lags])).astype(int)
        # Before the start, this frame is repeated; now and then the start is close.
        start = frame - rng.integers(0, 20) if rng.random() < 0.15 else 0
        index = np.where(index < max(0, start), frame, index)
        mask = figure_mask(clip, frame)
        frames, mask = distort(torch.from_numpy(clip.frames[index]), rng, clip.overhead, mask)
        return frames, self._targets[owner][frame], mask


def figure_mask(clip: LabelledClip, frame: int) -> Tensor | None:
    """Return where a frame of a rendered clip differs from its first, empty one, else None."""
    if not clip.rendered:
        return None
    difference = np.abs(clip.frames[frame].astype(np.int16) - clip.frames[0]).max(0)
    return torch.from_numpy((difference > 24).astype(np.float32))


def soften(clip: LabelledClip, classes: int, rate_hz: float) -> Tensor:
    """Return target probabilities [T, C]: labels smoothed over their time uncertainty."""
    known = clip.labels != UNSCORED
    hard = np.eye(classes)[np.where(known, clip.labels, 0)] * known[:, None]
    sigma = max(0.5 * clip.blur_s * rate_hz, 1e-3)
    reach = np.arange(-math.ceil(2 * sigma), math.ceil(2 * sigma) + 1)
    kernel = np.exp(-0.5 * (reach / sigma) ** 2)
    soft = np.stack([np.convolve(row, kernel)[len(reach) // 2 :][: len(hard)] for row in hard.T], 1)
    soft /= np.maximum(soft.sum(1, keepdims=True), 1e-9)
    return torch.from_numpy(soft * known[:, None]).float()


def distort(
    frames: Tensor, rng: np.random.Generator, overhead: bool = True, mask: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return a clip, uint8 [T, 3, H, W], as float32 0..255 from another camera in another light.

    Every frame gets the same mirroring, rotation, zoom and shift (the camera stays fixed), the same
    colours, independent noise, and a slowly drifting exposure. Only overhead views are rotated by
    more than a few degrees, since elsewhere "up" matters. ``mask`` [h, w] is transformed likewise.
    """
    height, width = frames.shape[2:]
    theta = _geometry(rng, width / height, overhead)
    mode = "border" if rng.random() < 0.6 else "zeros"
    # The same grid for all frames: one image of 3 T channels.
    out = warp(frames.flatten(0, 1).float(), theta, mode).view(frames.shape)
    if mask is not None:
        mask = warp(mask[None], theta, "zeros")[0]
    return _colour(out, rng), mask


def _geometry(rng: np.random.Generator, ratio: float, overhead: bool) -> Tensor:
    turn = rng.normal(0, 0.06)
    if overhead:
        turn += rng.choice([0.0, math.pi, rng.uniform(-math.pi, math.pi)], p=[0.4, 0.4, 0.2])
    zoom, stretch = math.exp(rng.normal(0.0, 0.15)), math.exp(rng.normal(0, 0.06))
    flip = rng.choice([-1.0, 1.0])
    c, s = math.cos(turn) * zoom, math.sin(turn) * zoom
    x, y = rng.normal(0, 0.08, 2)
    return torch.tensor(
        [[flip * c * stretch, -s / ratio, x], [flip * s * ratio * stretch, c, y]],
        dtype=torch.float32,
    )


def warp(picture: Tensor, theta: Tensor, mode: str) -> Tensor:
    """Return an image [C, H, W] warped by ``theta`` [2, 3]; ``mode``: padding outside it."""
    grid = F.affine_grid(theta[None], [1, 1, *picture.shape[1:]], align_corners=False)
    return F.grid_sample(picture[None], grid, padding_mode=mode, align_corners=False)[0]


def _colour(frames: Tensor, rng: np.random.Generator) -> Tensor:
    steps, _, height, width = frames.shape
    grey = rng.choice([0.0, 1.0, rng.uniform()], p=[0.6, 0.15, 0.25])
    mix = (1 - grey) * np.eye(3) + grey / 3
    gain = math.exp(rng.normal(0, 0.35))
    matrix = torch.tensor(gain * np.diag(np.exp(rng.normal(0, 0.15, 3))) @ mix).float()
    frames = (matrix @ frames.flatten(2)).view(frames.shape)
    exposure = torch.from_numpy(1 + np.cumsum(rng.normal(0, 0.003, steps))).float()
    noise = torch.from_numpy(rng.standard_normal((min(steps, 8), 1, height, width), np.float32))
    picks = torch.from_numpy(rng.permutation(np.arange(steps) % len(noise)))
    frames *= exposure[:, None, None, None]
    frames += gain * rng.normal(0, 12) + abs(rng.normal(0, 3.0)) * noise[picks]
    return frames.clamp_(0, 255)
