"""Pictures to normalised pixels: what networks take that have an embedding of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

MEAN = (123.675, 116.28, 103.53)  # of red, green and blue over ImageNet, as in detectron2
DEVIATION = (58.395, 57.12, 57.375)


class Pixels(nn.Module):
    """Normalises pictures and fills them up to whole patches. Without weights.

    ``box`` is the width and height pictures are fitted into; ``patch``: pixels along a token. A
    picture keeps its place in the upper left corner: right of it and below it are zeros, which
    is the mean colour, as many as make the sides multiples of ``patch``. So pixels of the picture
    and of what the network takes have the same coordinates.
    """

    takes = "video"

    def __init__(self, box: Sequence[int] = (512, 320), patch: int = 16) -> None:
        super().__init__()
        width, height = box
        if patch < 1 or width < 1 or height < 1:
            raise ValueError(f"patches of {patch} pixels in a box of {width}x{height}")
        self.box, self.patch = (int(width), int(height)), int(patch)
        self.mean: Tensor
        self.deviation: Tensor
        for name, values in (("mean", MEAN), ("deviation", DEVIATION)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def prepare(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Give a picture, uint8 [h, w, 3], as uint8 [3, h, w].

        ValueError when it is larger than ``box``.
        """
        height, width = rgb.shape[:2]
        if width > self.box[0] or height > self.box[1]:
            raise ValueError(f"a picture of {width}x{height} does not fit {self.box}")
        channels_first: npt.NDArray[np.uint8] = rgb.transpose(2, 0, 1)
        return channels_first

    def forward(self, pictures: Tensor) -> Tensor:
        """Give pictures, uint8 [B, 3, h, w], normalised and filled up: float [B, 3, H, W]."""
        normed = (pictures.to(self.mean.dtype) - self.mean) / self.deviation
        height, width = pictures.shape[2:]
        return F.pad(normed, (0, -width % self.patch, 0, -height % self.patch))

    def count_macs(self) -> int:
        """Multiply-accumulates of one frame: there are no weights."""
        return 0
