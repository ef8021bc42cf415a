"""Views of a user's pictures, encoded by a backbone once each and kept on disk."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from costream.frontends.pixels import MEAN, Pixels
from costream.models.card import Card
from costream.models.vitdet import ViTDet
from costream.training.feature_cache import FeatureCache, chance_of, join_keys, key_of
from costream.training.objects_cutouts import Cutout
from costream.training.objects_packs import Scene
from costream.training.objects_views import View, colour, cut, mirror, mosaic, put
from costream.training.own_stills import CLOSER, Album, Size

_MOSAIC, _COPIED = 0.4, 0.8  # of the views
_SMALLER = (0.7, 0.85)  # of the sides: as much is learnt from smaller views, in less time


class Encoded(NamedTuple):
    """What a backbone makes of a picture, and what is in it."""

    tokens: Tensor  # [h, w, D]
    boxes: Tensor  # [n, 4], pixels
    labels: Tensor  # int64 [n]
    size: Tensor  # int64 [2], height and width of the picture in pixels


class Views:
    """Views of the stills of an album for a network: as it sees them, and varied."""

    def __init__(self, album: Album, network: ViTDet, pixels: Pixels, seed: int) -> None:
        self.album, self.network, self.pixels, self.seed = album, network, pixels, seed
        width, height = pixels.box
        # All views of a batch have the same size, the first of these that of a whole box.
        self.canvases: list[Size] = [
            (width + -width % pixels.patch, height + -height % pixels.patch),
            *((_even(s * width, pixels.patch), _even(s * height, pixels.patch)) for s in _SMALLER),
        ]

    def numbered(self, number: int, view: int) -> View:
        """Give a view of a still: 0 is as it is seen, others are parts of it.

        What is shown follows from the seed, the name of the file and the numbers alone.
        """
        if view == 0:
            scene = self.album.seen(number)
            return View(filled(scene.pixels, self.canvases[0]), scene.boxes, scene.labels)
        example = self.album.stills[number].example()
        rng = np.random.default_rng([chance_of(example, self.seed), view])
        return varied(cut(self.album.scene(number), *self.canvases[0], rng), rng)

    def fresh(self, size: Size, rng: np.random.Generator) -> View:
        """Give a view of any still, or of four, with objects of others put into it at times."""
        if rng.random() < _MOSAIC:
            view = mosaic(lambda: self.album.draw(rng), *size, rng)
        else:
            view = cut(self.album.draw(rng), *size, rng)
        if rng.random() < _COPIED:
            for _ in range(int(rng.integers(1, 3))):
                view = self._with_copy(view, rng)
        return varied(view, rng)

    def _with_copy(self, view: View, rng: np.random.Generator) -> View:
        """Put an object of another still into a view, as its box cuts it out.

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

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Give the tokens [h, w, D] of a picture, uint8 [3, H, W]."""
        network = self.network
        tokens: Tensor = network.backbone(network.embed(self.pixels(pixels[None])))[0]
        return tokens


class EncodedViews:
    """Views as tokens. The network's embedding and backbone must not change meanwhile.

    ``cache``: that of their weights, see ``FeatureCache``. ``card``: that of the network.
    """

    def __init__(self, views: Views, card: Card, cache: FeatureCache) -> None:
        self._views, self._cache = views, cache
        # What the backbone's weights do not tell of it.
        self._shape = {k: v for k, v in card.arguments.items() if k != "classes"}

    def view(self, number: int, view: int) -> Encoded:
        """Give a view of a still, see ``Views.numbered``."""
        return self._made(number, view, lambda: self._views.numbered(number, view))

    def seen(self, number: int) -> Encoded:
        """Give a still just as the network sees it in a run."""
        return self._made(number, None, lambda: self._views.album.seen(number))

    def _made(self, number: int, view: int | None, draw: Callable[[], View | Scene]) -> Encoded:
        def compute() -> list[Tensor]:
            drawn = draw()
            size = torch.tensor(drawn.pixels.shape[1:])
            return [self._views.encode(drawn.pixels), drawn.boxes, drawn.labels, size]

        return Encoded(*self._cache.make(self._key(number, view), compute))

    def _key(self, number: int, view: int | None) -> list[Any] | None:
        still = self._views.album.stills[number]
        classes = self._views.album.classes[number].tolist()
        marks = [still.marks.boxes.tolist(), still.marks.relative, classes]
        own = [self._shape, self._views.canvases[0], marks, view, self._views.seed]
        return join_keys(key_of(still.example()), own)


def _even(pixels: float, patch: int) -> int:
    """Give about so many pixels, or fewer: an even number of patches, as maps are halved."""
    return max(2 * patch, int(pixels) // (2 * patch) * 2 * patch)


def varied(view: View, rng: np.random.Generator) -> View:
    """Give a view in other light, and mirrored at times."""
    view = mirror(view) if rng.random() < 0.5 else view
    return View(colour(view.pixels, rng), view.boxes, view.labels)


def filled(pixels: Tensor, size: Size) -> Tensor:
    """Give a picture, uint8 [3, h, w], in the upper left corner of one of a width and height.

    The rest has the mean colour, as a frontend fills pictures up.
    """
    width, height = size
    out = torch.tensor(MEAN).round().byte().view(3, 1, 1).repeat(1, height, width)
    out[:, : pixels.shape[1], : pixels.shape[2]] = pixels
    return out
