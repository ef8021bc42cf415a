"""Images and video frames with annotated boxes, for training custom detectors."""

from __future__ import annotations

import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from tqdm import tqdm

from costream.core.errors import SourceError, UsageError
from costream.core.records import IMAGE_SUFFIXES, Fault, PixelSize, VideoFrame
from costream.labels.boxes import ClipWithBoxes, ImageBoxes
from costream.labels.examples import Example, split
from costream.models.eventful.vitdet import ViTDet
from costream.models.images import IMAGENET_MEAN, Pixels
from costream.nn.boxes import areas, clip_boxes
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from costream.training.feature_cache import FeatureCache, example_key, example_seed, join_keys
from costream.training.objects.augment import (
    Cutout,
    LabelledImage,
    TrainingView,
    channels_first,
    colour,
    cut,
    mirror,
    mosaic,
    put,
    shown,
)
from costream.training.optim import device_of
from costream.weights_io.card import Card

log = logging.getLogger("costream")
_Pixels = tuple[Tensor, PixelSize]  # of a frame, uint8 [3, h, w], and the size of its source
ROOM_BYTES = 1 << 30  # of images held in memory
CLOSER = 1.6  # times the network's input size: crops are taken from larger images


@dataclass(frozen=True)
class AnnotatedImage:
    """An image, or a frame of a clip, with annotated boxes."""

    source: str
    frame: int  # of the source, from 0
    marks: ImageBoxes
    group: str  # never on both sides of a split; default: the file

    def example(self, label: str = "") -> Example:
        """Return the image as an example of a label."""
        begin = float(self.frame)
        return Example(self.source, label, begin, None, self.group, self.source)


def is_picture(source: str) -> bool:
    """Return whether a source is an image, by its suffix."""
    return Path(source).suffix.lower() in IMAGE_SUFFIXES


def annotated_images(clips: Sequence[ClipWithBoxes]) -> list[AnnotatedImage]:
    """Return every image and every frame with annotated boxes, in the order of the clips."""
    stills = []
    for one in clips:
        pictures = is_picture(one.sources[0])
        for number, marks in sorted(one.frames.items()):
            place = (one.sources[number], 0) if pictures else (one.sources[0], number)
            stills.append(AnnotatedImage(*place, marks, one.apart))
    return stills


def divide(
    stills: Sequence[AnnotatedImage], share: float, seed: int
) -> tuple[list[AnnotatedImage], list[AnnotatedImage]]:
    """Return the training and validation images, no group on both sides.

    About ``share`` of the boxes of each class are for validation, see ``labels.examples.split``.
    """
    boxes = [still.example(label) for still in stills for label in still.marks.labels]
    held = {example.group for example in split(boxes, share, seed)[1]}
    return [s for s in stills if s.group not in held], [s for s in stills if s.group in held]


def count_boxes(stills: Sequence[AnnotatedImage]) -> Counter[str]:
    """Return the number of boxes of each label."""
    return Counter(label for still in stills for label in still.marks.labels)


class Album:
    """The pixels of annotated images. All are read at once, so damaged files show immediately.

    Video frames stay in memory, and images while there is room; the rest is read again when
    needed. ``labels``: the classes by number. ``box``: width and height that a network's images
    are fitted into. Raises SourceError or UsageError, naming the file, if it cannot be read, is
    not an image or lacks the frame.
    """

    def __init__(
        self, stills: Sequence[AnnotatedImage], labels: Sequence[str], box: PixelSize
    ) -> None:
        self.stills, self._box, self._total = list(stills), box, len(labels)
        self.classes = [
            torch.tensor([labels.index(label) for label in s.marks.labels]).long() for s in stills
        ]
        self._large = (round(CLOSER * box[0]), round(CLOSER * box[1]))
        self._kept: dict[tuple[str, int, PixelSize], _Pixels] = {}
        frames: dict[str, set[int]] = {}
        for still in stills:
            frames.setdefault(still.source, set()).add(still.frame)
        room = ROOM_BYTES
        bar = tqdm(frames.items(), "reading", file=sys.stderr, disable=None, leave=False)
        for source, wanted in bar:
            found = self._read(source, wanted, (self._large, self._box))
            room -= sum(pixels.nbytes for pixels, _ in found.values())
            if room > 0 or not is_picture(source):
                self._kept |= {(source, *place): row for place, row in found.items()}

    @cached_property
    def likely(self) -> npt.NDArray[np.float64]:
        """Sampling probability of each image; those of rare classes are drawn more often."""
        return shown([[k in own for k in range(self._total)] for own in self.classes])

    def draw(self, rng: np.random.Generator) -> LabelledImage:
        """Return a random image, larger than a network's input."""
        return self.scene(int(rng.choice(len(self.stills), p=self.likely)))

    def scene(self, number: int) -> LabelledImage:
        """Return an image, larger than a network's input."""
        return self._scene(number, self._large)

    def seen(self, number: int) -> LabelledImage:
        """Return an image at the size of a network's input."""
        return self._scene(number, self._box)

    def _scene(self, number: int, size: PixelSize) -> LabelledImage:
        still = self.stills[number]
        kept = self._kept.get((still.source, still.frame, size))
        if kept is None:
            kept = self._read(still.source, {still.frame}, (size,))[still.frame, size]
        pixels, whole = kept
        height, width = pixels.shape[1:]
        shares = still.marks.pixels(whole) / np.tile(whole, 2)
        boxes = torch.from_numpy(shares * np.tile((width, height), 2)).float().view(-1, 4)
        boxes = clip_boxes(boxes, height, width)
        there = areas(boxes) > 0
        return LabelledImage(pixels, boxes[there], self.classes[number][there])

    def _read(
        self, source: str, wanted: Collection[int], sizes: Collection[PixelSize]
    ) -> dict[tuple[int, PixelSize], _Pixels]:
        """Read frames of a source in one or both sizes."""
        opened = open_source(source, SourceOptions(box=self._box, drawing=self._large))
        found: dict[tuple[int, PixelSize], _Pixels] = {}
        missing = set(wanted)
        try:
            if opened.open().kind != "video":
                raise UsageError("has no images", where=source)
            for item in opened.items():
                if isinstance(item, Fault):
                    log.warning("%s: %s", source, item.message)
                elif isinstance(item, VideoFrame) and item.i in missing:
                    assert item.drawing is not None
                    for size in sizes:  # convert only the requested sizes
                        rgb = item.rgb if size == self._box else item.drawing()
                        found[item.i, size] = _pixels(rgb, item.size)
                    missing.remove(item.i)
                    if not missing:
                        break
        except SourceError as error:
            message = str(error)
            raise error if source in message else SourceError(message, where=source) from error
        finally:
            opened.close()
        if missing:
            lacking = f"has boxes for frame {min(missing)}, which cannot be read"
            raise UsageError(lacking, where=source)
        return found


def _pixels(rgb: npt.NDArray[np.uint8], size: PixelSize | None) -> _Pixels:
    height, width = rgb.shape[:2]
    return channels_first(rgb), size or (width, height)


_MOSAIC, _COPIED = 0.4, 0.8  # shares of the views
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

    def __init__(self, album: Album, network: ViTDet, pixels: Pixels, seed: int) -> None:
        self.album, self.network, self.pixels, self.seed = album, network, pixels, seed
        width, height = pixels.box
        # All views of a batch share one size; the first is that of the whole box.
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

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Return the tokens [h, w, D] of an image, uint8 [3, H, W]."""
        network = self.network
        pixels = self.pixels(pixels[None].to(device_of(network)))
        tokens: Tensor = network.backbone(network.embed(pixels))[0].cpu()
        return tokens


class EncodedViews:
    """Encoded views. The network's embedding and backbone must not change meanwhile.

    ``cache``: for their weights, see ``FeatureCache``. ``card``: of the network.
    """

    def __init__(self, views: Views, card: Card, cache: FeatureCache) -> None:
        self.views, self._cache = views, cache
        # Settings of the backbone that its weights do not determine.
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
            return [self.views.encode(drawn.pixels), drawn.boxes, drawn.labels, size]

        return Encoded(*self._cache.make(self._key(number, view), compute))

    def _key(self, number: int, view: int | None) -> list[Any] | None:
        still = self.views.album.stills[number]
        classes = self.views.album.classes[number].tolist()
        marks = [still.marks.boxes.tolist(), still.marks.relative, classes]
        own = [self._shape, self.views.canvases[0], marks, view, self.views.seed]
        return join_keys(example_key(still.example()), own)


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
