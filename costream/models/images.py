"""Image frontends without weights: square crops, a centre crop, padded or resized images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.models.frontend import frontend
from costream.models.image_values import IMAGENET_MEAN, IMAGENET_STD
from costream.models.oad.tdn import check_image

# Of all colours alike, as in SlowFast and PyTorchVideo.
X3D_MEAN, X3D_STD = 0.45, 0.225


class _ImageFrontend(nn.Module):
    takes = "video"

    def prepare(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return an image, uint8 [h, w, 3], as uint8 [3, h, w]; ValueError for other arrays."""
        check_image(rgb)
        channels_first: npt.NDArray[np.uint8] = rgb.transpose(2, 0, 1)
        return channels_first

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one frame: 0, there are no weights."""
        return 0


def fitted(rgb: npt.NDArray[np.uint8], box: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Return an image, uint8 [h, w, 3], made smaller if it exceeds ``box``, a width and height.

    Bilinear with antialiasing.
    """
    height, width = rgb.shape[:2]
    scale = min(box[0] / width, box[1] / height)
    if scale >= 1:
        return rgb
    size = max(1, round(height * scale)), max(1, round(width * scale))
    picture = torch.from_numpy(np.ascontiguousarray(rgb)).permute(2, 0, 1)[None]
    smaller = F.interpolate(picture, size, mode="bilinear", antialias=True)
    return smaller[0].permute(1, 2, 0).numpy()


def scaled_size(
    size: Sequence[int], short: int, rounding: Callable[[float], int] = round
) -> tuple[int, int]:
    """Return height and width of an image of this size with a shorter side of ``short`` pixels."""
    scale = short / min(size)
    height, width = (max(short, rounding(scale * side)) for side in size)
    return height, width


@frontend("crops", order=6)
class Crops(_ImageFrontend):
    """Resizes images so that their shorter side fits, crops squares, normalises. No weights.

    Bilinear with antialiasing, as ViViT was evaluated with. ``size``: side in pixels.
    ``mean``, ``deviation``: of values from 0 to 1, of all three colours. Images are first fitted
    into a box of twice ``size``: those at most twice as wide as high lose nothing by that.
    """

    def __init__(self, size: int = 224, mean: float = 0.45, deviation: float = 0.225) -> None:
        super().__init__()
        if size < 1 or deviation <= 0:
            raise ValueError(f"size {size} and deviation {deviation} must be positive")
        self.size, self.mean, self.deviation = int(size), float(mean), float(deviation)
        self.box = (2 * self.size, 2 * self.size)
        self.like: Tensor
        self.register_buffer("like", torch.zeros(()), persistent=False)

    def forward(self, images: Tensor, count: int = 1) -> Tensor:
        """Return ``count`` crops, float [count, B, 3, S, S], of images, uint8 [B, 3, h, w].

        They are spread evenly over the longer side; a single one is from the middle.
        """
        x = images.to(self.like.dtype) / 255
        size = scaled_size(x.shape[2:], self.size)
        if size != x.shape[2:]:
            x = F.interpolate(x, size, mode="bilinear", antialias=True)
        x = (x - self.mean) / self.deviation
        rows, columns = (_starts(side - self.size, count) for side in x.shape[2:])
        return torch.stack(
            [
                x[:, :, y : y + self.size, z : z + self.size]
                for y, z in zip(rows, columns, strict=True)
            ]
        )


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


@frontend("crop", order=4)
class CentreCrop(_ImageFrontend):
    """Resizes images, crops the square in the middle and normalises it. It has no weights.

    Args:
        size: side of the square in pixels.
        short_side: pixels that the shorter side of an image is resized to.
        mean, deviation: of values from 0 to 1, of all three colours.

    ``box`` is larger, so that tall and wide images, up to three to one, still have a shorter side
    of at least ``short_side``.
    """

    def __init__(
        self,
        size: int = 160,
        short_side: int = 182,
        mean: float = X3D_MEAN,
        deviation: float = X3D_STD,
    ) -> None:
        super().__init__()
        self.mean, self.deviation = mean, deviation
        if not 0 < size <= short_side:
            raise ValueError(f"size {size} is not between 1 and short_side {short_side}")
        self.size, self.short_side = int(size), int(short_side)
        self.box = (3 * self.short_side, 2 * self.short_side)
        self.like: Tensor
        self.register_buffer("like", torch.empty(0), persistent=False)

    def prepare(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the square crop, uint8 [3, size, size], of an image, uint8 [h, w, 3].

        Raise ValueError for other arrays.
        """
        check_image(rgb)
        size = scaled_size(rgb.shape[:2], self.short_side, math.floor)  # as published
        image = torch.from_numpy(np.ascontiguousarray(rgb)).permute(2, 0, 1)[None].float()
        if size != rgb.shape[:2]:
            image = F.interpolate(image, size, mode="bilinear", align_corners=False)
        top, left = ((side - self.size) // 2 for side in size)
        square = image[0, :, top : top + self.size, left : left + self.size]
        out: npt.NDArray[np.uint8] = square.round().to(torch.uint8).numpy()
        return out

    def init_state(self, batch_size: int = 1) -> None:
        """Return None: there is no state."""

    def forward(self, images: Tensor) -> Tensor:
        """Return normalised float crops for crops uint8 [..., 3, size, size]."""
        return (images.to(self.like.dtype) / 255 - self.mean) / self.deviation

    def forward_step(self, images: Tensor, state: None) -> Tensor:
        """Return the normalised crops [B, 3, size, size] of the next frame of every stream."""
        return self.forward(images)


class _NormedImages(_ImageFrontend):
    """Base of frontends that normalise each colour as for ImageNet."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.deviation: Tensor
        for name, values in (("mean", IMAGENET_MEAN), ("deviation", IMAGENET_STD)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def normalised(self, images: Tensor) -> Tensor:
        """Return images [B, 3, h, w] from 0 to 255, normalised.

        Where colours are innermost in memory, whole rows are computed at once, and they stay so.
        """
        if not images.is_contiguous(memory_format=torch.channels_last) or images.is_contiguous():
            return (images.to(self.mean.dtype) - self.mean) / self.deviation
        rows, wide = images.permute(0, 2, 3, 1).flatten(2), images.shape[3]
        mean, deviation = (x.flatten().repeat(wide) for x in (self.mean, self.deviation))
        normed = (rows.to(self.mean.dtype) - mean) / deviation
        return normed.view(*rows.shape[:2], wide, 3).permute(0, 3, 1, 2)


@frontend("pixels", order=3)
class Pixels(_NormedImages):
    """Normalises images and pads them to whole patches. It has no weights.

    ``box`` is the width and height that images are fitted into; ``patch``: side of a token in
    pixels. The image stays in the upper left corner; zeros, the mean colour, are added to the
    right and below until the sides are multiples of ``patch``. So pixels of the image and of the
    network's input have the same coordinates.
    """

    def __init__(self, box: Sequence[int] = (512, 320), patch: int = 16) -> None:
        super().__init__()
        width, height = box
        if patch < 1 or width < 1 or height < 1:
            raise ValueError(f"patch {patch} and box {width}x{height} must be positive")
        self.box, self.patch = (int(width), int(height)), int(patch)

    def prepare(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return an image, uint8 [h, w, 3], as uint8 [3, h, w].

        Raise ValueError if it is larger than ``box``, and for other arrays.
        """
        channels_first = super().prepare(rgb)
        height, width = rgb.shape[:2]
        if width > self.box[0] or height > self.box[1]:
            raise ValueError(f"an image of {width}x{height} does not fit {self.box}")
        return channels_first

    def forward(self, images: Tensor) -> Tensor:
        """Return images, uint8 [B, 3, h, w], normalised and padded: float [B, 3, H, W]."""
        height, width = images.shape[2:]
        return F.pad(self.normalised(images), (0, -width % self.patch, 0, -height % self.patch))


@frontend("resized", order=12)
class Resized(_NormedImages):
    """Resizes images to whole patches and normalises them: no padding. It has no weights.

    The shorter side becomes ``short`` pixels, unless the longer one would exceed ``long``; then
    both are rounded down to multiples of ``patch``. Bilinear with antialiasing, as YOLOS was
    evaluated with. ``square``: both sides become ``short``, whatever the image's shape, without
    antialiasing, as the package of RF-DETR does.
    """

    def __init__(
        self, short: int = 512, long: int = 853, patch: int = 16, square: bool = False
    ) -> None:
        super().__init__()
        if not 1 <= patch <= short <= long:
            raise ValueError(f"patch {patch}, short {short} and long {long} must ascend from 1")
        if square and short % patch:
            raise ValueError(f"short {short} is not a multiple of patch {patch}")
        self.short, self.long, self.patch = int(short), int(long), int(patch)
        self.square, self.box = square, (self.long, self.long)

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the network's input for an image of this size."""
        if self.square:
            return self.short, self.short
        scale = min(self.short / min(height, width), self.long / max(height, width))
        down, across = (
            max(self.patch, round(side * scale) // self.patch * self.patch)
            for side in (height, width)
        )
        return down, across

    def forward(self, images: Tensor) -> Tensor:
        """Return images, uint8 [B, 3, h, w], resized and normalised: float [B, 3, H, W]."""
        size = self.size_of(*images.shape[2:])
        if size != images.shape[2:]:
            # Images on the CPU stay uint8, which rounds; other devices only resize floats.
            as_bytes = images.is_cpu and not self.square
            x = images if as_bytes else images.to(self.mean.dtype)
            x = F.interpolate(x, size, mode="bilinear", antialias=not self.square)
            images = x if as_bytes or self.square else x.round().clamp(0, 255)
        return self.normalised(images)
