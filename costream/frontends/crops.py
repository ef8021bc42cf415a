"""Pictures to square, normalised crops: what networks for clips take that have an embedding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Crops(nn.Module):
    """Resizes pictures so that their shorter side fits, cuts squares out, normalises. No weights.

    Bilinear with antialiasing, as ViViT was evaluated with. ``size``: pixels of a side.
    ``mean``, ``deviation``: of values from 0 to 1, of all three colours. Pictures are fitted into
    a box of twice ``size`` before: those at most twice as wide as high lose nothing by that.
    """

    takes = "video"

    def __init__(self, size: int = 224, mean: float = 0.45, deviation: float = 0.225) -> None:
        super().__init__()
        if size < 1 or deviation <= 0:
            raise ValueError(f"crops of {size} pixels, deviation {deviation}")
        self.size, self.mean, self.deviation = int(size), float(mean), float(deviation)
        self.box = (2 * self.size, 2 * self.size)
        self.like: Tensor
        self.register_buffer("like", torch.zeros(()), persistent=False)

    def prepare(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Give a picture, uint8 [h, w, 3], as uint8 [3, h, w]."""
        channels_first: npt.NDArray[np.uint8] = rgb.transpose(2, 0, 1)
        return channels_first

    def forward(self, pictures: Tensor, count: int = 1) -> Tensor:
        """Give ``count`` crops of pictures, uint8 [B, 3, h, w]: float [count, B, 3, S, S].

        They are spread evenly over the longer side; one is from the middle.
        """
        x = pictures.to(self.like.dtype) / 255
        height, width = x.shape[2:]
        scale = self.size / min(height, width)
        if scale != 1:
            sides = [round(scale * height), round(scale * width)]
            x = F.interpolate(x, sides, mode="bilinear", antialias=True)
        x = (x - self.mean) / self.deviation
        rows, columns = (_starts(side - self.size, count) for side in x.shape[2:])
        return torch.stack(
            [
                x[:, :, y : y + self.size, z : z + self.size]
                for y, z in zip(rows, columns, strict=True)
            ]
        )

    def count_macs(self) -> int:
        """Multiply-accumulates of one frame: there are no weights."""
        return 0


def temporal_views(frames: int, length: int, stride: int, count: int) -> list[list[int]]:
    """Give which frames of a video each of ``count`` views takes, ``length`` every ``stride``.

    They are spread evenly; one is from the middle. A video that is shorter than a view goes on
    with its last frame.
    """
    spare = max(0, frames - length * stride)
    return [
        [min(start + k * stride, frames - 1) for k in range(length)]
        for start in _starts(spare, count)
    ]


def _starts(spare: int, count: int) -> Sequence[int]:
    """Give where ``count`` windows begin whose last one may begin at ``spare``."""
    if count == 1:
        return [spare // 2]
    return [int(k * (spare / (count - 1))) for k in range(count)]
