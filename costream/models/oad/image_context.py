"""Image context: features of a picture from a network trained on general pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.models.image_values import IMAGENET_MEAN, IMAGENET_STD
from costream.nn.shuffle import ShuffleBackbone, ShuffleUnit

STAGES = (176, 4), (352, 8)  # of ShuffleNet V2 1.5x, as in NanoDet-Plus-m-1.5x
SCALE = 1.5  # factor by which pictures are enlarged


class ImageContext(ShuffleBackbone):
    """Two stages of a pretrained ShuffleNet V2; maxima over the picture of ``width`` features.

    Pictures are enlarged first, to sizes like those of its training.
    """

    def __init__(self, width: int) -> None:
        super().__init__(STAGES)
        self.project = nn.Conv2d(STAGES[-1][0], width, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return features [N, width] of images [N, 3, H, W], 0..255."""
        return self._features(self.stage_maps(self._enlarged(pictures))[-1])

    def by_layer(self, pictures: Tensor) -> Iterator[tuple[int, Tensor | None]]:
        """Yield the multiply-accumulates of each layer once it is computed, the last with features.

        Others have None. ``pictures`` as in ``forward``.
        """
        costs = iter(self._layer_macs(*pictures.shape[2:]))
        x = self.first_maps(self._enlarged(pictures))
        yield next(costs), None
        for units in self.stages:
            for unit in cast("list[ShuffleUnit]", units):
                x = unit(x)
                yield next(costs), None
        yield next(costs), self._features(x)

    def _enlarged(self, pictures: Tensor) -> Tensor:
        mean, spread = self.normalisation()
        x = (pictures.to(mean.dtype, memory_format=torch.channels_last) - mean) / spread
        return F.interpolate(x, self.size(*pictures.shape[2:]), mode="bilinear")

    def _features(self, maps: Tensor) -> Tensor:
        return torch.relu(self.project(maps)).amax((2, 3))

    def normalisation(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the pixels of ImageNet, [3, 1, 1] each."""
        like = self.project.weight
        return (
            like.new_tensor(IMAGENET_MEAN).view(3, 1, 1),
            like.new_tensor(IMAGENET_STD).view(3, 1, 1),
        )

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of enlarged pictures."""
        return int(SCALE * height), int(SCALE * width)

    def count_macs(self, height: int, width: int) -> int:
        """Return the multiply-accumulates for an image of this size."""
        return sum(self._layer_macs(height, width))

    def _layer_macs(self, height: int, width: int) -> list[int]:
        """Return the multiply-accumulates of the first convolution, of each unit, and the last."""
        sizes = [-(-side // 2) for side in self.size(height, width)]
        layers = [sizes[0] * sizes[1] * self.first.weight.numel()]
        sizes = [-(-side // 2) for side in sizes]
        for units in self.stages:
            for unit in cast("list[ShuffleUnit]", units):
                before, macs = sizes, 0
                if unit.halve:
                    sizes = [-(-side // 2) for side in sizes]
                for name, part in unit.named_children():
                    at = before if unit.halve and name == "reduce" else sizes
                    macs += at[0] * at[1] * cast(nn.Conv2d, part).weight.numel()
                layers.append(macs)
        return [*layers, sizes[0] * sizes[1] * self.project.weight.numel()]
