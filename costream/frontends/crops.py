"""Square, normalised crops for video transformers with a patch embedding of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.boxes import clip_boxes


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


# Centre crop for 3D networks: images resized, cropped and normalised.


X3D_MEAN, X3D_STD = 0.45, 0.225  # of red, green and blue alike, as in SlowFast and PyTorchVideo


class CentreCrop(nn.Module):
    """Resizes images, crops the square in the middle and normalises it. It has no weights.

    Args:
        size: side of the square in pixels.
        short_side: pixels that the shorter side of an image is resized to.

    ``box`` is larger than that, so that tall and wide images, up to three to one, still have a
    shorter side that is long enough.
    """

    takes = "video"

    def __init__(self, size: int = 160, short_side: int = 182) -> None:
        super().__init__()
        if not 0 < size <= short_side:
            raise ValueError(f"size {size} is not between 1 and short_side {short_side}")
        self.size, self.short_side = int(size), int(short_side)
        self.box = (3 * self.short_side, 2 * self.short_side)
        self.like: Tensor
        self.register_buffer("like", torch.empty(0), persistent=False)

    def prepare(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the square crop, uint8 [3, size, size], of an image, uint8 [h, w, 3]."""
        height, width = rgb.shape[:2]
        scale = self.short_side / min(height, width)
        # As published: the shorter side is exact, the longer one rounded down.
        sides = tuple(max(self.short_side, math.floor(side * scale)) for side in (height, width))
        picture = torch.from_numpy(np.ascontiguousarray(rgb)).permute(2, 0, 1)[None].float()
        if sides != (height, width):
            picture = F.interpolate(picture, sides, mode="bilinear", align_corners=False)
        top, left = ((side - self.size) // 2 for side in sides)
        square = picture[0, :, top : top + self.size, left : left + self.size]
        out: npt.NDArray[np.uint8] = square.round().to(torch.uint8).numpy()
        return out

    def init_state(self, batch_size: int = 1) -> None:
        """Return None: there is no state."""

    def forward(self, pictures: Tensor) -> Tensor:
        """Return normalised float crops for crops uint8 [..., 3, size, size]."""
        return _normalise(pictures, self.like)

    def forward_step(self, pictures: Tensor, state: None) -> Tensor:
        """Return the normalised crops [B, 3, size, size] of the next frame of every stream."""
        return _normalise(pictures, self.like)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one frame: 0, there are no weights."""
        return 0


def _normalise(pictures: Tensor, like: Tensor) -> Tensor:
    """Return pixels, 0 to 255, in the dtype of ``like``, with mean 0 and deviation 1."""
    return (pictures.to(like.dtype) / 255 - X3D_MEAN) / X3D_STD


# Resizing of images for an object detector, and conversion of boxes back to the image.


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
