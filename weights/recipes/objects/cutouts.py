"""Cut-outs of moving objects in clips of a fixed camera, to be pasted into other images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn.boxes import areas
from costream.training.objects.image_augment import Cutout

_DIFFERENT = 28  # levels of 255 by which pixels of an object differ from the background
_CLEARLY = 75  # and some of its pixels: passing shadows do not
_TREMBLE = 7  # pixels of camera shake
_COARSE = 4  # pixels per cell in which connected parts are found
_CLOSE = 9  # pixels: size of the morphological closing
_SMALLEST = 0.004  # share of the image


def background(frames: Sequence[Tensor]) -> Tensor:
    """Return the static background, uint8 [3, H, W]: the median of the frames."""
    step = max(1, len(frames) // 60)
    return torch.stack(list(frames[::step])).median(0).values


def foreground_mask(frame: Tensor, empty: Tensor) -> Tensor:
    """Return where a frame differs from its background, float [H, W], small holes closed."""
    off = _off(frame, empty)
    mask = (off > _DIFFERENT).float()[None, None]
    half = _CLOSE // 2
    opened = -F.max_pool2d(-mask, 3, 1, 1)
    closed = F.max_pool2d(F.max_pool2d(opened, 3, 1, 1), _CLOSE, 1, half)
    return -F.max_pool2d(-closed, _CLOSE, 1, half)[0, 0]


def moving_object_boxes(frame: Tensor, empty: Tensor) -> list[Tensor]:
    """Return the boxes [4] of objects in front of a background, without small and faint ones."""
    clear = (_off(frame, empty) > _CLEARLY).float()
    boxes = []
    for box in component_boxes(foreground_mask(frame, empty)):
        x1, y1, x2, y2 = (int(v) for v in box.tolist())
        if clear[y1:y2, x1:x2].mean() > 0.04:
            boxes.append(box)
    return boxes


def component_boxes(mask: Tensor) -> list[Tensor]:
    """Return the boxes [4] of the connected components of a mask, without small ones."""
    coarse = F.max_pool2d(mask[None, None], _COARSE, ceil_mode=True)[0, 0]
    numbers = coarse * (torch.arange(coarse.numel()).view(coarse.shape) + 1)
    while True:  # the largest number of each part spreads over it
        spread = F.max_pool2d(numbers[None, None], 3, 1, 1)[0, 0] * coarse
        if torch.equal(spread, numbers):
            break
        numbers = spread
    boxes = []
    for number in torch.unique(numbers[numbers > 0]):
        fine = (numbers == number).repeat_interleave(_COARSE, 0).repeat_interleave(_COARSE, 1)
        y, x = (fine[: mask.shape[0], : mask.shape[1]] & (mask > 0)).nonzero().unbind(1)
        box = torch.stack([x.min(), y.min(), x.max() + 1, y.max() + 1]).float()
        if float(areas(box)) > _SMALLEST * mask.numel():
            boxes.append(box)
    return boxes


def _off(frame: Tensor, empty: Tensor) -> Tensor:
    """Return the difference of each pixel from all of the background around it, float [H, W].

    Around it, since cameras shake; scaled to the brightness of the frame, since they adapt.
    """
    ratio = (frame.float() + 1) / (empty.float() + 1)
    scaled = empty[None] * ratio.flatten(1).median(1).values.view(1, 3, 1, 1)
    high = F.max_pool2d(scaled, _TREMBLE, 1, _TREMBLE // 2)[0]
    low = -F.max_pool2d(-scaled, _TREMBLE, 1, _TREMBLE // 2)[0]
    return torch.maximum(frame - high, low - frame).clamp(min=0).amax(0)


def cut_out(frame: Tensor, mask: Tensor, box: Tensor, label: int) -> Cutout | None:
    """Return the object in a box, None if it is cut off by the edge or its mask is sparse."""
    height, width = mask.shape
    x1, y1, x2, y2 = (int(v) for v in box.round().tolist())
    x1, y1, x2, y2 = max(x1, 0), max(y1, 0), min(x2, width), min(y2, height)
    if x1 < 3 or y1 < 3 or x2 > width - 3 or y2 > height - 3:
        return None
    own = mask[y1:y2, x1:x2]
    return Cutout(frame[:, y1:y2, x1:x2], own, label) if own.mean() > 0.35 else None
