"""Centre crop for 3D networks: images resized, cropped and normalised."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
