"""Views of a user's pictures, encoded by a backbone once each and kept on disk."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from costream.frontends.pixels import MEAN, Pixels
from costream.models.card import Card
from costream.models.vitdet import ViTDet
from costream.training.feature_cache import FeatureCache, chance_of, join_keys, key_of
from costream.training.objects_packs import Scene
from costream.training.objects_views import View, colour, cut, mirror
from costream.training.own_stills import Album, Size


class Encoded(NamedTuple):
    """What a backbone makes of a picture, and what is in it."""

    tokens: Tensor  # [h, w, D]
    boxes: Tensor  # [n, 4], pixels
    rows: Tensor  # int64 [n], which of the still's own boxes each is
    size: Tensor  # int64 [2], height and width of the picture in pixels


class Views:
    """Views of the stills of an album for a network: as it sees them, and cut out and coloured.

    What view ``k`` of a still is follows from the seed, the name of its file and ``k`` alone.
    """

    def __init__(self, album: Album, network: ViTDet, pixels: Pixels, seed: int) -> None:
        self.album, self.network, self.pixels = album, network, pixels
        self._seed = seed
        width, height = pixels.box
        # All views of a batch have the size of a whole box.
        self.canvas: Size = (width + -width % pixels.patch, height + -height % pixels.patch)

    def draw(self, number: int, view: int) -> View:
        """Give a view; labels are numbers of the still's own boxes. View 0 is as it is seen."""
        if view == 0:
            scene = self.album.seen(number)
            return View(filled(scene.pixels, self.canvas), scene.boxes, scene.labels)
        example = self.album.stills[number].example()
        rng = np.random.default_rng([chance_of(example, self._seed), view])
        drawn = cut(self.album.scene(number), *self.canvas, rng)
        if rng.random() < 0.5:
            drawn = mirror(drawn)
        return View(colour(drawn.pixels, rng), drawn.boxes, drawn.labels)

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
        """Give a view of a still, see ``Views.draw``."""

        def compute() -> list[Tensor]:
            return self._encoded(self._views.draw(number, view))

        return Encoded(*self._cache.make(self._key(number, view), compute))

    def seen(self, number: int) -> Encoded:
        """Give a still just as the network sees it in a run."""

        def compute() -> list[Tensor]:
            return self._encoded(self._views.album.seen(number))

        return Encoded(*self._cache.make(self._key(number, None), compute))

    def _encoded(self, view: View | Scene) -> list[Tensor]:
        size = torch.tensor(view.pixels.shape[1:])
        return [self._views.encode(view.pixels), view.boxes, view.labels, size]

    def _key(self, number: int, view: int | None) -> list[Any] | None:
        still = self._views.album.stills[number]
        marks = [still.marks.boxes.tolist(), still.marks.relative]
        own = [self._shape, self._views.canvas, marks, view, self._views._seed]
        return join_keys(key_of(still.example()), own)


def filled(pixels: Tensor, size: Size) -> Tensor:
    """Give a picture, uint8 [3, h, w], in the upper left corner of one of a width and height.

    The rest has the mean colour, as a frontend fills pictures up.
    """
    width, height = size
    out = torch.tensor(MEAN).round().byte().view(3, 1, 1).repeat(1, height, width)
    out[:, : pixels.shape[1], : pixels.shape[2]] = pixels
    return out
