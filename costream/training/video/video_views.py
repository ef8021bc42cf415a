"""Augmented views of videos."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

# Standard deviations, for one fixed camera that may be knocked, by day and by night.
TURN = 0.05  # radians
ZOOM = 0.1  # of the logarithm
STRETCH = 0.04  # of the logarithm
SHIFT = 0.06  # half frames
GAIN = 0.2  # of the logarithm
TINT = 0.08  # of the logarithm, of each colour
OFFSET = 8.0  # of 255
NOISE = 3.0  # of 255
SPEED = 0.25  # of the logarithm, uniform
PAUSE = 24  # most steps for which the first and the last frame are repeated


class VideoView:
    """A view, constant throughout a recording, whose frames are processed in pieces.

    ``lead`` and ``tail``: number of still frames before the first and after the last one.
    ``device``: of the frames.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        box: tuple[int, int],
        device: torch.device = torch.device("cpu"),  # noqa: B008
    ) -> None:
        turn, ratio = rng.normal(0, TURN), box[0] / box[1]
        zoom, stretch = np.exp(rng.normal(0, (ZOOM, STRETCH)))
        c, s = math.cos(turn) * zoom, math.sin(turn) * zoom
        x, y = rng.normal(0, SHIFT, 2)
        theta = torch.tensor([[c * stretch, -s / ratio, x], [s * ratio * stretch, c, y]])
        self._theta = theta.float().to(device)
        colours = np.exp(rng.normal(0, GAIN) + rng.normal(0, TINT, 3))
        self._colours = torch.from_numpy(colours).float().view(3, 1, 1).to(device)
        self._offset, self._noise = rng.normal(0, OFFSET), abs(rng.normal(0, NOISE))
        self._speed = math.exp(rng.uniform(-SPEED, SPEED))
        self.lead, self.tail = rng.integers(PAUSE + 1, size=2).tolist()
        self._chance = torch.Generator(device).manual_seed(int(rng.integers(1 << 31)))

    def chosen(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Return the indices of the frames shown among ``count`` after ``first``, with repeats."""
        begin, end = (math.ceil(k / self._speed) for k in (first, first + count))
        places = np.floor(np.arange(begin, end) * self._speed).astype(np.int64) - first
        chosen: npt.NDArray[np.int64] = np.clip(places, 0, count - 1)
        return chosen

    def show(self, frames: Tensor) -> Tensor:
        """Return augmented frames of uint8 [T, 3, H, W] as float32, 0 to 255."""
        height, width = frames.shape[2:]
        # The same grid for all frames: warp them as one image of 3 T channels.
        moved = warp(frames.flatten(0, 1).float(), self._theta, "border")
        size, chance = (len(frames), 1, height, width), self._chance
        noise = torch.randn(size, generator=chance, device=frames.device)
        lit = moved.view(frames.shape) * self._colours + (self._offset + self._noise * noise)
        return lit.clamp_(0, 255)


def warp(picture: Tensor, theta: Tensor, mode: str) -> Tensor:
    """Return an image [C, H, W] warped by ``theta`` [2, 3]; ``mode``: padding outside it."""
    grid = F.affine_grid(theta[None], [1, 1, *picture.shape[1:]], align_corners=False)
    return F.grid_sample(picture[None], grid, padding_mode=mode, align_corners=False)[0]
