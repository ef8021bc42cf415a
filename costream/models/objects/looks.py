"""When a detector looks at a picture, and when its newest boxes still hold: by what has moved."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.core.records import Box
from costream.models.base import Looks
from costream.nn.eventful.changed_places import Kept
from costream.nn.state import State, zeros

GRID = (24, 32)  # cells of a picture that are compared
MOVED = 5.0  # change of the mean brightness of a cell that counts as motion, of 255 ...
CELLS = 2  # ... in at least this many cells
AGE_S = 1.0  # boxes are held for at most this long, with or without motion ...
KNOWN_S = 0.5  # ... and for this long if only persons move whose joints are followed
AROUND = 0.15  # of the size of the joints of a person on each side, in which motion is theirs
MANY = 32  # cells in motion from which on a look gains most; somebody who is lost stands for these
AGE_GAIN = 0.25  # what a look gains for each second since the newest
MOST = 100  # boxes that are held
Reason: TypeAlias = Literal["first", "motion", "age", "lost"]


@dataclass
class DetectorState(State):
    """State of the streams of a detector of single pictures.

    ``looks`` and ``tokens`` are settings: None to look at every picture, and what of a picture is
    computed, as in ``Options``. The tensors are zero before the first picture.
    """

    frames: Tensor  # int64 [B]
    looked_s: Tensor  # float64 [B], time of the newest look
    cells: Tensor  # float32 [B, *GRID], brightness of that picture
    macs: Tensor  # int64 [B], cost of a look
    count: Tensor  # int64 [B], boxes that are held
    boxes: Tensor  # float64 [B, MOST, 6], edges, score, label
    kept: list[Kept] = field(default_factory=list)  # [B]
    looks: Looks | None = None
    tokens: int | str | None = None

    @classmethod
    def zeros(cls, batch_size: int, looks: Looks | None = None) -> DetectorState:
        """Return the state of streams without a picture."""
        real = torch.zeros(0, dtype=torch.float64)
        return cls(
            frames=zeros(batch_size),
            looked_s=zeros(batch_size, like=real),
            cells=zeros(batch_size, *GRID, like=real.float()),
            macs=zeros(batch_size),
            count=zeros(batch_size),
            boxes=zeros(batch_size, MOST, 6, like=real),
            kept=[Kept() for _ in range(batch_size)],
            looks=looks,
        )

    def _map(
        self, states: Sequence[DetectorState], join: Callable[[Sequence[Tensor]], Tensor]
    ) -> DetectorState:
        joined = super()._map(states, join)
        kept = [one for state in states for one in state.kept]
        numbers = torch.split(torch.arange(len(kept)), [len(state.kept) for state in states])
        joined.kept = [kept[k] for k in join(numbers).tolist()]
        return joined

    def why_look(self, row: int, time_s: float, cells: Tensor, name: str) -> Reason | None:
        """Return why to look at the next picture of a stream; None: the held boxes still do.

        ``name``: of the detector, for the budget.
        """
        if not self.frames[row]:
            return "first"
        assert self.looks is not None
        age_s = time_s - float(self.looked_s[row])
        if 0 <= age_s < self.looks.pause_s - 1e-6:
            return None
        known = None if age_s >= KNOWN_S - 1e-6 else covered(self.looks.followed)
        count, old = moved_cells(self.cells[row], cells, known), not 0 <= age_s < AGE_S - 1e-6
        if not old and count < CELLS and not self.looks.lost:
            return None
        count += MANY * self.looks.lost
        gain = min(1.0, count / MANY) + AGE_GAIN * age_s
        if self.looks.may is not None and not self.looks.may(name, gain, age_s):
            return None
        if self.looks.lost:
            return "lost"
        return "age" if old else "motion"

    def hold(
        self, row: int, time_s: float, cells: Tensor, found: tuple[Box, ...], labels: dict[str, int]
    ) -> None:
        """Keep what was found in a picture."""
        if self.looks is not None:
            self.looks.lost = False
        held = found[:MOST]
        self.looked_s[row], self.cells[row], self.count[row] = time_s, cells, len(held)
        rows = [(b.x1, b.y1, b.x2, b.y2, b.score, labels[b.label]) for b in held]
        if rows:
            self.boxes[row, : len(rows)] = torch.tensor(rows, dtype=torch.float64)

    def held(self, row: int, labels: tuple[str, ...]) -> tuple[Box, ...]:
        """Return the boxes of the newest look."""
        rows = self.boxes[row, : int(self.count[row])].tolist()
        return tuple(Box(a, b, c, d, score, labels[int(k)]) for a, b, c, d, score, k in rows)


def brightness(rgb: npt.NDArray[np.uint8]) -> Tensor:
    """Return the mean brightness of the cells of a picture, float32 ``GRID``, 0 to 255.

    The green of every second pixel stands for it.
    """
    green = torch.from_numpy(np.ascontiguousarray(rgb[::2, ::2, 1])).float()
    return F.adaptive_avg_pool2d(green[None, None], GRID)[0, 0]


def covered(parts: Sequence[tuple[float, float, float, float]]) -> Tensor | None:
    """Return the cells around parts of a picture (x1, y1, x2, y2; 0 to 1), bool ``GRID``.

    Each is larger by ``AROUND`` on all sides. None: there are no parts.
    """
    if not parts:
        return None
    rows, columns = GRID
    cells = torch.zeros(GRID, dtype=torch.bool)
    for x1, y1, x2, y2 in parts:
        across, down = AROUND * (x2 - x1), AROUND * (y2 - y1)
        top, left = (
            max(0, math.floor(rows * (y1 - down))),
            max(0, math.floor(columns * (x1 - across))),
        )
        bottom, right = math.ceil(rows * (y2 + down)), math.ceil(columns * (x2 + across))
        cells[top : max(0, bottom), left : max(0, right)] = True
    return cells


def moved_cells(before: Tensor, now: Tensor, known: Tensor | None = None) -> int:
    """Return how many cells have changed, apart from a change of all of the picture's brightness.

    After a large change of that, all of them have. ``known``: bool ``GRID``, cells that do not
    count otherwise.
    """
    change = now - before
    all_alike = float(change.median())
    if abs(all_alike) > MOVED:  # the light was switched, or the camera has turned
        return now.numel()
    moved = (change - all_alike).abs() > MOVED
    return int((moved if known is None else moved & ~known).sum())
