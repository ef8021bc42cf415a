"""Models of detectors of single pictures: at every picture, or where something has moved."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.core.records import Box, Data, SourceInfo, VideoFrame
from costream.models.base import Cost, Looks, ModelHead, ModelInfo, StepResult
from costream.models.compatibility import check_source
from costream.models.devices import find_device, find_dtype, synchronize
from costream.models.eventful.box_heads import Detections
from costream.models.eventful.detector import boxes_in_frame
from costream.models.gated import least_change
from costream.models.image_values import IMAGENET_STD
from costream.models.images import Pixels, fitted
from costream.models.objects.looks import DetectorState, Reason, brightness
from costream.models.objects.nanodet import NanoDetPlus
from costream.nn.eventful.changed_places import THRESHOLD, ChangedPlaces
from costream.nn.eventful.counts import Operations
from costream.weights_io.card import Card

PIXELS = 90_000  # of the network's input, below which complete pictures are computed by default
_LEVEL = sum(IMAGENET_STD) / 3  # of 255, for a normalised picture's 1


class DetectorModel:
    """Detector and frontend of one weight file; implements ``models.base.Model``.

    ``sparing``: streams begin with ``Looks``: a picture in which nothing has moved since the newest
    look gets the boxes of that look, for up to ``AGE_S``.
    Streams of a batch may have frames of different sizes: complete ones of one size are computed
    together. Of the others, only the places that have changed are computed, see ``ChangedPlaces``.
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
        self.sparing = False
        self._places = (
            ChangedPlaces(self.network)
            if isinstance(network, NanoDetPlus)
            and self.device.type == "cpu"
            and self.dtype in (torch.float32, torch.float64)
            else None
        )
        self._numbers = {label: k for k, label in enumerate(card.labels)}
        self.info = ModelInfo(
            card,
            weights_sha256,
            (ModelHead(card, weights_sha256, slice(None)),),
            box=frontend.box,
            looks=True,
            by_place=self._places is not None,
        )

    def check(self, source: SourceInfo) -> dict[str, Any]:
        """Raise SourceError if this source is not video; return no entries for the header."""
        check_source(self.info.card, self.frontend, source)
        return {}

    def init_state(self, batch_size: int = 1) -> DetectorState:
        """Return an initial state for ``batch_size`` streams."""
        return DetectorState.zeros(batch_size, Looks() if self.sparing else None)

    @torch.inference_mode()
    def step(self, items: Sequence[Data], state: DetectorState) -> StepResult:
        """Take one frame per stream, return its objects: found now, or those of the newest look."""
        began = time.perf_counter()
        frames = [item for item in items if isinstance(item, VideoFrame)]
        if len(frames) < len(items):
            raise TypeError("expected VideoFrames only")
        reasons, cells = self._reasons(frames, state)
        rows = [row for row in range(len(frames)) if reasons is None or reasons[row] is not None]
        prepared = {row: self._prepared(frames[row].rgb) for row in rows}
        groups: dict[tuple[int, ...], list[int]] = {}
        for row, picture in prepared.items():
            groups.setdefault(tuple(picture.shape), []).append(row)
        pictures = [
            self.frontend(_stacked([prepared[row] for row in rows]).to(self.device))
            for rows in groups.values()
        ]
        synchronize(self.device)
        seen, labels = time.perf_counter(), self.info.card.labels
        objects: dict[int, tuple[Box, ...]] = {}
        macs, area = dict.fromkeys(range(len(frames)), 0), dict[int, float]()
        for rows, batch in zip(groups.values(), pictures, strict=True):
            for row, found, count, share in self._looked(rows, batch, state):
                place = tuple(prepared[row].shape[1:])
                objects[row] = boxes_in_frame(found, frames[row], (place[0], place[1]), labels)
                macs[row] = count
                if share is not None:
                    area[row] = share
        if reasons is not None:
            for row, frame in enumerate(frames):
                if row in objects:
                    state.hold(row, frame.time_s, cells[row], objects[row], self._numbers)
                else:
                    objects[row] = state.held(row, labels)
        state.frames += 1
        done, dense_macs = time.perf_counter(), int(state.macs.sum())
        total = sum(macs.values())
        cost = Cost(total, done - began, dense_macs)
        return StepResult(
            None,
            None,
            (False,) * len(items),
            macs=total,
            dense_macs=dense_macs,
            frontend_s=seen - began,
            network_s=done - seen,
            objects=tuple(objects[row] for row in range(len(items))),
            area=tuple(area.get(row) for row in range(len(items))) if area else None,
            policy="change" if area else None,
            work=tuple(zip(macs.values(), state.macs.tolist(), strict=True)),
            ran=None if reasons is None else self._ran(reasons),
            costs=None if reasons is None else {self.info.card.name: cost},
        )

    def _looked(
        self, rows: list[int], pictures: Tensor, state: DetectorState
    ) -> Iterator[tuple[int, Detections, int, float | None]]:
        """Yield each row with its objects, their operations, and the share that was computed.

        ``pictures`` [N, 3, H, W] of these rows. The share is None for complete pictures.
        """
        places, complete = self._places, []
        threshold = threshold_of(state.tokens, pictures.shape[2] * pictures.shape[3])
        for k, row in enumerate(rows):
            changed = None
            if places is not None and threshold is not None:
                kept, picture = state.kept[row], pictures[k : k + 1]
                changed = places.look(picture, kept, int(state.frames[row]), threshold / _LEVEL)
            if changed is None:
                complete.append(k)
            else:
                from costream.nn import suppression_kernels  # noqa: F401  # ``objects`` uses them

                size = (pictures.shape[2], pictures.shape[3])
                found = self.network.objects(changed.output[0].float(), size)
                yield row, found, changed.macs, changed.share
        if not complete:
            return
        operations, batch = Operations(), pictures[complete]
        for k, found in zip(complete, self.network.detect(batch, operations), strict=True):
            state.macs[rows[k]] = operations.total // len(complete)
            yield rows[k], found, operations.total // len(complete), None

    def _prepared(self, rgb: npt.NDArray[np.uint8]) -> Tensor:
        """Return a picture, uint8 [h, w, 3], as uint8 [3, h, w] that fits the frontend."""
        return torch.from_numpy(self.frontend.prepare(fitted(rgb, self.frontend.box)))

    def _reasons(
        self, frames: Sequence[VideoFrame], state: DetectorState
    ) -> tuple[list[Reason | None] | None, list[Tensor]]:
        """Return why to look at each frame, and the cells of each; None: look at all of them."""
        if state.looks is None:
            return None, []
        cells = [brightness(frame.rgb) for frame in frames]
        name = self.info.card.name
        return [state.why_look(k, f.time_s, cells[k], name) for k, f in enumerate(frames)], cells

    def _ran(self, reasons: Sequence[Reason | None]) -> tuple[dict[str, str], ...]:
        name = self.info.card.name
        return tuple({} if reason is None else {name: reason} for reason in reasons)

    def steps(self, items: Sequence[Data], state: DetectorState) -> list[StepResult]:
        """Take consecutive frames of one stream, return their results."""
        return [self.step([item], state) for item in items]


def threshold_of(tokens: int | str | None, pixels: int) -> float | None:
    """Return the threshold that ``--tokens`` gives; None: complete pictures are computed.

    ``pixels``: of the network's input.
    """
    if tokens is None:
        return THRESHOLD if pixels >= PIXELS else None
    return least_change(tokens)


def _stacked(pictures: Sequence[Tensor]) -> Tensor:
    """Return pictures [3, h, w] as one tensor in whose memory colours are innermost."""
    return torch.stack([picture.permute(1, 2, 0) for picture in pictures]).permute(0, 3, 1, 2)
