"""Token-gated models for object detection in video (Eventful ViTDet)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from costream.core.places import Place, covered
from costream.core.records import Box, Data, PixelSize, VideoFrame
from costream.models.base import StepResult
from costream.models.eventful.box_heads import Detections
from costream.models.eventful.changed_stem import ChangedStem, complete_next
from costream.models.eventful.frame_detector import FrameDetector
from costream.models.eventful.shuffle import ShuffleEmbedding
from costream.models.gated import GatedModelBase, TokenState, check_single_stream, least_change
from costream.models.images import Pixels, Resized
from costream.nn.boxes import clip_boxes
from costream.nn.eventful.counts import Operations
from costream.nn.state import State, numbers_of, zeros
from costream.weights_io.card import Card

if TYPE_CHECKING:
    from costream.nn.eventful.convolutional import KeptMaps

Size = tuple[int, int]  # height, width


@dataclass
class ObjectState(TokenState):
    """State of a stream. Memory is allocated at the first frame, for frames of its size."""

    begin: Callable[[int, int], State]  # (height, width): the network's initial state
    size: Tensor  # int64 [1, 2], height and width of its frames in pixels; zeros: none yet
    begin_stem: Callable[[int, int], KeptMaps] | None = None  # the same of a ``ChangedStem``
    network: State | None = None
    stem: KeptMaps | None = None  # None: the newest frame was complete before the gates
    rest_macs: int | None = None  # of the newest frame, outside the gates, with all of the stem
    saved_macs: int = 0  # of these, what is saved by places without a change

    @property
    def frame_size(self) -> Size | None:
        """Height and width of the frames in pixels; None before the first."""
        height, width = self.size[0].tolist()
        return (height, width) if height else None

    def network_for(self, height: int, width: int) -> State:
        """Return the network's state; an initial one if frames had another size so far."""
        if self.network is None or self.frame_size != (height, width):
            self.network, self.stem = self.begin(height, width), None
            self.size[0] = torch.tensor((height, width))
        return self.network

    def limits(self, count: int) -> bool:
        """Return whether a number or a share of tokens is below all of them, ``count``."""
        tokens = self.tokens
        if self.pace is not None:
            return True
        if isinstance(tokens, int):
            return tokens < count
        if tokens is None or least_change(tokens) is not None:
            return False
        return float(tokens.removesuffix("%")) < 100

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore the values of ``tensors()``, bit for bit.

        Raises KeyError for missing or unknown names, ValueError for other shapes or dtypes.
        """
        kept = {k.removeprefix("stem."): t for k, t in tensors.items() if k.startswith("stem.")}
        rest = {
            k.removeprefix("network."): t
            for k, t in tensors.items()
            if k != "size" and not k.startswith("stem.")
        }
        if tensors["size"].shape != self.size.shape:
            raise ValueError(f"state size: {tuple(tensors['size'].shape)}, not (1, 2)")
        height, width = tensors["size"][0].tolist()
        network = self.begin(height, width) if height else None
        if network is not None:
            network.load_tensors(rest)
        elif rest or kept:
            raise KeyError(f"state does not fit: {sorted(rest | kept)}")
        stem = None
        if kept:
            if self.begin_stem is None:
                raise KeyError(f"state does not fit: {sorted(kept)}")
            stem = self.begin_stem(height, width)
            stem.load_tensors(kept)
        self.size, self.network, self.stem = tensors["size"].clone(), network, stem

    def reset(self, rows: Iterable[int] | None = None) -> None:
        """Reset the stream."""
        if rows is None or numbers_of(rows):
            self.size.zero_()
            self.network = self.stem = self.rest_macs = None
            self.saved_macs = 0

    def take(self, rows: Iterable[int]) -> ObjectState:
        """Return a copy of the stream, which is row 0."""
        _check_row(rows)
        return self.clone()

    def put(self, rows: Iterable[int], other: State) -> None:
        """Copy the state of another stream, bit for bit; ``rows`` is row 0."""
        _check_row(rows)
        self.load_tensors(other.tensors())


class ObjectModel(GatedModelBase[FrameDetector, Pixels | Resized, ObjectState]):
    """Network and frontend of one weight file, ready to step; implements ``GatedModel``."""

    frontend_type: ClassVar[type] = Pixels

    def __init__(
        self, card: Card, network: FrameDetector, frontend: Pixels | Resized | None, **settings: Any
    ) -> None:
        """Take over the modules, see ``GatedModelBase``."""
        super().__init__(card, network, frontend, **settings)
        # Convolutions then have the channels of a place contiguous in memory.
        for weight in self.network.parameters():
            if weight.ndim == 4:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        stem, self._stem = network.embedding, None
        if self.device.type == "cpu" and isinstance(stem, ShuffleEmbedding):
            self._stem = ChangedStem(stem)

    @staticmethod
    def count_classes(network: FrameDetector) -> int:
        """Return the number of classes of a network."""
        return network.classes

    def init_state(self, batch_size: int = 1) -> ObjectState:
        """Return an initial state. ValueError for more than one stream: each has its own state."""
        check_single_stream(batch_size)
        begin = partial(self.network.init_state, 1)
        stem = None if self._stem is None else self._stem.init_state
        return ObjectState(begin, zeros(1, 2), stem)

    def token_count(self, state: ObjectState) -> int | None:
        """Return the number of tokens of a frame of this stream; None before its first."""
        if state.frame_size is None or state.rest_macs is None:
            return None
        return math.prod(self._grid(*state.frame_size))

    def step_macs(self, state: ObjectState, count: int) -> int:
        """Return the approximate cost of a step with ``count`` tokens.

        The cost outside the gates is that of the newest frame, and that of a complete frame for
        all tokens. ValueError before the first frame.
        """
        if state.frame_size is None or state.rest_macs is None:
            raise ValueError("the cost of a step is unknown before the first frame")
        height, width = self._grid(*state.frame_size)
        count = min(count, height * width)
        complete = state.stem is None or complete_next(int(state.stem.frames))
        saved = 0 if complete or count == height * width else state.saved_macs
        return state.rest_macs - saved + self.network.count_macs(height, width, count)

    @torch.inference_mode()
    def step(self, items: Sequence[Data], state: ObjectState) -> StepResult:
        """Take the next frame of the stream, return its objects.

        ``dense_macs`` is the cost of the same frame when all its tokens are computed.
        """
        began = time.perf_counter()
        frame, pictures = self.prepare(items)
        seen = time.perf_counter()
        gated, rest = Operations(), Operations()
        network, size = self.network, (pictures.shape[2], pictures.shape[3])
        memory = state.network_for(*size)
        tokens, saved = self._embed(pictures, state, rest)
        height, width = tokens.shape[1:3]
        place = self.place(frame, size)
        seen_tokens = self._seen(state.masks, frame, place, size)
        gates = state.policy(height * width, seen_tokens, self.all_tokens, network.token_gate)
        view = network.view_step(tokens, memory, gates, gated)
        found = network.detect(view, size, rest)[0]
        boxes = boxes_in_frame(found, frame, place, self.info.card.labels)
        updated = gates.updated.view(height, width).cpu().numpy()
        state.rest_macs = rest.total + saved
        return StepResult(
            None,
            None,
            (False,),
            macs=rest.total + gated.total,
            dense_macs=state.rest_macs + network.count_macs(height, width),
            frontend_s=seen - began,
            network_s=time.perf_counter() - seen,
            objects=(boxes,),
            updated=(updated,),
            tokens=(int(updated.sum()),),
            policy=None if updated.all() else state.policy_name(network.token_gate),
        )

    def _embed(
        self, pictures: Tensor, state: ObjectState, operations: Operations
    ) -> tuple[Tensor, int]:
        """Return tokens [1, h, w, D], and the operations that places without a change save."""
        height, width = pictures.shape[2:]
        count = math.prod(self._grid(height, width))
        if self._stem is None or self.all_tokens or not state.limits(count):
            state.stem, state.saved_macs = None, 0
            return self.network.embed(pictures, operations), 0
        self.network.check_size(height, width)
        if state.stem is None:
            state.stem = self._stem.init_state(height, width)
        tokens, saved = self._stem.forward_step(pictures, state.stem, operations)
        number = int(state.stem.frames) - 1
        if number == 0:  # what the next ones save is not known: as if nothing changed
            state.saved_macs = operations.total
        elif not complete_next(number):
            state.saved_macs = saved
        return tokens, saved

    def _grid(self, height: int, width: int) -> Size:
        return height // self.network.patch, width // self.network.patch

    def _seen(
        self, masks: frozenset[Place], frame: VideoFrame, place: Size, size: Size
    ) -> Tensor | None:
        """Return the tokens that masks do not cover entirely, int64 [n]; None: all."""
        if not masks:
            return None
        source = place[::-1] if frame.size is None else frame.size
        return _seen_tokens(masks, source, place, size, self.network.patch)

    def place(self, frame: VideoFrame, size: Size) -> Size:
        """Return height and width of the frame within the network's input of this ``size``."""
        height, width = frame.rgb.shape[:2]
        return height, width


def boxes_in_frame(
    found: Detections, frame: VideoFrame, place: Size, labels: Sequence[str]
) -> tuple[Box, ...]:
    """Return boxes in pixels of the source's frame, clipped to it.

    ``place``: height and width of the frame in the network's input. ``labels``: of the model.
    """
    height, width = frame.rgb.shape[:2]
    whole = (width, height) if frame.size is None else frame.size
    sides, own = (torch.tensor(2 * size).double() for size in (whole, place[::-1]))
    boxes = clip_boxes(found.boxes.cpu().double() * sides / own, whole[1], whole[0]).tolist()
    rows = zip(boxes, found.scores.tolist(), found.labels.tolist(), strict=True)
    # Boxes in the padding beside the image have no area left.
    return tuple(
        Box(x1, y1, x2, y2, score, labels[label])
        for (x1, y1, x2, y2), score, label in rows
        if x1 < x2 and y1 < y2
    )


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _seen_tokens(
    masks: frozenset[Place], source: PixelSize, place: Size, size: Size, patch: int
) -> Tensor:
    """Return the tokens of a picture of ``size`` that are not wholly masked, int64 [n].

    The frame, whose own width and height are ``source``, is in the part ``place`` of it.
    """
    hidden = np.zeros(size, np.bool_)
    hidden[: place[0], : place[1]] = covered(masks, *place, source)
    height, width = size[0] // patch, size[1] // patch
    whole = hidden[: height * patch, : width * patch].reshape(height, patch, width, patch)
    return torch.from_numpy(np.flatnonzero(~whole.all((1, 3))))


def _check_row(rows: Iterable[int]) -> None:
    numbers = numbers_of(rows)
    if numbers != [0]:
        raise IndexError(f"rows {numbers} of 1 stream, which has row 0 only")
