"""Tree-ensemble baseline on plain video features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from costream.training.trees import forest
from weights.recipes.action.rendering.scenes import LabelledClip

GRID = (12, 16)  # rows, columns
LAGS = (1, 4, 16)  # frames
_LEAF = 5  # frames per leaf at least: neighbouring frames are alike
_EVERY = 4  # training uses every 4th frame: two per second


def trees(
    training: Sequence[LabelledClip],
    clips: Sequence[LabelledClip],
    classes: int,
    count: int,
    seed: int,
) -> list[npt.NDArray[np.float32]]:
    """Return the probabilities [T, K] of each clip by trees trained on single frames."""
    parts = [(features(c.frames)[::_EVERY], c.labels[::_EVERY]) for c in training]
    labels = np.concatenate([known for _, known in parts])
    rows = np.concatenate([some for some, _ in parts])[labels >= 0]
    held_out = [features(c.frames) for c in clips]
    told = forest(
        rows, labels[labels >= 0], np.concatenate(held_out), classes, count, seed, leaf=_LEAF
    )
    return np.split(told, np.cumsum([len(some) for some in held_out])[:-1])


def features(frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return the brightness of 12 x 16 cells and its change since 1, 4 and 16 frames before.

    ``frames``: [T, 3, H, W]; the result is [T, 768].
    """
    grey = frames.mean(1, dtype=np.float32)
    for axis, cells in zip((1, 2), GRID, strict=True):
        size = grey.shape[axis]
        begins = np.arange(cells) * size // cells
        widths = np.diff([*begins, size]).astype(np.float32)
        shape = (1, cells, 1) if axis == 1 else (1, 1, cells)
        grey = np.add.reduceat(grey, begins, axis=axis) / widths.reshape(shape)
    flat = grey.reshape(len(grey), -1)
    earlier = [flat[np.maximum(np.arange(len(flat)) - lag, 0)] for lag in LAGS]
    return np.concatenate([flat, *(flat - then for then in earlier)], 1)
