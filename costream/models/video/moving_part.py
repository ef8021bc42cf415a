"""EfficientNet-Lite twice: features of a picture, and of the part of it in which most moves.

What people do often fills a small part of the picture of a fixed camera, and is lost in features
of all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.models.frontend import frontend
from costream.models.video.efficientnet_lite import WIDTH, EfficientNetLite, middle_square
from costream.nn.state import State, zeros

CELLS = 56  # along a side, in which movement is measured
_NOISE = 6.0  # of 255: mean change of a cell's pixels below which nothing moved
_KEPT = 0.5  # of the movement before, at each step


@dataclass
class MovementState(State):
    """The newest picture of each stream, and where it moved."""

    grey: Tensor  # [B, S, S], 0 to 255
    moved: Tensor  # [B, CELLS, CELLS]
    pictures: Tensor  # int64 [B]


@frontend("moving-part", order=14)
class MovingPart(EfficientNetLite):
    """Video frontend: 1,280 features of the picture, then those of its moving part.

    Without ``picture`` only those of the moving part. The part is a square of half the side of the
    picture's middle square, around the most movement: the sum of absolute differences of successive
    pictures, which halves at every step. It is in the middle while nothing has moved. Weights and
    the other arguments are those of ``EfficientNetLite``.
    """

    def __init__(
        self, width: float = 1.0, depth: float = 1.0, size: int = 224, picture: bool = True
    ) -> None:
        super().__init__(width, depth, size)
        self.picture = bool(picture)
        self.token_width = WIDTH * (1 + self.picture)

    def prepare(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the square in the middle of an image, uint8 [h, w, 3], as [3, 2 size, 2 size].

        Raise ValueError for other arrays.
        """
        return middle_square(rgb, 2 * self.size)

    def init_state(self, batch_size: int = 1) -> MovementState:  # type: ignore[override]
        """Return the initial state of a batch of streams."""
        like = self.stem.weight
        return MovementState(
            zeros(batch_size, self.size, self.size, like=like),
            zeros(batch_size, CELLS, CELLS, like=like),
            zeros(batch_size),
        )

    def forward(self, clips: Tensor) -> Tensor:
        """Return the tokens [B, T, D] of clips, uint8 [B, T, 3, 2 size, 2 size]."""
        return self.forward_steps(clips, self.init_state(len(clips)))

    def forward_step(self, pictures: Tensor, state: MovementState) -> Tensor:  # type: ignore[override]
        """Return the tokens [B, D] of the next picture of every stream."""
        return self.forward_steps(pictures[:, None], state)[:, 0]

    def forward_steps(self, clips: Tensor, state: MovementState) -> Tensor:  # type: ignore[override]
        """Return the tokens [B, T, D] of the next T pictures of every stream."""
        small, parts = [], []
        for pictures in clips.unbind(1):
            values = pictures.to(self.stem.weight.dtype)
            half = F.avg_pool2d(values, 2)
            rows, columns = self._move(half.mean(1), state)
            small.append(half)
            parts += [
                picture[:, top : top + self.size, left : left + self.size]
                for picture, top, left in zip(self._cut(values, state), rows, columns, strict=True)
            ]
        moving = torch.unflatten(torch.stack(parts), 0, (clips.shape[1], -1)).transpose(0, 1)
        tokens = self.features(moving.flatten(0, 1))
        if self.picture:
            seen = self.features(torch.stack(small, 1).flatten(0, 1))
            tokens = torch.cat([seen, tokens], 1)
        return torch.unflatten(tokens, 0, clips.shape[:2])

    def _cut(self, pictures: Tensor, state: MovementState) -> Tensor:
        """Return what parts are cut from, [B, 3, 2 size, 2 size], and update the state."""
        return pictures

    def _move(self, grey: Tensor, state: MovementState) -> tuple[list[int], list[int]]:
        """Return the top rows and left columns of the moving parts, [B] each; update the state."""
        change = F.adaptive_avg_pool2d((grey - state.grey).abs(), CELLS)
        is_known = (state.pictures > 0).to(change.device)[:, None, None]
        state.moved.mul_(_KEPT).add_(change * (is_known & (change > _NOISE)))
        state.grey.copy_(grey)
        state.pictures += 1
        # Sums over all squares of half the side.
        half = CELLS // 2
        sums = F.avg_pool2d(state.moved[:, None], half, 1)[:, 0]
        places = CELLS - half + 1
        best = sums.flatten(1).argmax(1)
        middle = torch.full_like(best, places * (places // 2) + places // 2)
        best = torch.where(sums.flatten(1).amax(1) > 0, best, middle)
        scale = 2 * self.size / CELLS
        rows = [round(int(place) // places * scale) for place in best]
        return rows, [round(int(place) % places * scale) for place in best]

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one picture."""
        return (1 + self.picture) * super().count_macs()
