"""Views of annotated images, and their tokens."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from costream.core.records import PixelSize
from costream.models.eventful.vitdet import ViTDet
from costream.models.image_values import IMAGENET_MEAN
from costream.models.images import Pixels
from costream.training.feature_cache import FeatureCache, example_key, example_seed, join_keys
from costream.training.objects.album import CLOSER, Album
from costream.training.objects.image_augment import (
    Cutout,
    LabelledImage,
    TrainingView,
    colour,
    cut,
    mirror,
    mosaic,
    put,
)
from costream.training.optim import device_of
from costream.weights_io.card import Card

log = logging.getLogger("costream")
_MOSAIC = 0.4  # share of the views that are mosaics
_COPIED = 0.8  # share of the views with pasted objects
_SMALLER = (0.7, 0.85)  # scale of the sides: smaller views teach as much in less time


class Encoded(NamedTuple):
    """Backbone tokens of an image, with its ground truth, on the CPU unless moved."""

    tokens: Tensor  # [h, w, D]
    boxes: Tensor  # [n, 4], pixels
    labels: Tensor  # int64 [n]
    size: Tensor  # int64 [2], height and width of the image in pixels

    def to(self, device: torch.device) -> Encoded:
        """Return the same on a device."""
        return Encoded(*(part.to(device) for part in self))


class Views:
    """Views of an album's images for a network: unchanged or augmented."""

    def __init__(self, album: Album, pixels: Pixels, seed: int) -> None:
        self.album, self.pixels, self.seed = album, pixels, seed
        width, height = pixels.box
        # All views of a batch share one size; the first is the size of the full box.
        self.canvases: list[PixelSize] = [
            (width + -width % pixels.patch, height + -height % pixels.patch),
            *((_even(s * width, pixels.patch), _even(s * height, pixels.patch)) for s in _SMALLER),
        ]

    def numbered(self, number: int, view: int) -> TrainingView:
        """Return a view of an image: 0 is the image as in a run, others are random crops.

        The view is determined by the seed, the file's name and the numbers alone.
        """
        if view == 0:
            scene = self.album.seen(number)
            return TrainingView(filled(scene.pixels, self.canvases[0]), scene.boxes, scene.labels)
        example = self.album.stills[number].example()
        rng = np.random.default_rng([example_seed(example, self.seed), view])
        return varied(cut(self.album.scene(number), *self.canvases[0], rng), rng)

    def fresh(self, size: PixelSize, rng: np.random.Generator) -> TrainingView:
        """Return a random view of one image or a mosaic of four, at times with pasted objects."""
        if rng.random() < _MOSAIC:
            view = mosaic(lambda: self.album.draw(rng), *size, rng)
        else:
            view = cut(self.album.draw(rng), *size, rng)
        if rng.random() < _COPIED:
            for _ in range(int(rng.integers(1, 3))):
                view = self._with_copy(view, rng)
        return varied(view, rng)

    def batch(
        self, count: int, rng: np.random.Generator
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return fresh views of one size, uint8 [B, 3, H, W], the boxes of each, and their labels.

        Images of rare classes are drawn more often.
        """
        size = self.canvases[int(rng.integers(len(self.canvases)))]
        drawn = [self.fresh(size, rng) for _ in range(count)]
        pixels = torch.stack([view.pixels for view in drawn])
        return pixels, [view.boxes for view in drawn], [view.labels for view in drawn]

    def _with_copy(self, view: TrainingView, rng: np.random.Generator) -> TrainingView:
        """Paste an object of another image, cut out by its box, into a view.

        Dwibedi, Misra, Hebert, "Cut, paste and learn" (ICCV 2017), without masks.
        """
        scene = self.album.draw(rng)
        if not len(scene.boxes):
            return view
        k = int(rng.integers(len(scene.boxes)))
        x1, y1, x2, y2 = scene.boxes[k].tolist()
        rows, columns = slice(int(y1), math.ceil(y2)), slice(int(x1), math.ceil(x2))
        pixels = scene.pixels[:, rows, columns]
        cutout = Cutout(pixels, torch.ones(pixels.shape[1:]), int(scene.labels[k]))
        size = max(pixels.shape[1:]) / CLOSER * math.exp(rng.uniform(-0.7, 0.7))
        return put(view, cutout, rng, min(size, 0.9 * min(view.pixels.shape[1:])), 0.0)


class EncodedViews:
    """Encoded views. The network's embedding and backbone must not change meanwhile.

    ``cache``: for their weights, see ``FeatureCache``. ``card``: of the network.
    """

    def __init__(self, views: Views, network: ViTDet, card: Card, cache: FeatureCache) -> None:
        self.views, self._network, self._cache = views, network, cache
        # Settings of the backbone that do not follow from its weights.
        self._shape = {k: v for k, v in card.arguments.items() if k != "classes"}

    def view(self, number: int, view: int) -> Encoded:
        """Return an encoded view of an image, see ``Views.numbered``."""
        return self._made(number, view, lambda: self.views.numbered(number, view))

    def seen(self, number: int) -> Encoded:
        """Return an image encoded as in a run."""
        return self._made(number, None, lambda: self.views.album.seen(number))

    def _made(
        self, number: int, view: int | None, draw: Callable[[], TrainingView | LabelledImage]
    ) -> Encoded:
        def compute() -> list[Tensor]:
            drawn = draw()
            size = torch.tensor(drawn.pixels.shape[1:])
            return [self._encode(drawn.pixels), drawn.boxes, drawn.labels, size]

        return Encoded(*self._cache.make(self._key(number, view), compute))

    @torch.no_grad()
    def _encode(self, pixels: Tensor) -> Tensor:
        """Return the tokens [h, w, D] of an image, uint8 [3, H, W]."""
        network = self._network
        pixels = self.views.pixels(pixels[None].to(device_of(network)))
        tokens: Tensor = network.backbone(network.embed(pixels))[0].cpu()
        return tokens

    def _key(self, number: int, view: int | None) -> list[Any] | None:
        still = self.views.album.stills[number]
        classes = self.views.album.classes[number].tolist()
        marks = [still.marks.boxes.tolist(), still.marks.relative, classes]
        settings = [self._shape, self.views.canvases[0], marks, view, self.views.seed]
        return join_keys(example_key(still.example()), settings)


def _even(pixels: float, patch: int) -> int:
    """Round ``pixels`` down to an even number of patches, as feature maps are halved."""
    return max(2 * patch, int(pixels) // (2 * patch) * 2 * patch)


def varied(view: TrainingView, rng: np.random.Generator) -> TrainingView:
    """Return a view with random colours, at times mirrored."""
    view = mirror(view) if rng.random() < 0.5 else view
    return TrainingView(colour(view.pixels, rng), view.boxes, view.labels)


def filled(pixels: Tensor, size: PixelSize) -> Tensor:
    """Return an image, uint8 [3, h, w], padded at the right and bottom to a width and height.

    The padding has the mean colour, as in a frontend.
    """
    width, height = size
    out = torch.tensor(IMAGENET_MEAN).round().byte().view(3, 1, 1).repeat(1, height, width)
    out[:, : pixels.shape[1], : pixels.shape[2]] = pixels
    return out
