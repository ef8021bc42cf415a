"""Joints of the persons in a stream of frames: who is there, and where their crops are.

A detector finds new persons; each is then followed by the crop that the joints of the frame before
define, so that the detector looks again only now and then, where something moves beside them, or
when somebody is lost. The joints of a person whose crop looks the same are those of before, for
half a second, once the crop is where they say that it should be.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.core.layouts import MEDIAPIPE_33
from costream.models.base import NetworkRun
from costream.models.objects.looks import AGE_S, CELLS, GRID, brightness, covered, moved_cells
from costream.models.pose.blazepose import JOINTS, SIDE, BlazePose, Landmarks
from costream.models.pose.found import (
    CHANGED,
    SEARCH_S,
    STILL_S,
    SURE,
    DetectedPerson,
    ObjectBox,
)
from costream.models.pose.weights import detector
from costream.nn.boxes import pairwise_iou

LOOK_S = 0.5  # at least, between two looks of the detector while somebody is followed ...
_LONGER_S = 2.0  # ... and nothing moves beside, or what moved at the two newest looks was nobody;
# ``AGE_S`` if that was so at the newest look only
_EMPTY_S, _VAIN = 0.4, 3  # while nobody is there, after so many looks at what moved in vain
_STILL = 0.06  # change of a part of a crop, of the range of a channel, below which it is the same
_SETTLED = 0.03  # of the side of a crop: how far its corners are from the crop that joints define
_CORNERS = [complex(x, y) / 2 for x in (-1, 1) for y in (-1, 1)]
_PRESENT = 0.5  # as in MediaPipe
# Detectors miss people who lie, so that somebody who was just lost is looked for below.
_LOST_S = 3.0  # for which somebody is looked for so ...
_LOWER = 0.25  # ... so much lower, of the side of the crop ...
_WIDER = 1.3  # ... in a crop of this side, to that of the one before ...
_ANGLES = (0.0, math.pi / 2, -math.pi / 2)  # ... turned by these angles
_LEANING = math.pi / 4  # ... unless they leant by this: they lie already
_CERTAIN = 0.95  # presence of those who are found so
_MOMENT_S = 0.3  # who is lost again so soon is looked for at the place of before, too
_UNSURE = 0.15  # score of a wide box from which on somebody who was lost may lie there
_PARTS, _SAMPLES = 16, 4  # of a crop, along a side; and pixels of each of these, along a side
_MARGIN = 1.25  # side of a crop, to that of the box or of the circle around a person
_SAME = 0.6  # share of the smaller of two boxes in the larger one, from which on it is one person
_CENTRE, _TOP = 33, 34  # points that define the next crop: between the hips, and above
# Signs that rotate the camera's axes (x right, y down, z away) to a Kinect's: y up, z away, x left.
# A rotation about z, so that left and right hands are not swapped.
_SIGNS = np.array((-1, -1, 1), np.float32)

Part: TypeAlias = tuple[float, float, float, float]  # left, upper, right and lower edge


class Crop(NamedTuple):
    """A square part of a picture, in pixels; ``angle``: by which it is turned, clockwise."""

    x: float  # of its middle
    y: float
    side: float
    angle: float  # radians


@dataclass(frozen=True)
class _Followed:
    """A person of the newest frame."""

    person: DetectedPerson
    crop: Crop  # for the next frame
    box: Tensor  # [4], pixels
    looks: Tensor  # [3, parts, parts] of that crop, when the joints were computed
    time_s: float  # of that frame
    present: float  # how likely a person is there
    settled: bool  # that crop is the one in which the joints were found

    def part(self, width: int, height: int) -> Part:
        """Return the box as a part of a picture of this size, 0 to 1."""
        x1, y1, x2, y2 = self.box.tolist()
        return x1 / width, y1 / height, x2 / width, y2 / height


class PoseEstimator:
    """Finds up to ``most`` persons and their joints in the frames of one stream.

    ``detects``: it has a detector; if False, a caller has one. ``sparing``: joints of who does not
    move are kept, and the detector looks where something moves; if False, all joints are computed
    in each frame, and it looks whenever that is due. ``computed``: crops whose joints
    were computed so far; ``kept``: of persons who did not move, see ``STILL_S``; ``looks``:
    pictures in which the detector, or the caller's, has looked for persons. ``may`` and ``ran``:
    as of ``models.base.PersonFinder``; a person whose joints the budget does not admit keeps those
    of before. Raises ModelError if the weights of the detector are missing.
    """

    layout = MEDIAPIPE_33
    reach = math.inf  # whoever is followed may go anywhere

    def __init__(
        self, network: BlazePose, most: int = 1, *, detects: bool = True, sparing: bool = True
    ) -> None:
        self._network, self._most, self._sparing = network, most, sparing
        self._detector = detector() if detects else None
        self.computed = self.kept = self.looks = 0
        self.may: Callable[[float, float], bool] | None = None
        self.ran: NetworkRun | None = None
        self.reset()

    def reset(self) -> None:
        """Follow nobody any longer."""
        self._followed: list[_Followed] = []
        self._lost: list[tuple[Crop, float]] = []  # of whom, and when
        self._again: list[tuple[Crop, float, float]] = []  # those who were found again, and when
        self._looked_s = self._searched_s = -math.inf
        self._cells: Tensor | None = None  # brightness of the picture of the newest look
        self._theirs = torch.zeros(GRID, dtype=torch.bool)  # cells in which persons were since then
        self._moving = False  # at the newest look something had moved beside the persons ...
        self._in_vain = 0  # ... but it was nobody new, in as many looks
        self._missed: dict[Crop, tuple[Tensor, float]] = {}  # where nobody was: looks, and when

    @torch.inference_mode()
    def find(
        self,
        rgb: npt.NDArray[np.uint8],
        time_s: float,
        boxes: Sequence[ObjectBox] | None = None,
    ) -> list[DetectedPerson]:
        """Return the persons in a picture, uint8 [h, w, 3]; those who are followed come first.

        ``boxes``: of persons, by the caller's detector; None: it has not looked at this picture.
        """
        frame = torch.from_numpy(np.ascontiguousarray(rgb)).permute(2, 0, 1)[None]
        before, computed, self.ran = self._followed, self.computed, None
        if self._detector is None and not before and not boxes:  # nobody, and nothing to look at
            return []
        picture = frame.float().div_(255)
        persons = self._follow(picture, time_s)
        reason = "motion" if self.computed > computed else "new"
        persons += self._fallen(picture, time_s, persons)
        wait_s = self._wait_s(len(persons), len(before))
        may_look = boxes is not None or self._detector is not None
        due = not 0 <= time_s - self._looked_s < wait_s - 1e-6
        if self._sparing and len(persons) < self._most and may_look and boxes is None:
            due = self._may_be_new(rgb, persons, time_s, due)
        if len(persons) < self._most and may_look and due:
            self._looked_s, known = time_s, len(persons)
            self.looks += 1
            found = self._detect(frame) if boxes is None else boxes
            persons += self._lying(picture, found, time_s, persons)
            for box in self._unknown(found, persons):
                if len(persons) < self._most:
                    persons += self._in_box(picture, box, time_s, persons)
            in_vain = self._moving and len(persons) == known
            self._in_vain = self._in_vain + 1 if in_vain else 0
        count, macs = self.computed - computed, self._network.macs
        if count or persons:
            dense_macs = max(count, len(persons)) * macs
            self.ran = NetworkRun(reason if count else None, count * macs, dense_macs)
        self._followed = _distinct(persons)
        return [each.person for each in self._followed]

    def _follow(self, frame: Tensor, time_s: float) -> list[_Followed]:
        """Return those of the frame before who are still present."""
        known = self._followed
        looks = _looks(frame, [each.crop for each in known])
        changes = [
            float((now - each.looks).abs().max()) for each, now in zip(known, looks, strict=True)
        ]
        still = [
            each.settled and 0 <= time_s - each.time_s < STILL_S and change < _STILL
            for each, change in zip(known, changes, strict=True)
        ]
        if self.may is not None and not all(still):
            gain = sum(min(1.0, change / CHANGED) for change in changes)
            if not self.may(gain, time_s - min(each.time_s for each in known)):
                still = [True] * len(known)
        moved = [each.crop for each, same in zip(known, still, strict=True) if not same]
        self.kept += sum(still)
        kept = [each for each, same in zip(known, still, strict=True) if same]
        there = [*kept, *self._joints(frame, moved, time_s)]
        gone = [crop for crop in moved if not any(_is_at(each, crop) for each in there)]
        if gone:  # who was found a moment ago may have been something else
            moment = [each for each in self._again if 0 <= time_s - each[2] < _MOMENT_S]
            self._lost += [each[:2] for each in moment]
            self._again = []
        self._lost = [each for each in self._lost if 0 <= time_s - each[1] <= _LOST_S]
        self._lost += [(crop, time_s) for crop in gone]
        return there

    def _in_box(
        self, frame: Tensor, box: ObjectBox, time_s: float, known: Sequence[_Followed]
    ) -> list[_Followed]:
        """Return who is present in a box of the detector, if anybody."""
        crop = Crop(box.x, box.y, _MARGIN * max(box.width, box.height), 0.0)
        found = [each for each in self._joints(frame, [crop], time_s) if _is_new(each, known)]
        self._find_again(found)
        return found

    def _fallen(self, frame: Tensor, time_s: float, known: Sequence[_Followed]) -> list[_Followed]:
        """Return those who were just lost and lie below the place where they were."""
        out: list[_Followed] = []
        if not self._lost or 0 <= time_s - self._searched_s < SEARCH_S - 1e-6:
            return out
        self._searched_s = time_s
        missed = self._missed.items()
        self._missed = {place: old for place, old in missed if 0 <= time_s - old[1] < STILL_S}
        height, width = frame.shape[2:]
        for crop, since_s in list(self._lost):
            lies = abs(crop.angle) > _LEANING
            inside = min(crop.x, width - crop.x, 2 * (height - crop.y)) > crop.side / 4
            y, side = crop.y + _LOWER * crop.side * (not lies), _WIDER * crop.side
            place = Crop(crop.x, y, side, 0.0)
            if not (lies or inside) or self._is_missed(frame, place):
                continue  # who stands at the border has left the picture
            if not (self.may is None or self.may(1.0, time_s - since_s)):
                continue
            found = self._joints(frame, [place._replace(angle=a) for a in _ANGLES], time_s)
            best = max(found, key=lambda each: each.present, default=None)
            if best and best.present >= _CERTAIN and _is_new(best, [*known, *out]):
                out.append(best)
            else:
                self._missed[place] = _looks(frame, [place])[0], time_s
        self._find_again(out)
        return out

    def _is_missed(self, frame: Tensor, place: Crop) -> bool:
        """Return whether nobody was just found at a place, which looks as it did then."""
        if not self._sparing or place not in self._missed:
            return False
        looks, _ = self._missed[place]
        return float((_looks(frame, [place])[0] - looks).abs().max()) < _STILL

    def _lying(
        self,
        frame: Tensor,
        boxes: Sequence[ObjectBox],
        time_s: float,
        known: Sequence[_Followed],
    ) -> list[_Followed]:
        """Return those who were just lost and lie in a box of which the detector is not sure."""
        out: list[_Followed] = []
        wide = [box for box in boxes if _UNSURE <= box.score < SURE and box.width > box.height]
        for lost in list(self._lost):
            crop, since_s = lost
            near = [box for box in wide if math.dist(box[:2], crop[:2]) < crop.side]
            if not near or not (self.may is None or self.may(1.0, time_s - since_s)):
                continue
            box = max(near, key=lambda row: row.score)
            side = _MARGIN * box.width
            crops = [Crop(box.x, box.y, side, angle) for angle in _ANGLES[1:]]
            found = self._joints(frame, crops, time_s)
            best = max(found, key=lambda each: each.present, default=None)
            if best and best.present >= _CERTAIN and _is_new(best, [*known, *out]):
                out.append(best)
                self._lost.remove(lost)
                self._again.append((*lost, time_s))
        return out

    def _find_again(self, found: Sequence[_Followed]) -> None:
        """Remove those who were found from those who are lost."""
        again = [each for each in self._lost if any(_is_at(f, each[0]) for f in found)]
        self._lost = [each for each in self._lost if each not in again]
        self._again += [(*each, found[0].time_s) for each in again]

    def _joints(self, frame: Tensor, crops: Sequence[Crop], time_s: float) -> list[_Followed]:
        """Return who is present in the crops."""
        if not crops:
            return []
        self.computed += len(crops)
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
            looks, present = _looks(frame, [after])[0], float(found.present[k])
            settled = self._sparing and _are_same(crop, after)
            out.append(_Followed(person, after, box, looks, time_s, present, settled))
        return out

    def _wait_s(self, count: int, before: int) -> float:
        """Return how long to wait from a look to the next, for persons followed now and before."""
        if self._lost or count != before:
            return SEARCH_S
        if not count:
            return SEARCH_S if self._in_vain < _VAIN else _EMPTY_S
        return (LOOK_S, AGE_S, _LONGER_S)[min(self._in_vain, 2)]

    def _may_be_new(
        self, rgb: npt.NDArray[np.uint8], persons: Sequence[_Followed], time_s: float, due: bool
    ) -> bool:
        """Return whether to look for somebody new in a picture, at a time when a look is due.

        Only if something has moved beside the persons since the newest look, if that was
        ``AGE_S`` ago (``_LONGER_S`` while somebody is followed), or if somebody is lost.
        """
        theirs = covered([each.part(rgb.shape[1], rgb.shape[0]) for each in persons])
        if theirs is not None:
            self._theirs |= theirs
        if not due:
            return False
        cells, age_s = brightness(rgb), _LONGER_S if persons else AGE_S
        old = not 0 <= time_s - self._looked_s < age_s - 1e-6
        moving = self._cells is None or moved_cells(self._cells, cells, self._theirs) >= CELLS
        if not (moving or old or self._lost):
            return False
        self._cells, self._moving = cells, moving
        self._theirs = torch.zeros_like(self._theirs) if theirs is None else theirs
        return True

    def _detect(self, frame: Tensor) -> list[ObjectBox]:
        """Return the boxes of the persons whom the detector finds, in pixels of the frame."""
        assert self._detector is not None
        network, pixels = self._detector
        height, width = frame.shape[2:]
        scale = min(1.0, *(m / n for m, n in zip(pixels.box, (width, height), strict=True)))
        size = max(1, round(height * scale)), max(1, round(width * scale))
        small = frame
        if size != (height, width):
            small = F.interpolate(frame, size, mode="bilinear", antialias=True)
        said = network.detect(pixels(small))[0]
        boxes, scores = said.boxes[said.labels == 0] / scale, said.scores[said.labels == 0]
        columns = [(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2], scores[:, None]]
        return [ObjectBox(*row) for row in torch.cat(columns, 1).tolist()]

    def _unknown(self, found: Sequence[ObjectBox], persons: Sequence[_Followed]) -> list[ObjectBox]:
        """Return the boxes of those whom nobody follows, the largest first."""
        rows = [row for row in found if row.score >= SURE and max(row.width, row.height) >= 1]
        if persons and rows:
            placed = torch.tensor([row[:4] for row in rows])
            middles, halves = placed[:, :2], placed[:, 2:] / 2
            boxes = torch.cat([middles - halves, middles + halves], 1)
            free = (_shared(boxes, torch.stack([each.box for each in persons])) < _SAME).all(1)
            rows = [row for row, alone in zip(rows, free.tolist(), strict=True) if alone]
        return sorted(rows, key=lambda row: -max(row.width, row.height))


def cut(frame: Tensor, crops: Sequence[Crop], side: int = SIDE) -> Tensor:
    """Return crops [n, 3, side, side], 0 to 1, of a frame [1, 3, h, w]; outside is black.

    The frame is uint8, or 0 to 1.
    """
    height, width = frame.shape[2:]
    rows = []
    for x, y, size, angle in crops:
        cos, sin = math.cos(angle) * size, math.sin(angle) * size
        rows.append(
            [
                [cos / width, -sin / width, 2 * x / width - 1],
                [sin / height, cos / height, 2 * y / height - 1],
            ]
        )
    shape = [len(crops), 3, side, side]
    grid = F.affine_grid(torch.tensor(rows), shape, align_corners=False)
    pictures = frame if frame.is_floating_point() else frame.float() / 255
    pictures = pictures.expand(len(crops), -1, -1, -1)
    return F.grid_sample(pictures, grid, "bilinear", "zeros", align_corners=False)


def _looks(frame: Tensor, crops: Sequence[Crop]) -> Tensor:
    """Return the mean colours [n, 3, parts, parts] of the parts of crops of a frame."""
    if not crops:
        return frame.new_zeros(0, 3, _PARTS, _PARTS, dtype=torch.float32)
    return F.avg_pool2d(cut(frame, crops, _PARTS * _SAMPLES), _SAMPLES)


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


def _are_same(crop: Crop, other: Crop) -> bool:
    """Return whether all corners of a crop are near those of another one."""
    middle = complex(other.x - crop.x, other.y - crop.y)
    edge = cmath.rect(other.side, other.angle) - cmath.rect(crop.side, crop.angle)
    return max(abs(middle + edge * corner) for corner in _CORNERS) < _SETTLED * crop.side


def _is_at(person: _Followed, crop: Crop) -> bool:
    """Return whether a person is in the middle of a crop."""
    return math.dist(crop[:2], person.crop[:2]) < crop.side / 2


def _is_new(person: _Followed, known: Sequence[_Followed]) -> bool:
    """Return whether most of a person's box is outside of those of others."""
    boxes = [other.box for other in known]
    return not boxes or float(_shared(person.box[None], torch.stack(boxes)).max()) < _SAME


def _distinct(persons: Sequence[_Followed]) -> list[_Followed]:
    """Return the persons without those who are at the place of one before them."""
    kept: list[_Followed] = []
    for person in persons:
        boxes = [other.box for other in kept]
        if not boxes or pairwise_iou(person.box[None], torch.stack(boxes)).max() < _SAME:
            kept.append(person)
    return kept
