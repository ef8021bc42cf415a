"""Training views whose first stages are computed once, and kept in a folder."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from weights.recipes.objects.data import ViewSource
from weights.recipes.objects.pictures import LABELS, label_number
from weights.recipes.objects.teacher import NanoDet

# width and height of views, and their share
SHAPES = {(320, 224): 0.7, (256, 256): 0.15, (224, 288): 0.15}
_STRIDES = (8, 16, 32)
_CHANNELS = 128


@dataclass(frozen=True)
class ViewBatch:
    """Views of one shape."""

    size: tuple[int, int]  # height and width in pixels
    features: list[Tensor]  # of the teacher, [B, 128, h, w] at strides 8, 16, 32
    scores: list[Tensor]  # of the labels, [B, h, w, K] at these strides
    boxes: list[Tensor]  # of each view, [n, 4]
    labels: list[Tensor]  # of each view, [n]


class Views(Protocol):
    """Training views."""

    def batch(self, count: int, rng: np.random.Generator) -> ViewBatch:
        """Return ``count`` views of one shape."""


class PreparedViews:
    """``count`` views of a seed in a folder, with features in half precision.

    A folder that was left half full is filled: each view depends on the seed and its number only.
    """

    def __init__(self, folder: Path, count: int, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._counts = {shape: int(share * count) for shape, share in SHAPES.items()}
        self._opened: dict[tuple[int, int], tuple[Any, Any, list[tuple[Tensor, Tensor]]]] = {}

    def missing(self) -> bool:
        """Return whether there are views to make."""
        return any(len(self._done(s)) < count for s, count in self._counts.items())

    def make(self, source: ViewSource, teacher: NanoDet, names: list[str]) -> None:
        """Make the views that are not there yet."""
        groups = [
            [k for k, name in enumerate(names) if label_number(name) == number]
            for number in range(len(LABELS))
        ]
        self._folder.mkdir(parents=True, exist_ok=True)
        for shape, count in self._counts.items():
            done = self._done(shape)
            features, scores = self._arrays(shape, "r+" if done else "w+")
            rest, title = range(len(done), count), f"views of {shape[0]}x{shape[1]}"
            for k in tqdm(rest, title, file=sys.stderr, mininterval=10, ncols=100):
                view = source.view(shape, np.random.default_rng([self._seed, *shape, k]))
                own, said = teacher.maps(view.pixels)
                features[k] = torch.cat([x.flatten(1) for x in own], 1).numpy()
                rows = torch.cat([x.flatten(0, 1) for x in said])
                scores[k] = torch.stack([rows[:, g].amax(1) for g in groups], 1).numpy()
                done.append((view.boxes, view.labels))
                if len(done) % 100 == 0 or len(done) == count:
                    torch.save(done, self._file(shape, "boxes"))

    def open(self) -> None:
        """Open the views, all of which are there."""
        for shape in self._counts:
            self._opened[shape] = (*self._arrays(shape, "r"), self._done(shape))

    def _done(self, shape: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
        """Return boxes and labels of the views that are there."""
        file = self._file(shape, "boxes")
        return list(torch.load(file, weights_only=True)) if file.is_file() else []

    def batch(self, count: int, rng: np.random.Generator) -> ViewBatch:
        """Return ``count`` different views of one shape."""
        shapes = list(SHAPES)
        shape = shapes[int(rng.choice(len(shapes), p=list(SHAPES.values())))]
        features, scores, rows = self._opened[shape]
        chosen = np.sort(rng.choice(len(rows), count, replace=False))
        sizes = [(shape[1] // s, shape[0] // s) for s in _STRIDES]
        counts = [h * w for h, w in sizes]
        own = torch.split(torch.from_numpy(features[chosen]).float(), counts, 2)
        said = torch.split(torch.from_numpy(scores[chosen]).float(), counts, 1)
        kept = [rows[k] for k in chosen]
        return ViewBatch(
            (shape[1], shape[0]),
            [torch.unflatten(x, 2, size) for x, size in zip(own, sizes, strict=True)],
            [torch.unflatten(x, 1, size) for x, size in zip(said, sizes, strict=True)],
            [boxes for boxes, _ in kept],
            [labels for _, labels in kept],
        )

    def _file(self, shape: tuple[int, int], suffix: str) -> Path:
        return self._folder / f"{shape[0]}x{shape[1]}-{self._seed}.{suffix}"

    def _arrays(self, shape: tuple[int, int], mode: Literal["r", "r+", "w+"]) -> tuple[Any, Any]:
        """Return the arrays of features [N, 128, places] and scores [N, places, K]."""
        places = sum((shape[0] // s) * (shape[1] // s) for s in _STRIDES)
        sizes = {"features": (_CHANNELS, places), "scores": (places, len(LABELS))}
        features, scores = (
            np.memmap(self._file(shape, name), np.float16, mode, shape=(self._counts[shape], *size))
            for name, size in sizes.items()
        )
        return features, scores
