"""Reader of the fir_action video: 17 clips of a ceiling camera with an action for every frame.

The labels were made on another (thermal) stream and are off by up to a second, so classes are
merged to what they can support:

* ``stand`` never occurs and counts as walk. ``falled`` (on the floor after a fall) is labelled in
  some videos only and is ``falling`` in the others: both are fall. ``lying`` (the movement) and
  ``sleeping`` (the state) are lie.
* ``active`` (somebody does something, mostly out of view, nearly all in one video) and
  ``background`` between two actions (the person lies there in some videos) are left out of
  training and scoring. Background before the first action and after the last is the empty room.
"""

from __future__ import annotations

import json
import math
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import av
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.core.errors import UsageError
from costream.labels.recording import UNSCORED
from costream.training.video.video_views import warp
from weights.recipes.action.rendering.figure import LABELS
from weights.recipes.action.rendering.scenes import LabelledClip

MERGED = {
    "background": "background",
    "walk": "walk",
    "stand": "walk",
    "sitdown": "sit down",
    "sit": "sit",
    "standup": "stand up",
    "falling": "fall",
    "falled": "fall",
    "lying": "lie",
    "sleeping": "lie",
    "active": None,
}
# Fixed before any training: both rooms (_01, _02) and every class in each part.
TEST = (
    "20200626_154556",
    "20200626_175151",
    "20200627_185209",
    "20200629_115049",
    "20200629_140431",
)
VALIDATION = ("20200627_190147", "20200628_145326", "20200629_115413")


def split_of(name: str) -> str:
    """Return the part of the named video: "test", "validation" or "train"."""
    if name.startswith(TEST):
        return "test"
    return "validation" if name.startswith(VALIDATION) else "train"


def read_pack(
    pack: Path, size: tuple[int, int], only: Sequence[str] | None = None
) -> Iterator[LabelledClip]:
    """Yield the videos of ``fir_action.tar``, each as one clip, scaled to ``size`` (w, h).

    ``only``: prefixes of the names wanted. The archive is unpacked to a temporary directory.
    Raises UsageError if it is not such an archive.
    """
    with tempfile.TemporaryDirectory(prefix="costream-") as folder:
        try:
            with tarfile.open(pack) as tar:
                tar.extractall(folder, filter="data")
            index = json.loads((Path(folder) / "fir_action" / "labels.json").read_text("utf-8"))
        except (OSError, ValueError, tarfile.TarError) as error:
            raise UsageError(f"not the fir_action pack ({error})", where=pack) from error
        for video in index["videos"]:
            name = video["video"]
            if only is None or name.startswith(tuple(only)):
                frames = _decode(Path(folder) / "fir_action" / name, size)
                labels = merge([index["classes"][k] for k in video["labels"]])
                steps = min(len(frames), len(labels))
                yield LabelledClip(name, frames[:steps], labels[:steps], blur_s=1.0)


def merge(names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the merged label of every frame, int64 [T]; see the module docstring."""
    labels = np.array(
        [UNSCORED if (to := MERGED[name]) is None else LABELS.index(to) for name in names]
    )
    acting = np.flatnonzero([name != "background" for name in names])
    if len(acting):
        between = slice(acting[0], acting[-1])
        labels[between][labels[between] == 0] = UNSCORED
    return labels


def _decode(path: Path, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    with av.open(str(path)) as container:
        pictures = [
            frame.reformat(*size, "rgb24", interpolation="BILINEAR").to_ndarray()
            for frame in container.decode(video=0)
        ]
    return np.ascontiguousarray(np.stack(pictures).transpose(0, 3, 1, 2))


class Drawn(Protocol):
    """A source of random pieces of video for training."""

    def draw(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return frames float32 [T, 3, H, W] and target probabilities [T, C]."""

    def moment(
        self, rng: np.random.Generator, lags: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return frames of a moment and before it, its target, and the mask of persons if known."""


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
        label = np.concatenate(
            [c.labels if c.target is None else _likeliest(c.target, c.labels) for c in clips]
        )
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
        times = (start + speed * np.arange(self._steps)).astype(int)
        index = np.minimum(times, len(clip.labels) - 1)
        frames, _ = distort(torch.from_numpy(clip.frames[index]), rng, clip.overhead)
        inside = torch.from_numpy(times == index)
        return frames, self._targets[owner][torch.from_numpy(index)] * inside[:, None]

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


def _likeliest(target: Sequence[float], labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.full_like(labels, int(np.argmax(target)))


def soften(clip: LabelledClip, classes: int, rate_hz: float) -> Tensor:
    """Return target probabilities [T, C]: labels smoothed over their time uncertainty."""
    if clip.target is not None:
        row = torch.zeros(classes)
        row[: len(clip.target)] = torch.tensor(clip.target)
        return row.expand(len(clip.labels), -1)
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
