"""Augmented training views of images with boxes: crops, mosaics, pasted objects and colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.models.image_values import IMAGENET_MEAN
from costream.nn.boxes import areas, clip_boxes

_VISIBLE = 0.3  # least visible share of an object
_COMMON = 0.3  # share of the photographs; rarer classes are shown more often
_SHORTEST = 7.0  # pixels, least shorter side of an object


@dataclass(frozen=True)
class LabelledImage:
    """An image and its labelled objects."""

    pixels: Tensor  # uint8 [3, H, W], red, green, blue
    boxes: Tensor  # [n, 4], pixels
    labels: Tensor  # int64 [n], into the labels
    steady: bool = False  # of a camera whose frames are always seen completely


@dataclass(frozen=True)
class TrainingView:
    """One training image and its boxes."""

    pixels: Tensor  # uint8 [3, H, W]
    boxes: Tensor  # [n, 4], pixels
    labels: Tensor  # int64 [n]


@dataclass(frozen=True)
class Cutout:
    """An object cut out of a frame: pixels, mask and label."""

    pixels: Tensor  # uint8 [3, h, w]
    mask: Tensor  # float [h, w], 0 or 1
    label: int


def channels_first(rgb: npt.NDArray[Any]) -> Tensor:
    """Return an image [H, W, 3] as a tensor [3, H, W]."""
    return torch.from_numpy(np.ascontiguousarray(rgb.transpose(2, 0, 1)))


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
    is_visible = hidden < 0.65
    boxes = torch.cat([view.boxes[is_visible], box[None]])
    labels = torch.cat([view.labels[is_visible], torch.tensor([cutout.label])])
    return TrainingView(pixels, boxes, labels)


def shown(has: Sequence[Sequence[bool]]) -> npt.NDArray[np.float64]:
    """Return the sampling probability of each image: higher for rare classes.

    ``has`` [N, K]: the classes present in each. Repeat factors, Gupta et al., "LVIS" (CVPR 2019).
    """
    present = np.array(has)
    factors = np.sqrt(_COMMON / present.mean(0).clip(1 / len(present))).clip(1)
    weights = np.where(present, factors, 1.0).max(1)
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
    complete = boxes * ratio
    inside = clip_boxes(complete, new_h, new_w)
    is_visible = areas(inside) > _VISIBLE * areas(complete)
    is_visible &= (inside[:, 2:] - inside[:, :2]).amin(1) > _SHORTEST
    return TrainingView(
        pixels, inside[is_visible] + torch.tensor([x, y, x, y]), scene.labels[is_visible]
    )


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
    corners = [int(columns.min()) + x, int(rows.min()) + y]
    corners += [int(columns.max()) + 1 + x, int(rows.max()) + 1 + y]
    box = torch.tensor(corners, dtype=torch.float32)
    limits = torch.tensor([picture.shape[2], picture.shape[1]] * 2, dtype=torch.float32)
    inside = torch.minimum(box.clamp(min=0), limits)
    if areas(inside) < 0.5 * areas(box):
        return None
    top, left = max(y, 0), max(x, 0)
    bottom, right = min(y + side, picture.shape[1]), min(x + side, picture.shape[2])
    part = (slice(None), slice(top - y, bottom - y), slice(left - x, right - x))
    out = picture.clone()
    old = out[:, top:bottom, left:right].float()
    new = torch.lerp(old, (turned[:3] / turned[3:].clamp(min=1e-3) * gain)[part], solid[part])
    out[:, top:bottom, left:right] = new.clamp(0, 255).byte()
    return out, inside
