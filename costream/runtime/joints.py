"""Joints of the persons of a stream: of its data, or of the boxes that its detector finds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from costream.core.records import Box, Data, SkeletonFrame, VideoFrame
from costream.models.base import Model, NetworkRun, PersonFinder, PersonModel, StepResult
from costream.models.persons import PERSON
from costream.runtime.tracking import MAX_BOXES, ObjectTracker, corners_of, shared_areas

if TYPE_CHECKING:
    from costream.models.pose.found import Numbers

MOST = 8  # persons at one time
TREMBLE = 0.03  # of the longer side of a person's joints: changes of edges that are noise
SAME = 0.5  # share of the smaller of two boxes in the other, from which on they are of one person


class SkeletonFinder:
    """Finds persons in skeletons, or in frames with the finder of the model."""

    keeps_row = True
    ran: NetworkRun | None = None  # its costs are not counted apart
    followed: Sequence[tuple[float, float, float, float]] = ()  # of frames of a detector only
    lost = False

    def __init__(self, model: Model) -> None:
        self._model = model
        self._finder: PersonFinder | None = None  # in frames
        self._offset = 0  # the highest number of an earlier watch
        self.skeletons: SkeletonFrame | None = None  # the newest
        self.known: dict[int, int] = {}  # slots
        self.present: list[int] = []

    def begin(self, newest: int) -> None:
        """Continue numbering after ``newest``."""
        self._offset = newest

    def govern(self, may: Callable[[float, float], bool]) -> None:
        """Do nothing: only a detector shares its budget."""

    def find(self, item: Data, scene: StepResult | None) -> StepResult | None:
        """Find the persons; see ``RowFinder``."""
        frame = item
        if isinstance(frame, VideoFrame):
            if self._finder is None:
                self._finder = cast(PersonModel, self._model).person_finder(MOST)
            frame = self._finder.find(frame)
        assert isinstance(frame, SkeletonFrame)
        numbers = frame.persons or range(1, len(frame.joints) + 1)
        self._take(frame, [n + self._offset if n else 0 for n in numbers])
        return scene

    def _take(self, skeletons: SkeletonFrame, numbers: Sequence[int]) -> None:
        """Take the skeletons of a step; ``numbers``: of the persons in the slots, 0 for nobody."""
        self.skeletons = skeletons
        self.known = {n: slot for slot, n in enumerate(numbers) if n}
        self.present = sorted(n for n, slot in self.known.items() if skeletons.scores[slot].any())

    def item(self, number: int) -> SkeletonFrame:
        """Return the newest frame with only this person; with zeros if they are not in it."""
        frame, slot = self.skeletons, self.known.get(number)
        assert frame is not None
        if slot is None:
            joints, scores = np.zeros_like(frame.joints[:1]), np.zeros_like(frame.scores[:1])
        else:
            joints, scores = frame.joints[slot : slot + 1], frame.scores[slot : slot + 1]
        return SkeletonFrame(frame.i, frame.time_s, joints, scores, frame.layout)

    def close(self) -> None:
        """Forget all persons."""
        if self._finder is not None:
            self._finder.close()


class JointFinder(SkeletonFinder):
    """Tracks the boxes of a detector's results, and finds the joints of the persons in them.

    The boxes have numbers, and the joints of a person have the number of their box. A person who
    was found in a box keeps its number while the joints or the box are followed. In a step in which
    the detector has not looked, boxes of persons with joints move with these, and the others are
    those of its newest look.
    Implements ``persons.RowFinder``.
    """

    keeps_row = False

    def __init__(
        self, finder: PersonFinder, detector: str, threshold_of: Callable[[str], float]
    ) -> None:
        """``finder`` has no detector. ``detector``: name of that of the stream.

        ``threshold_of``: least score of boxes by label.
        """
        self._poses, self._detector, self._threshold_of = finder, detector, threshold_of
        self._tracker = ObjectTracker()
        self.known, self.present = {}, []
        self.skeletons: SkeletonFrame | None
        self._boxes: list[Box]  # of the newest look, those of sure objects with numbers
        self._places: dict[int, tuple[int, Numbers]]  # in that look: box and joints of a person
        self._raw: list[int | None]  # numbers of these boxes by the tracker
        self._renamed: dict[int, int]  # numbers by those of the tracker, where they differ
        self._names: dict[int, int]  # numbers by those of the finder
        self._forget()

    def begin(self, newest: int) -> None:
        """Continue numbering after ``newest``."""
        self._tracker = ObjectTracker(newest=newest)

    def find(self, item: Data, scene: StepResult | None) -> StepResult:
        """Return the result of the detector with numbers of the boxes."""
        assert isinstance(item, VideoFrame)
        assert scene is not None
        assert scene.objects is not None
        found = scene.objects[0]
        looked = scene.has_run(self._detector)
        if looked:
            self._track(item.time_s, found)
        boxes = [box for box in found if box.label == PERSON] if looked else None
        skeletons, before = self._poses.find(item, boxes), self.present
        self.ran = self._poses.ran
        slots = skeletons.persons or ()
        present = {n: k for k, n in enumerate(slots) if skeletons.scores[k].any()}
        self._names = {n: name for n, name in self._names.items() if n in slots}
        pairs = self._pairs(skeletons, item, present) if looked else {}
        if looked:
            self._name(present, pairs)
        numbers = tuple(self._names.get(n, 0) for n in slots)
        self._take(replace(skeletons, persons=numbers), numbers)
        self.lost = not looked and not set(before) <= set(self.present)
        assert skeletons.places is not None
        places = {n: skeletons.places[self.known[n]] for n in self.present}
        self.followed = [(*p.min(0).tolist(), *p.max(0).tolist()) for p in places.values()]
        if looked:
            numbered = {self._names[n]: k for n, k in pairs.items()}
            self._places = {n: (k, places[n]) for n, k in numbered.items()}
        return replace(scene, objects=(tuple(self._moved(item, places)),))

    def govern(self, may: Callable[[float, float], bool]) -> None:
        """Ask ``may`` before joints are computed."""
        self._poses.may = may

    def close(self) -> None:
        """Forget all persons, but not which numbers were used."""
        self._poses.close()
        self._tracker.reset()
        self._forget()

    def _forget(self) -> None:
        self._boxes, self._raw, self._renamed, self._names, self._places = [], [], {}, {}, {}
        self.followed, self.lost = [], False
        self.skeletons = None

    def _moved(self, frame: VideoFrame, places: Mapping[int, Numbers]) -> list[Box]:
        """Return the boxes of the newest look, moved as the joints of their persons have.

        ``places``: of the joints of each person who is present.
        """
        size = np.array(frame.size or frame.rgb.shape[1::-1])
        boxes = list(self._boxes)
        for n, (k, then) in self._places.items():
            if n in places:
                boxes[k] = _moved_box(boxes[k], size * then, size * places[n])
        return boxes

    def _track(self, time_s: float, found: Sequence[Box]) -> None:
        """Take the boxes of a look."""
        boxes = list(found)
        sure = [k for k, box in enumerate(boxes) if box.score >= self._threshold_of(box.label)]
        sure = sure[:MAX_BOXES]
        tracked = self._tracker.update(time_s, [boxes[k] for k in sure])
        for k, box in zip(sure, tracked, strict=True):
            boxes[k] = box
        self._boxes, self._raw = boxes, [box.id for box in boxes]
        kept = self._tracker.known
        self._renamed = {raw: n for raw, n in self._renamed.items() if raw in kept}

    def _name(self, there: Collection[int], pairs: Mapping[int, int]) -> None:
        """Set the numbers of the persons, by those of the finder, and of the boxes of a look.

        ``pairs``: index of the box of a person.
        """
        for n in sorted(there, key=lambda n: n not in self._names):  # those who are known first
            raw = self._raw[pairs[n]] if n in pairs else None
            if n not in self._names:
                number = None if raw is None else self._renamed.get(raw, raw)
                if number is None or number in self._names.values():
                    number = self._tracker.new_id()
                self._names[n] = number
            if raw is not None:
                self._renamed[raw] = self._names[n]
        used = {self._names[n] for n in there}
        with_joints = set(pairs.values())
        for k, raw in enumerate(self._raw):
            if raw is None:
                continue
            number = self._renamed.get(raw, raw)
            if k not in with_joints:
                if number in used:
                    number = self._renamed[raw] = self._tracker.new_id()
                used.add(number)
            self._boxes[k] = replace(self._boxes[k], id=number)

    def _pairs(
        self, skeletons: SkeletonFrame, frame: VideoFrame, there: Mapping[int, int]
    ) -> dict[int, int]:
        """Return the index of the box of each person, by the finder's number; best match first."""
        rows = [k for k, raw in enumerate(self._raw) if raw and self._boxes[k].label == PERSON]
        if not rows or not there or skeletons.places is None:
            return {}
        width, height = frame.size or frame.rgb.shape[1::-1]
        places = skeletons.places[list(there.values())] * np.array((width, height))
        people = np.concatenate([places.min(1), places.max(1)], 1)
        boxes = corners_of([self._boxes[k] for k in rows])
        both = shared_areas(people, boxes)
        areas = [(x[:, 2:] - x[:, :2]).clip(min=1).prod(1) for x in (people, boxes)]
        share = both / np.minimum(areas[0][:, None], areas[1])
        # Of boxes that contain the joints, the closest one is the person's.
        closeness = both / (areas[0][:, None] + areas[1] - both)
        out: dict[int, int] = {}
        numbers = list(there)
        for flat in np.argsort(-closeness, axis=None, kind="stable").tolist():
            person, box = divmod(flat, len(rows))
            taken = numbers[person] in out or rows[box] in out.values()
            if share[person, box] >= SAME and not taken:
                out[numbers[person]] = rows[box]
        return out


def _moved_box(box: Box, then: Numbers, now: Numbers) -> Box:
    """Return a box whose edges move as those of joints [n, 2] do, beyond ``TREMBLE``."""
    edges = [np.concatenate([joints.min(0), joints.max(0)]) for joints in (then, now)]
    change = edges[1] - edges[0]
    tremble = TREMBLE * np.ptp(then, 0).max()
    shift = np.sign(change) * np.maximum(np.abs(change) - tremble, 0)
    x1, y1, x2, y2 = (np.array((box.x1, box.y1, box.x2, box.y2)) + shift).tolist()
    return replace(box, x1=x1, y1=y1, x2=x2, y2=y2)
