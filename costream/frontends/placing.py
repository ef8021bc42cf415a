"""Resizing of images for an object detector, and conversion of boxes back to the image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn.boxes import clip_boxes

# of the training images of the published networks; red, green, blue, 0 to 255
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)


@dataclass(frozen=True)
class Placement:
    """Position of an image in the input of a network: at the top left, resized."""

    source: tuple[int, int]  # height and width of the image
    picture: tuple[int, int]  # of the resized image
    input: tuple[int, int]  # of the input; zero beyond the image

    def to_source(self, boxes: Tensor) -> Tensor:
        """Return boxes [n, 4] of the input in pixels of the source, clipped to it."""
        y, x = (s / p for s, p in zip(self.source, self.picture, strict=True))
        return clip_boxes(boxes * boxes.new_tensor([x, y, x, y]), *self.source)

    def to_input(self, boxes: Tensor) -> Tensor:
        """Return boxes [n, 4] of the source in pixels of the input."""
        y, x = (p / s for s, p in zip(self.source, self.picture, strict=True))
        return boxes * boxes.new_tensor([x, y, x, y])


class Placing:
    """Resizes images as ViTDet's authors do, and normalises them.

    The shorter side becomes ``short`` pixels, or less where the longer one would be more than
    ``long``. By default the rest of a square of ``long`` pixels is zero, as in training.

    Args:
        long, short: in pixels; the default of ``short`` is 5/8 of ``long``.
        multiple: sides of the input are multiples of it.
        square: False: the input is no larger than the image needs. That costs less, but the
            input differs from that in training, and so do the results.
    """

    def __init__(
        self, long: int = 1024, short: int | None = None, multiple: int = 16, square: bool = True
    ) -> None:
        if long % multiple:
            raise ValueError(f"{long} pixels are not a multiple of {multiple}")
        self.long, self.short = long, short or 640 * long // 1024
        self.multiple, self.square = multiple, square

    def place(self, height: int, width: int) -> Placement:
        """Return the placement of an image of this size."""
        scale = min(self.short / min(height, width), self.long / max(height, width))
        picture = (max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5)))
        if self.square:
            return Placement((height, width), picture, (self.long, self.long))
        down, across = (-(-side // self.multiple) * self.multiple for side in picture)
        return Placement((height, width), picture, (down, across))

    def prepare(self, rgb: npt.NDArray[np.uint8]) -> tuple[Tensor, Placement]:
        """Return the input, float32 [3, H, W], of an image, uint8 [h, w, 3], and its placement."""
        placement = self.place(*rgb.shape[:2])
        pixels = torch.from_numpy(np.ascontiguousarray(rgb)).permute(2, 0, 1)[None]
        if placement.picture != placement.source:
            pixels = F.interpolate(pixels, placement.picture, mode="bilinear", antialias=True)
        mean, std = (
            torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD)
        )
        out = torch.zeros(3, *placement.input)
        height, width = placement.picture
        out[:, :height, :width] = (pixels[0] - mean) / std
        return out, placement
