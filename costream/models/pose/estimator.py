"""Joints of the persons in a stream of frames: who is there, and where their crops are.

A detector finds new persons; each is then followed by the crop that the joints of the frame before
define, so that the detector looks again only now and then, or when somebody is lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.core.errors import ModelError
from costream.models.build import build
from costream.models.images import Pixels
from costream.models.objects.nanodet import NanoDetPlus
from costream.models.persons import PERSON
from costream.models.pose.blazepose import JOINTS, SIDE, BlazePose, Landmarks
from costream.nn.boxes import pairwise_iou
from costream.weights_io.card import Card
from costream.weights_io.file import SUFFIX, read_weights
from costream.weights_io.store import weight_folders

DETECTOR, ESTIMATOR = "nanodet", "pose"
POSES = {"lite": ESTIMATOR, "full": "pose-full"}  # names of the weights of both networks
LOOK_S = 0.5  # between two looks of the detector while somebody is followed ...
_SEARCH_S = 0.2  # ... and while nobody is
_SURE = 0.4  # score of a person from which on they are looked at
_PRESENT = 0.5  # as in MediaPipe
_MARGIN = 1.25  # side of a crop, to that of the box or of the circle around a person
_SAME = 0.6  # share of the smaller of two boxes in the larger one, from which on it is one person
_CENTRE, _TOP = 33, 34  # points that define the next crop: between the hips, and above
# Signs that rotate the camera's axes (x right, y down, z away) to a Kinect's: y up, z away, x left.
# A rotation about z, so that left and right hands are not swapped.
_SIGNS = np.array((-1, -1, 1), np.float32)
_TORSO = (11, 12, 23, 24)  # shoulders and hips

Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True)
class DetectedPerson:
    """A person detected in a frame."""

    joints: Numbers  # float32 [33, 3], metres around the hips, y up
    scores: Numbers  # float32 [33], 0 to 1
    places: Numbers  # float32 [33, 2], 0 to 1 in the image, y down

    @property
    def middle(self) -> Numbers:
        """Middle of the torso in the image."""
        middle: Numbers = self.places[list(_TORSO)].mean(0)
        return middle


class Crop(NamedTuple):
    """A square part of a picture, in pixels; ``angle``: by which it is turned, clockwise."""

    x: float  # of its middle
    y: float
    side: float
    angle: float  # radians


class PoseEstimator:
    """Finds up to ``most`` persons and their joints in the frames of one stream.

    ``weights``: name of those of the landmarks. Raises ModelError if these, or the detector's, are
    missing.
    """

    def __init__(self, most: int = 1, weights: str = ESTIMATOR) -> None:
        self._most = most
        self._detector, self._pixels = _detector()
        self._network = landmarks(weights)
        self.reset()

    def reset(self) -> None:
        """Follow nobody any longer."""
        self._crops: list[Crop] = []  # of the persons of the newest frame
        self._looked_s = -math.inf

    @torch.inference_mode()
    def find(self, rgb: npt.NDArray[np.uint8], time_s: float) -> list[DetectedPerson]:
        """Return the persons in a picture, uint8 [h, w, 3]; those who are followed come first."""
        frame = torch.from_numpy(np.ascontiguousarray(rgb)).permute(2, 0, 1)[None]
        persons = self._joints(frame, self._crops)
        wait_s = LOOK_S if len(persons) == len(self._crops) and persons else _SEARCH_S
        if len(persons) < self._most and not 0 <= time_s - self._looked_s < wait_s - 1e-6:
            self._looked_s = time_s
            new = self._unknown(frame, persons)[: self._most - len(persons)]
            persons += self._joints(frame, new)
        persons = _distinct(persons)
        self._crops = [crop for _, crop, _ in persons]
        return [person for person, _, _ in persons]

    def _joints(
        self, frame: Tensor, crops: Sequence[Crop]
    ) -> list[tuple[DetectedPerson, Crop, Tensor]]:
        """Return who is present in the crops, with the crop for the next frame and a box [4]."""
        if not crops:
            return []
        found = self._network(cut(frame, crops))
        height, width = frame.shape[2:]
        out = []
        for k, crop in enumerate(crops):
            if found.present[k] < _PRESENT:
                continue
            points = in_picture(found.places[k, :, :2], crop)
            after = _next_crop(points)
            if not 0 < after.side < 4 * max(height, width):
                continue
            box = torch.cat([points[:JOINTS].amin(0), points[:JOINTS].amax(0)])
            places = points[:JOINTS] / points.new_tensor((width, height))
            person = _person(found, k, crop.angle, places)
            out.append((person, after, box))
        return out

    def _unknown(
        self, frame: Tensor, persons: Sequence[tuple[DetectedPerson, Crop, Tensor]]
    ) -> list[Crop]:
        """Return crops of those whom the detector finds and nobody follows, the largest first."""
        height, width = frame.shape[2:]
        scale = min(1.0, *(m / n for m, n in zip(self._pixels.box, (width, height), strict=True)))
        size = max(1, round(height * scale)), max(1, round(width * scale))
        small = frame
        if size != (height, width):
            small = F.interpolate(frame, size, mode="bilinear", antialias=True)
        said = self._detector.detect(self._pixels(small))[0]
        boxes = said.boxes[(said.labels == 0) & (said.scores >= _SURE)] / scale
        known = torch.stack([box for _, _, box in persons]) if persons else boxes.new_zeros(0, 4)
        free = boxes[(_shared(boxes, known) < _SAME).all(1)]
        sides = (free[:, 2:] - free[:, :2]).amax(1)
        middles = (free[:, :2] + free[:, 2:]) / 2
        rows = torch.cat([middles, _MARGIN * sides[:, None]], 1)[sides.argsort(descending=True)]
        return [Crop(x, y, side, 0.0) for x, y, side in rows.tolist() if side >= 1]


def cut(frame: Tensor, crops: Sequence[Crop]) -> Tensor:
    """Return crops [n, 3, 256, 256], 0 to 1, of a frame uint8 [1, 3, h, w]; outside is black."""
    height, width = frame.shape[2:]
    rows = []
    for x, y, side, angle in crops:
        cos, sin = math.cos(angle) * side, math.sin(angle) * side
        rows.append(
            [
                [cos / width, -sin / width, 2 * x / width - 1],
                [sin / height, cos / height, 2 * y / height - 1],
            ]
        )
    shape = [len(crops), 3, SIDE, SIDE]
    grid = F.affine_grid(torch.tensor(rows), shape, align_corners=False)
    pictures = (frame.float() / 255).expand(len(crops), -1, -1, -1)
    return F.grid_sample(pictures, grid, "bilinear", "zeros", align_corners=False)


def in_picture(points: Tensor, crop: Crop) -> Tensor:
    """Return points [n, 2] in pixels of the picture, for those in pixels of a crop."""
    return _turned(points / SIDE - 0.5, crop.angle) * crop.side + points.new_tensor(crop[:2])


def _turned(points: Tensor, angle: float) -> Tensor:
    """Return points [n, 2] or [n, 3] turned clockwise in the picture."""
    cos, sin = math.cos(angle), math.sin(angle)
    x, y = points[:, 0], points[:, 1]
    return torch.stack([cos * x - sin * y, sin * x + cos * y, *points.unbind(1)[2:]], 1)


def _next_crop(points: Tensor) -> Crop:
    """Return the crop of the circle that two of the points [39, 2] define, turned upright."""
    (x, y), (right, down) = points[_CENTRE].tolist(), (points[_TOP] - points[_CENTRE]).tolist()
    angle = math.pi / 2 - math.atan2(-down, right)
    return Crop(x, y, 2 * _MARGIN * math.hypot(right, down), math.remainder(angle, 2 * math.pi))


def _person(found: Landmarks, row: int, angle: float, places: Tensor) -> DetectedPerson:
    space = _turned(found.space[row, :JOINTS], angle).numpy() * _SIGNS
    return DetectedPerson(space, found.visible[row, :JOINTS].numpy(), places.numpy())


def _shared(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the share [n, m] of the smaller one of two boxes [n, 4], [m, 4] in the other."""
    low = torch.maximum(boxes[:, None, :2], others[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], others[None, :, 2:])
    areas = [(each[:, 2:] - each[:, :2]).clamp(min=1).prod(1) for each in (boxes, others)]
    return (high - low).clamp(min=0).prod(2) / torch.minimum(areas[0][:, None], areas[1])


def _distinct(
    persons: Sequence[tuple[DetectedPerson, Crop, Tensor]],
) -> list[tuple[DetectedPerson, Crop, Tensor]]:
    """Return the persons without those who are at the place of one before them."""
    kept: list[tuple[DetectedPerson, Crop, Tensor]] = []
    for person in persons:
        boxes = [other[2] for other in kept]
        if not boxes or pairwise_iou(person[2][None], torch.stack(boxes)).max() < _SAME:
            kept.append(person)
    return kept


@cache
def _detector() -> tuple[NanoDetPlus, Pixels]:
    card, network, pixels = _loaded(DETECTOR)
    if not isinstance(network, NanoDetPlus) or not isinstance(pixels, Pixels):
        raise ModelError(f"{DETECTOR} has other weights here than those of NanoDet-Plus")
    if card.labels[0] != PERSON:
        raise ModelError(f"the first label of {DETECTOR} is not {PERSON!r}")
    return network, pixels


@cache
def landmarks(name: str) -> BlazePose:
    """Return the network of these weights. ModelError if they are missing, or not BlazePose's."""
    _, network, _ = _loaded(name)
    if not isinstance(network, BlazePose):
        raise ModelError(f"{name} has other weights here than those of BlazePose")
    return network


def _loaded(name: str) -> tuple[Card, Any, Any]:
    """Return card, network and frontend of weights that are found by their name."""
    paths = (folder / f"{name}{SUFFIX}" for _, folder in weight_folders())
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        what = f"no weights for {name} here, with which persons are found in video"
        hint = "reinstall costream"
        if name == POSES["full"]:
            hint = f"costream models import pose_landmark_full.tflite --name {name}"
        raise ModelError(what, hint=hint)
    stored = read_weights(path)
    network, frontend = build(stored.card, stored.tensors)
    network.eval().requires_grad_(False)
    for weight in network.parameters():
        if weight.ndim == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    return stored.card, network, frontend


class PoseWeights:
    """What the weights of a pose estimator are as a model: none, which its error says."""

    def __init__(self, card: Card, *_: Any, **__: Any) -> None:
        """Raise ModelError."""
        hint = "for what persons do in a video: -m costgcn"
        raise ModelError(f"{card.name} finds joints for other models, and has no labels", hint=hint)
