"""Windows of labelled feature rows, drawn in an order that depends only on seed and step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.training.features.recipes import Recipe

POSITIONS = 1 << 16  # recycled positions start at a random row below this one


@dataclass(frozen=True)
class FeatureRows:
    """The rows of a recording, float32 [T, C], and their labels [T, K].

    ``targets``: 1 for each true class; no class where it is unknown.
    """

    rows: Tensor
    targets: Tensor


@dataclass(frozen=True)
class WindowBatch:
    """Streams of rows [B, T, C] with the labels of the last n steps.

    ``targets`` [B, n, K]; ``coming`` [B, n, A, K]: of the A rows after each; ``offsets`` int64
    [B]: rows before each stream.
    """

    rows: Tensor
    targets: Tensor
    coming: Tensor
    offsets: Tensor


class FeatureWindows:
    """The windows of recordings, in a new order in each epoch.

    An epoch has every ``stride``-th window of a recording, from a random one on. Windows whose
    labelled rows are all unknown, or ignored, are left out. With ``stepwise``, streams follow each
    other: each goes on for as many rows as a window has after its first window is full, and is
    labelled at these steps. A batch then has as many labelled rows as otherwise, or one stream.

    Args:
        recordings: rows and labels, in a fixed order.
        recipe: windows, their distance and the batch.
        ignored: class whose rows are not labelled; None: there is none.
        seed: of the order.
        stepwise: whether all steps of a stream are labelled.
    """

    def __init__(
        self,
        recordings: Sequence[FeatureRows],
        recipe: Recipe,
        ignored: int | None,
        seed: int,
        *,
        stepwise: bool = False,
    ) -> None:
        self._recordings, self._recipe, self._seed = recordings, recipe, seed
        self._labelled = recipe.window if stepwise else 1
        self._rows = recipe.window + self._labelled - 1
        self._stride = recipe.window if stepwise else recipe.stride
        self._usable = [_usable(r, ignored if recipe.ignores else None) for r in recordings]
        self._order: tuple[int, npt.NDArray[np.int64]] = (-1, np.zeros((0, 2), np.int64))
        self.step = 0
        self.streams = max(1, recipe.batch // self._labelled)
        windows = min(len(self._windows(phase)) for phase in range(self._stride))
        self.streams = min(self.streams, max(1, windows))
        self.epoch = max(1, windows // self.streams)  # steps of an epoch
        self.windows = len(self._windows(0))

    def begin(self, step: int, loss: Callable[[], Tensor]) -> None:
        """Continue with the batch of a step."""
        self.step = step

    def over(self, step: int) -> bool:
        """Return True: the network is not changed."""
        return True

    def batch(self) -> WindowBatch:
        """Return the batch of the current step."""
        epoch, place = divmod(self.step, self.epoch)
        if self._order[0] != epoch:
            rng = np.random.default_rng([self._seed, epoch])
            windows = self._windows(int(rng.integers(self._stride)))
            self._order = epoch, windows[rng.permutation(len(windows))]
        drawn = self._order[1][place * self.streams : (place + 1) * self.streams]
        chance = np.random.default_rng([self._seed, epoch, place])
        offsets = chance.integers(POSITIONS, size=len(drawn))
        parts = [self._stream(self._recordings[k], end) for k, end in drawn.tolist()]
        rows, targets, coming = (torch.stack(part) for part in zip(*parts, strict=True))
        return WindowBatch(rows, targets, coming, torch.from_numpy(offsets))

    def _windows(self, phase: int) -> npt.NDArray[np.int64]:
        """Return recording and end of each window, [N, 2]; ``phase``: windows that are skipped."""
        recipe, parts = self._recipe, []
        for k, usable in enumerate(self._usable):
            first = min(self._labelled, len(usable)) if recipe.padded else self._rows
            places = len(usable) + 1 - recipe.ahead - first
            if places < 1:
                continue
            begin = first + phase % min(self._stride, places)
            ends = np.arange(begin, first + places, self._stride)
            counts = np.concatenate(([0], np.cumsum(usable)))
            ends = ends[counts[ends] > counts[np.maximum(ends - self._labelled, 0)]]
            parts.append(np.column_stack([np.full(len(ends), k), ends]))
        return np.concatenate(parts) if parts else np.zeros((0, 2), np.int64)

    def _stream(self, recording: FeatureRows, end: int) -> tuple[Tensor, Tensor, Tensor]:
        rows = recording.rows[max(0, end - self._rows) : end]
        rows = F.pad(rows, (0, 0, self._rows - len(rows), 0))
        first, ahead = end - self._labelled, self._recipe.ahead
        targets = recording.targets[max(0, first) : end + ahead]
        targets = F.pad(targets, (0, 0, max(0, -first), 0))
        coming = targets[1:].unfold(0, ahead, 1).mT if ahead else targets[:, None, :][:, :0]
        return rows, targets[: self._labelled], coming


def _usable(recording: FeatureRows, ignored: int | None) -> npt.NDArray[np.bool_]:
    """Return which rows [T] have labels that count."""
    usable: npt.NDArray[np.bool_] = (recording.targets.sum(-1) > 0).numpy()
    if ignored is not None:
        usable &= (recording.targets[:, ignored] == 0).numpy()
    return usable
