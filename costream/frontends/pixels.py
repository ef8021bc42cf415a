"""Normalised pixels for networks with a patch embedding of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGENET_MEAN = (123.675, 116.28, 103.53)  # of red, green and blue over ImageNet, as in detectron2
IMAGENET_STD = (58.395, 57.12, 57.375)


class Pixels(nn.Module):
    """Normalises images and pads them to whole patches. It has no weights.

    ``box`` is the width and height that images are fitted into; ``patch``: side of a token in
    pixels. The image stays in the upper left corner; zeros, the mean colour, are added to the
    right and below until the sides are multiples of ``patch``. So pixels of the image and of the
    network's input have the same coordinates.
    """

    takes = "video"

    def __init__(self, box: Sequence[int] = (512, 320), patch: int = 16) -> None:
        super().__init__()
        width, height = box
        if patch < 1 or width < 1 or height < 1:
            raise ValueError(f"patch {patch} and box {width}x{height} must be positive")
        self.box, self.patch = (int(width), int(height)), int(patch)
        self.mean: Tensor
        self.deviation: Tensor
        for name, values in (("mean", IMAGENET_MEAN), ("deviation", IMAGENET_STD)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def prepare(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return an image, uint8 [h, w, 3], as uint8 [3, h, w].

        Raise ValueError if it is larger than ``box``.
        """
        height, width = rgb.shape[:2]
        if width > self.box[0] or height > self.box[1]:
            raise ValueError(f"an image of {width}x{height} does not fit {self.box}")
        channels_first: npt.NDArray[np.uint8] = rgb.transpose(2, 0, 1)
        return channels_first

    def forward(self, pictures: Tensor) -> Tensor:
        """Return images, uint8 [B, 3, h, w], normalised and padded: float [B, 3, H, W]."""
        normed = (pictures.to(self.mean.dtype) - self.mean) / self.deviation
        height, width = pictures.shape[2:]
        return F.pad(normed, (0, -width % self.patch, 0, -height % self.patch))

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one frame: 0, there are no weights."""
        return 0
