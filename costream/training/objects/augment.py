"""Augmented training views of images: crops, mosaics, cut-outs and colours, with boxes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.frontends.pixels import IMAGENET_MEAN
from costream.nn.boxes import areas, clip_boxes
from costream.training.objects_cutouts import Cutout, paste
from weights.recipes.objects.data import LABELS, LabelledImage

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


@dataclass(frozen=True)
class ViewSource:
    """Source of random views of photographs and of the frames of clips.

    ``clips``: scenes of each; all clips are equally likely. ``cutouts``: pasted into any view.
    """

    photographs: Sequence[LabelledImage]
    clips: Sequence[Sequence[LabelledImage]]
    cutouts: Sequence[Sequence[Cutout]]  # by clip

    def batch(
        self, shape: tuple[int, int], count: int, rng: np.random.Generator
    ) -> tuple[Tensor, list[TrainingView]]:
        """Return ``count`` views of a width and height: pixels uint8 [B, 3, H, W], and views."""
        views = [self.view(shape, rng) for _ in range(count)]
        return torch.stack([v.pixels for v in views]), views

    def view(self, shape: tuple[int, int], rng: np.random.Generator) -> TrainingView:
        """Return one view."""
        width, height = shape
        if rng.random() < _MOSAIC:
            view = mosaic(lambda: self._scene(rng), width, height, rng)
        else:
            view = cut(self._scene(rng), width, height, rng)
        if rng.random() < 0.45:
            for _ in range(int(rng.integers(1, 4))):
                view = self._with_cutout(view, rng)
        if rng.random() < 0.5:
            view = mirror(view)
        return TrainingView(colour(view.pixels, rng), view.boxes, view.labels)

    def _scene(self, rng: np.random.Generator) -> LabelledImage:
        if self.clips and rng.random() < 0.35:
            clip_scenes = self.clips[int(rng.integers(len(self.clips)))]
            return clip_scenes[int(rng.integers(len(clip_scenes)))]
        return self.photographs[int(rng.choice(len(self.photographs), p=self._likely))]

    @cached_property
    def _likely(self) -> npt.NDArray[np.float64]:
        """Sampling probability of each photograph."""
        return shown([[k in s.labels for k in range(len(LABELS))] for s in self.photographs])

    def _with_cutout(self, view: TrainingView, rng: np.random.Generator) -> TrainingView:
        some = self.cutouts[int(rng.integers(len(self.cutouts)))] if self.cutouts else ()
        if not some:
            return view
        cutout = some[int(rng.integers(len(some)))]
        size = min(view.pixels.shape[1:]) * math.exp(rng.uniform(math.log(0.12), math.log(0.85)))
        # a vehicle seen from above may face any direction
        turn = math.pi if LABELS[cutout.label] == "vehicle" else 0.15
        return put(view, cutout, rng, size, float(rng.uniform(-turn, turn)))


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
