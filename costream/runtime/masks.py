"""Masks over pictures: the pixels under them are neither seen by the model nor shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from costream.core.places import PAINT, Place, covered
from costream.core.records import Item, PixelSize, VideoFrame

Pixels = npt.NDArray[np.uint8]


class MaskPainter:
    """Paints the masks among ``places`` over the frames of one stream, in grey."""

    def __init__(self, places: Iterable[Place]) -> None:
        self.masks = frozenset(place for place in places if place.kind == "mask")
        self._hidden: dict[tuple[PixelSize, PixelSize], npt.NDArray[np.bool_]] = {}

    def paint(self, item: Item) -> Item:
        """Return the item; for a video frame a copy whose pixels are masked when they are read."""
        if not self.masks or not isinstance(item, VideoFrame):
            return item
        return self._frame(item)

    def _frame(self, frame: VideoFrame) -> VideoFrame:
        drawing = frame.drawing
        return replace(
            frame,
            convert=partial(self._painted, frame.convert, frame.size),
            drawing=None if drawing is None else partial(self._painted, drawing, frame.size),
            earlier=tuple(map(self._frame, frame.earlier)),
        )

    def _painted(self, convert: Callable[[], Pixels], size: PixelSize | None) -> Pixels:
        pixels: Pixels = convert().copy()
        shape = (pixels.shape[1], pixels.shape[0])
        key = (shape, size or shape)
        if key not in self._hidden:
            self._hidden[key] = covered(self.masks, shape[1], shape[0], key[1])
        pixels[self._hidden[key]] = PAINT
        return pixels
