"""Augmented training views of images: crops, mosaics, cut-outs and colours, with boxes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.frontends.crops import IMAGENET_MEAN
from costream.nn.boxes import areas, clip_boxes

# width and height of views, typical of cameras and photographs; multiples of 32
SHAPES = ((320, 192), (320, 192), (320, 192), (256, 192), (192, 192), (160, 192))
SMALL_SHAPES = ((256, 128), (256, 128), (256, 160), (192, 160), (128, 192))
_VISIBLE = 0.3  # least visible share of an object
_MOSAIC = 0.12  # share of the views
_COMMON = 0.3  # share of the photographs; rarer classes are shown more often
_SHORTEST = 7.0  # pixels, least shorter side of an object


@dataclass(frozen=True)
class TrainingView:
    """One training image and its boxes."""

    pixels: Tensor  # uint8 [3, H, W]
    boxes: Tensor  # [n, 4], pixels
    labels: Tensor  # int64 [n]


def put(
    view: TrainingView, cutout: Cutout, rng: np.random.Generator, size: float, angle: float
) -> TrainingView:
    """Return a view with a cut-out pasted in, see ``paste``; mostly hidden boxes are dropped."""
    pasted = paste(view.pixels, cutout, rng, size, angle)
    if pasted is None:
        return view
    pixels, box = pasted
    low = torch.maximum(view.boxes[:, :2], box[:2])
    high = torch.minimum(view.boxes[:, 2:], box[2:])
    hidden = areas(torch.cat([low, high], 1)) / areas(view.boxes).clamp(min=1)
    seen = hidden < 0.65
    boxes = torch.cat([view.boxes[seen], box[None]])
    labels = torch.cat([view.labels[seen], torch.tensor([cutout.label])])
    return TrainingView(pixels, boxes, labels)


def shown(has: Sequence[Sequence[bool]]) -> npt.NDArray[np.float64]:
    """Return the sampling probability of each image: higher for rare classes.

    ``has`` [N, K]: the classes present in each. Repeat factors, Gupta et al., "LVIS" (CVPR 2019).
    """
    there = np.array(has)
    factors = np.sqrt(_COMMON / there.mean(0).clip(1 / len(there))).clip(1)
    weights = np.where(there, factors, 1.0).max(1)
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares


def cut(scene: LabelledImage, width: int, height: int, rng: np.random.Generator) -> TrainingView:
    """Return a random crop of a scene, or all of it with padding, scaled to a size."""
    high, wide = scene.pixels.shape[1:]
    reach = (0.85, 1.3) if scene.steady else (0.7, 2.2)
    scale = max(width / wide, height / high) * math.exp(rng.uniform(*np.log(reach)))
    stretch = math.exp(rng.uniform(-0.15, 0.15))
    across, down = scale * stretch, scale / stretch
    crop_w, crop_h = min(wide, round(width / across)), min(high, round(height / down))
    left, top = int(rng.integers(wide - crop_w + 1)), int(rng.integers(high - crop_h + 1))
    if len(scene.boxes) and rng.random() < 0.6:  # around one of the objects
        box = scene.boxes[int(rng.integers(len(scene.boxes)))]
        x = float(rng.uniform(box[0], box[2])) - crop_w * rng.uniform(0.3, 0.7)
        y = float(rng.uniform(box[1], box[3])) - crop_h * rng.uniform(0.3, 0.7)
        left = min(max(round(x), 0), wide - crop_w)
        top = min(max(round(y), 0), high - crop_h)
    new_w, new_h = min(width, round(crop_w * across)), min(height, round(crop_h * down))
    part = scene.pixels[:, top : top + crop_h, left : left + crop_w]
    part = F.interpolate(part[None], (new_h, new_w), mode="bilinear", antialias=True)[0]
    x, y = int(rng.integers(width - new_w + 1)), int(rng.integers(height - new_h + 1))
    pixels = torch.tensor(IMAGENET_MEAN).round().byte().view(3, 1, 1).repeat(1, height, width)
    pixels[:, y : y + new_h, x : x + new_w] = part
    boxes = scene.boxes - torch.tensor([left, top, left, top])
    ratio = torch.tensor([new_w / crop_w, new_h / crop_h] * 2)
    whole = boxes * ratio
    inside = clip_boxes(whole, new_h, new_w)
    seen = areas(inside) > _VISIBLE * areas(whole)
    seen &= (inside[:, 2:] - inside[:, :2]).amin(1) > _SHORTEST
    return TrainingView(pixels, inside[seen] + torch.tensor([x, y, x, y]), scene.labels[seen])


def mosaic(
    draw: Callable[[], LabelledImage], width: int, height: int, rng: np.random.Generator
) -> TrainingView:
    """Return random crops of four scenes around a point (Bochkovskiy et al., "YOLOv4", 2020)."""
    x, y = int(width * rng.uniform(0.35, 0.65)), int(height * rng.uniform(0.35, 0.65))
    pixels = torch.empty(3, height, width, dtype=torch.uint8)
    boxes, labels = [], []
    for left, right in ((0, x), (x, width)):
        for top, bottom in ((0, y), (y, height)):
            part = cut(draw(), right - left, bottom - top, rng)
            pixels[:, top:bottom, left:right] = part.pixels
            boxes.append(part.boxes + torch.tensor([left, top, left, top]))
            labels.append(part.labels)
    return TrainingView(pixels, torch.cat(boxes), torch.cat(labels))


def mirror(view: TrainingView) -> TrainingView:
    """Return a view mirrored left to right."""
    width = view.pixels.shape[2]
    x1, y1, x2, y2 = view.boxes.unbind(1)
    boxes = torch.stack([width - x2, y1, width - x1, y2], 1)
    return TrainingView(view.pixels.flip(2), boxes, view.labels)


def colour(pixels: Tensor, rng: np.random.Generator) -> Tensor:
    """Return an image, uint8 [3, H, W], with random gain, contrast, saturation and noise."""
    x = pixels.float()
    grey = x.mean(0, keepdim=True)
    saturation = 0.0 if rng.random() < 0.06 else rng.uniform(0.5, 1.5)
    x = grey + (x - grey) * float(saturation)
    middle = float(x.mean())
    x = middle + (x - middle) * float(rng.uniform(0.65, 1.4))
    gains = torch.tensor(rng.uniform(0.9, 1.1, 3) * rng.uniform(0.65, 1.35)).float()
    x = x * gains.view(3, 1, 1)
    if rng.random() < 0.3:
        noise = rng.standard_normal(x.shape, np.float32) * rng.uniform(1.0, 6.0)
        x = x + torch.from_numpy(noise.astype(np.float32))
    return x.clamp(0, 255).byte()


# Cut-outs of moving objects in clips of a fixed camera, to be pasted into other images.


_DIFFERENT = 28  # levels of 255 by which pixels of an object differ from the background
_CLEARLY = 75  # and some of its pixels: passing shadows do not
_TREMBLE = 7  # pixels of camera shake
_COARSE = 4  # pixels per cell in which connected parts are found
_CLOSE = 9  # pixels: size of the morphological closing
_SMALLEST = 0.004  # share of the image


@dataclass(frozen=True)
class Cutout:
    """An object cut out of a frame: pixels, mask and label."""

    pixels: Tensor  # uint8 [3, h, w]
    mask: Tensor  # float [h, w], 0 or 1
    label: int


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
        if _area(box) > _SMALLEST * mask.numel():
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


def paste(
    picture: Tensor, cutout: Cutout, rng: np.random.Generator, size: float, angle: float
) -> tuple[Tensor, Tensor] | None:
    """Paste an object into an image, uint8 [3, H, W]; return the new image and its box [4].

    ``size``: its longer side in pixels. ``angle``: rotation in radians. None if less than half of
    it would be inside.
    """
    height, width = cutout.mask.shape
    scale = size / max(height, width)
    side = 2 * math.ceil(size * 0.75)  # room for the diagonal
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    theta = torch.tensor(
        [
            [cos * side / width, -sin * side / width, 0.0],
            [sin * side / height, cos * side / height, 0.0],
        ]
    )
    grid = F.affine_grid(theta[None], [1, 4, side, side], align_corners=False)
    layers = torch.cat([cutout.pixels * cutout.mask, cutout.mask[None]])
    turned = F.grid_sample(layers[None], grid, align_corners=False)[0]
    gain = torch.tensor(rng.uniform(0.5, 1.25) * rng.uniform(0.8, 1.2, 3)).float().view(3, 1, 1)
    solid = F.avg_pool2d(turned[3:][None], 3, 1, 1)[0]
    rows, columns = (turned[3] > 0.5).nonzero().unbind(1)
    if not len(rows):
        return None
    y = int(rng.integers(-side // 4, picture.shape[1] - 3 * side // 4 + 1))
    x = int(rng.integers(-side // 4, picture.shape[2] - 3 * side // 4 + 1))
    whole = [int(columns.min()) + x, int(rows.min()) + y]
    whole += [int(columns.max()) + 1 + x, int(rows.max()) + 1 + y]
    box = torch.tensor(whole, dtype=torch.float32)
    limits = torch.tensor([picture.shape[2], picture.shape[1]] * 2, dtype=torch.float32)
    inside = torch.minimum(box.clamp(min=0), limits)
    if _area(inside) < 0.5 * _area(box):
        return None
    top, left = max(y, 0), max(x, 0)
    bottom, right = min(y + side, picture.shape[1]), min(x + side, picture.shape[2])
    part = (slice(None), slice(top - y, bottom - y), slice(left - x, right - x))
    out = picture.clone()
    old = out[:, top:bottom, left:right].float()
    new = torch.lerp(old, (turned[:3] / turned[3:].clamp(min=1e-3) * gain)[part], solid[part])
    out[:, top:bottom, left:right] = new.clamp(0, 255).byte()
    return out, inside


def _area(box: Tensor) -> float:
    return float((box[2] - box[0]).clamp(min=0) * (box[3] - box[1]).clamp(min=0))


@dataclass(frozen=True)
class LabelledImage:
    """An image and its labelled objects."""

    pixels: Tensor  # uint8 [3, H, W], red, green, blue
    boxes: Tensor  # [n, 4], pixels
    labels: Tensor  # int64 [n], into LABELS
    steady: bool = False  # of a camera whose frames are always seen whole
