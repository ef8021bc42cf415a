"""Square, normalised crops for video transformers with a patch embedding of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Crops(nn.Module):
    """Resizes images so that their shorter side fits, crops squares, normalises. No weights.

    Bilinear with antialiasing, as ViViT was evaluated with. ``size``: side in pixels.
    ``mean``, ``deviation``: of values from 0 to 1, of all three colours. Images are first fitted
    into a box of twice ``size``: those at most twice as wide as high lose nothing by that.
    """

    takes = "video"

    def __init__(self, size: int = 224, mean: float = 0.45, deviation: float = 0.225) -> None:
        super().__init__()
        if size < 1 or deviation <= 0:
            raise ValueError(f"size {size} and deviation {deviation} must be positive")
        self.size, self.mean, self.deviation = int(size), float(mean), float(deviation)
        self.box = (2 * self.size, 2 * self.size)
        self.like: Tensor
        self.register_buffer("like", torch.zeros(()), persistent=False)

    def prepare(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return an image, uint8 [h, w, 3], as uint8 [3, h, w]."""
        channels_first: npt.NDArray[np.uint8] = rgb.transpose(2, 0, 1)
        return channels_first

    def forward(self, pictures: Tensor, count: int = 1) -> Tensor:
        """Return ``count`` crops, float [count, B, 3, S, S], of images, uint8 [B, 3, h, w].

        They are spread evenly over the longer side; a single one is from the middle.
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
        """Return the multiply-accumulates of one frame: 0, there are no weights."""
        return 0


def temporal_views(frames: int, length: int, stride: int, count: int) -> list[list[int]]:
    """Return the frame indices of ``count`` views of a video: ``length`` frames, ``stride`` apart.

    Views are spread evenly; a single one is from the middle. In a video that is shorter than a
    view the last frame is repeated.
    """
    spare = max(0, frames - length * stride)
    return [
        [min(start + k * stride, frames - 1) for k in range(length)]
        for start in _starts(spare, count)
    ]


def _starts(spare: int, count: int) -> Sequence[int]:
    """Return the starts of ``count`` windows, spread evenly from 0 to ``spare``."""
    if count == 1:
        return [spare // 2]
    return [int(k * (spare / (count - 1))) for k in range(count)]
