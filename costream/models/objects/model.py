"""Models of detectors that look at every frame alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.core.records import Data, SourceInfo, VideoFrame
from costream.models.base import ModelHead, ModelInfo, StepResult
from costream.models.compatibility import check_source
from costream.models.devices import find_device, find_dtype, synchronize
from costream.models.eventful.detector import boxes_in_frame
from costream.models.images import Pixels
from costream.models.objects.nanodet import NanoDetPlus
from costream.nn.eventful.counts import Operations
from costream.nn.state import State, zeros
from costream.weights_io.card import Card


@dataclass
class FrameCount(State):
    """State of streams: how many frames each had, as nothing else is remembered."""

    frames: Tensor  # int64 [B]


class DetectorModel:
    """Detector and frontend of one weight file; implements ``models.base.Model``.

    Streams of a batch may have frames of different sizes: those of one size are computed together.
    ``network`` is in ``eval`` mode on ``device`` with ``dtype`` weights.
    """

    def __init__(
        self,
        card: Card,
        network: NanoDetPlus,
        frontend: Pixels | None,
        *,
        weights_sha256: str = "",
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        """Take over the modules.

        Raises ModelError for an unavailable device or dtype, and for modules that do not fit the
        card or each other.
        """
        if not isinstance(frontend, Pixels) or frontend.patch % network.patch:
            what = f"{card.name} takes frames of whole squares of {network.patch} pixels"
            raise ModelError(f"{what}, but its card does not name the frontend pixels with them")
        if len(card.labels) != network.classes:
            raise ModelError(
                f"{card.name} has {len(card.labels)} labels for {network.classes} classes"
            )
        self.device = find_device(device)
        self.dtype = find_dtype(dtype)
        self.network = network.to(self.device, self.dtype).eval().requires_grad_(False)
        for weight in self.network.parameters():
            if weight.ndim == 4:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        self.frontend = frontend.to(self.device, self.dtype)
        self.info = ModelInfo(
            card,
            weights_sha256,
            (ModelHead(card, weights_sha256, slice(None)),),
            box=frontend.box,
        )

    def check(self, source: SourceInfo) -> dict[str, Any]:
        """Raise SourceError if this source is not video; return no entries for the header."""
        check_source(self.info.card, self.frontend, source)
        return {}

    def init_state(self, batch_size: int = 1) -> FrameCount:
        """Return an initial state for ``batch_size`` streams."""
        return FrameCount(zeros(batch_size))

    @torch.inference_mode()
    def step(self, items: Sequence[Data], state: FrameCount) -> StepResult:
        """Take one frame per stream, return its objects."""
        began = time.perf_counter()
        frames = [item for item in items if isinstance(item, VideoFrame)]
        if len(frames) < len(items):
            raise TypeError("expected VideoFrames only")
        prepared = [torch.from_numpy(self.frontend.prepare(frame.rgb)) for frame in frames]
        groups: dict[tuple[int, ...], list[int]] = {}
        for row, picture in enumerate(prepared):
            groups.setdefault(tuple(picture.shape), []).append(row)
        pictures = [
            self.frontend(torch.stack([prepared[row] for row in rows]).to(self.device))
            for rows in groups.values()
        ]
        synchronize(self.device)
        seen, operations, labels = time.perf_counter(), Operations(), self.info.card.labels
        objects: dict[int, tuple[Any, ...]] = {}
        for rows, batch in zip(groups.values(), pictures, strict=True):
            for row, found in zip(rows, self.network.detect(batch, operations), strict=True):
                place = tuple(prepared[row].shape[1:])
                objects[row] = boxes_in_frame(found, frames[row], (place[0], place[1]), labels)
        state.frames += 1
        return StepResult(
            None,
            None,
            (False,) * len(items),
            macs=operations.total,
            dense_macs=operations.total,
            frontend_s=seen - began,
            network_s=time.perf_counter() - seen,
            objects=tuple(objects[row] for row in range(len(items))),
        )

    def steps(self, items: Sequence[Data], state: FrameCount) -> list[StepResult]:
        """Take consecutive frames of one stream, return their results."""
        return [self.step([item], state) for item in items]
