"""What a picture shows, from a network that has learnt from pictures of anything."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.shuffle import ShuffleBackbone, ShuffleUnit

STAGES = (176, 4), (352, 8)  # of ShuffleNet V2 1.5x, as in NanoDet-Plus-m-1.5x
SCALE = 1.5  # of the pictures before they are looked at
_MEAN, _SPREAD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of ImageNet


class ImageContext(ShuffleBackbone):
    """Two stages of a pretrained ShuffleNet V2; maxima over the picture of ``width`` features.

    Small pictures are enlarged first: those that it has learnt from are larger.
    """

    def __init__(self, width: int) -> None:
        super().__init__(STAGES)
        self.project = nn.Conv2d(STAGES[-1][0], width, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return features [N, width] of images [N, 3, H, W], 0..255."""
        mean, spread = self.normalisation()
        x = (pictures.to(mean.dtype, memory_format=torch.channels_last) - mean) / spread
        x = F.interpolate(x, self.size(*pictures.shape[2:]), mode="bilinear")
        seen = torch.relu(self.project(self.stage_maps(x)[-1]))
        return seen.amax((2, 3))

    def normalisation(self) -> tuple[Tensor, Tensor]:
        """Return what is subtracted from pixels, and what they are then divided by, [3, 1, 1]."""
        like = self.project.weight
        return like.new_tensor(_MEAN).view(3, 1, 1), like.new_tensor(_SPREAD).view(3, 1, 1)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of enlarged pictures."""
        return int(SCALE * height), int(SCALE * width)

    def count_macs(self, height: int, width: int) -> int:
        """Return the multiply-accumulates for an image of this size."""
        sizes = [-(-side // 2) for side in self.size(height, width)]
        total = sizes[0] * sizes[1] * self.first.weight.numel()
        sizes = [-(-side // 2) for side in sizes]
        for units in self.stages:
            for unit in cast("list[ShuffleUnit]", units):
                before = sizes
                if unit.halve:
                    sizes = [-(-side // 2) for side in sizes]
                for name, part in unit.named_children():
                    at = before if unit.halve and name == "reduce" else sizes
                    total += at[0] * at[1] * cast(nn.Conv2d, part).weight.numel()
        return total + sizes[0] * sizes[1] * self.project.weight.numel()
