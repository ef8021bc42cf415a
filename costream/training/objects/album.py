"""Images and video frames with annotated boxes, for training custom detectors."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from tqdm import tqdm

from costream.core.errors import SourceError, UsageError
from costream.core.records import IMAGE_SUFFIXES, Fault, PixelSize, VideoFrame
from costream.labels.clips_with_boxes import ClipWithBoxes, ImageBoxes
from costream.labels.examples import Example, split
from costream.nn.boxes import areas, clip_boxes
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from costream.training.objects.image_augment import (
    LabelledImage,
    channels_first,
    shown,
)

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
        """Sampling probability of each image; images of rare classes are drawn more often."""
        return shown([[k in classes for k in range(self._total)] for classes in self.classes])

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
        pixels, original = kept
        height, width = pixels.shape[1:]
        shares = still.marks.pixels(original) / np.tile(original, 2)
        boxes = torch.from_numpy(shares * np.tile((width, height), 2)).float().view(-1, 4)
        boxes = clip_boxes(boxes, height, width)
        is_inside = areas(boxes) > 0
        return LabelledImage(pixels, boxes[is_inside], self.classes[number][is_inside])

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
            message = f"has boxes for frame {min(missing)}, which cannot be read"
            raise UsageError(message, where=source)
        return found


def _pixels(rgb: npt.NDArray[np.uint8], size: PixelSize | None) -> _Pixels:
    height, width = rgb.shape[:2]
    return channels_first(rgb), size or (width, height)
