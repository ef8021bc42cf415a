"""Persons per frame as read from skeleton formats, and their assignment to slots."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError
from costream.core.layouts import Layout
from costream.core.records import Fault
from costream.sources.skeletons.headings import AxesOption

Numbers: TypeAlias = npt.NDArray[np.float32]

# A person not seen for this long has left, and the slot is free again.
KEEP_S = 1.0
# A joint is no part of a body if it is further from the median of the joints than so many times the
# median distance from there: numbers that stand for "missing", and slips of a tracker.
_FAR = 50
_UNSET = "at the origin or at equal negative numbers are taken as missing"


@dataclass(frozen=True)
class Person:
    """One person in one frame; missing joints have score 0 and zero coordinates."""

    joints: Numbers  # float32 [V, C], y up
    scores: Numbers  # float32 [V], 0 to 1
    key: Hashable = None  # the person's identifier, if the format has one
    strays: int = 0  # joints that were too far away to be this person's, and are missing
    # bool [V], joints that stood at numbers for "missing", whatever their scores said; None: none
    unset: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class PersonFrame:
    """All persons seen at one time; may be none."""

    time_s: float
    bodies: tuple[Person, ...]


@dataclass(frozen=True)
class SkippedData:
    """Something that was left out, worded so that a count can precede it."""

    what: str


@dataclass(frozen=True)
class TruncatedRecording:
    """The recording is damaged or cut off here; nothing after it can be read."""

    message: str


Event: TypeAlias = PersonFrame | SkippedData | TruncatedRecording


@dataclass(frozen=True)
class SkeletonRecording:
    """An open skeleton recording."""

    layout: Layout
    axes: int  # coordinates per joint, 2 or 3
    rate_hz: float | None  # nominal frames per second
    duration_s: float | None
    events: Iterator[Event]  # in recording order
    assumed: tuple[str, ...] = ()  # what the file does not say, and how it is taken
    option: AxesOption | None = None  # how ``--columns`` names its axes; None: it cannot


def check_joints(count: int, layout: Layout, where: str) -> None:
    """Raise SourceError unless a file has as many joints as its layout."""
    if count != len(layout.joints):
        raise SourceError(
            f"there are {count} joints in it, {layout.name} has {len(layout.joints)}", where=where
        )


def make_person(
    joints: npt.ArrayLike,
    scores: npt.ArrayLike | None = None,
    key: Hashable = None,
    *,
    shift: npt.ArrayLike = 0.0,
    signs: npt.ArrayLike = 1.0,
) -> Person:
    """Return a person from the coordinates [V, C] and scores [V] of a file.

    A joint is missing if a coordinate is not finite, its score is not above 0, it stands at numbers
    that mean "missing" (see ``_placeholders``), or it is too far from the others. What is judged
    are the numbers of the file; the person's are ``(joints - shift) * signs``, y up.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        places = np.array(joints, np.float32)
        sure = np.ones(len(places), np.float32) if scores is None else np.array(scores, np.float32)
        unset = _placeholders(places)
        strays = _strays(places, ~unset & np.isfinite(places).all(axis=1))
        moved = ((np.asarray(joints, float) - shift) * np.asarray(signs)).astype(np.float32)
    sure = np.where(np.isfinite(sure), np.clip(sure, 0, 1), 0).astype(np.float32)
    sure[~(np.isfinite(places).all(axis=1) & np.isfinite(moved).all(axis=1))] = 0
    unset &= sure > 0
    sure[unset] = 0
    strays &= sure > 0
    sure[strays] = 0
    moved[sure == 0] = 0
    # All joints at such numbers are how recordings write that a person is not there.
    told = unset if unset.any() and sure.any() else None
    return Person(moved + np.float32(0), sure, key, int(strays.sum()), told)  # + 0: no -0.0


def _placeholders(places: Numbers) -> npt.NDArray[np.bool_]:
    """Return which joints [V, C] stand at the origin, or at equal negative numbers.

    In pictures, and in space as a camera sees it, nobody is there: pose estimators write (0, 0) or
    (-1, -1) for a joint that they have not found, often with a score above 0. Around the origin,
    as in coordinates that are centred on the hips, a joint may be: there, numbers mean "missing" if
    several joints have them.
    """
    first = places[:, 0]
    alike: npt.NDArray[np.bool_] = np.isfinite(first) & (first <= 0)
    alike &= (places == first[:, None]).all(axis=1)
    if alike.any():
        others = places[np.isfinite(places).all(axis=1) & ~alike]
        if len(others) and _surround_origin(others):
            values, counts = np.unique(first[alike], return_counts=True)
            alike &= np.isin(first, values[counts > 1])
    return alike


def _surround_origin(places: Numbers) -> bool:
    """Return whether the origin is within the box around joints [V, C]; they may lie in a plane."""
    low, high = places.min(axis=0), places.max(axis=0)
    return bool(np.all(((low < 0) & (high > 0)) | ((low == 0) & (high == 0))))


def _strays(places: Numbers, known: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which of the ``known`` joints [V, C] are too far from the others."""
    own = places[known]
    if len(own) < 5:  # of two eyes and a hand
        return np.zeros(len(places), np.bool_)
    distances = np.abs(places - np.sort(own, axis=0)[len(own) // 2]).max(axis=1)
    middle = np.sort(distances[known])[len(own) // 2]
    far: npt.NDArray[np.bool_] = known & (distances > _FAR * middle) & (middle > 0)
    return far


class Placeholders:
    """Counts the joints that stood at numbers for "missing".

    ``live``: nobody knows when the data end, so that it is also told of the first of them.
    """

    def __init__(self, *, live: bool) -> None:
        self._unset = self._joints = 0
        self._told = not live

    def add(self, moment: PersonFrame) -> Iterator[Fault]:
        """Count those of a frame; yield a remark that is due."""
        for body in moment.bodies:
            unset = 0 if body.unset is None else int(body.unset.sum())
            self._unset += unset
            self._joints += unset + int((body.scores > 0).sum())
        if self._unset and not self._told:
            self._told = True
            yield Fault(moment.time_s, f"joints {_UNSET}", count=0)

    def finish(self, time_s: float) -> Iterator[Fault]:
        """Yield a remark on all of them, if there were any."""
        if self._unset:
            text = f"{self._unset:,} of {self._joints:,} joints {_UNSET}"
            yield Fault(max(time_s, 0.0), text, count=0)


class Slots:
    """Assigns persons to slots and keeps the assignment while they are seen.

    Persons with a key keep the slot of that key. Others take the slot of the nearest person of
    the previous frame, nearest pair first. New persons take the first free slot, highest total
    score first; without a free slot they are left out.

    ``numbers``: of the persons who have, or last had, each slot, from 1 in order of appearance; 0
    for a slot that nobody has had.
    """

    def __init__(self, size: int) -> None:
        """``size``: number of slots."""
        self.numbers = [0] * size
        self._newest = 0
        self._last: list[Person | None] = [None] * size
        self._seen_s = [-math.inf] * size

    @property
    def position(self) -> dict[str, Any]:
        """Who has which slot, as JSON values, for ``resume``; of persons without a key."""
        return {
            "numbers": self.numbers,
            "newest": self._newest,
            "seen_s": [None if math.isinf(s) else s for s in self._seen_s],
            "last": [
                None if held is None else [held.joints.tolist(), held.scores.tolist()]
                for held in self._last
            ],
        }

    def resume(self, position: Mapping[str, Any]) -> None:
        """Go on from a position. Raises KeyError or TypeError if it is none."""
        self.numbers, self._newest = list(position["numbers"]), position["newest"]
        self._seen_s = [-math.inf if s is None else s for s in position["seen_s"]]
        self._last = [
            None
            if held is None
            else Person(np.array(held[0], np.float32), np.array(held[1], np.float32))
            for held in position["last"]
        ]

    def place(self, moment: PersonFrame) -> list[Person | None]:
        """Return the person in each slot, None for empty ones."""
        taken: dict[int, Person] = {}
        bodies = [body for body in moment.bodies if body.scores.any()]
        strangers = self._keyed(bodies, taken)
        strangers = self._nearest(strangers, taken, moment.time_s)
        strangers.sort(key=lambda body: -float(body.scores.sum()))
        for body in strangers:
            free = self._free(taken, moment.time_s)
            if free is None:
                break
            taken[free] = body
            self._newest += 1
            self.numbers[free] = self._newest
        for slot, body in taken.items():
            self._last[slot], self._seen_s[slot] = body, moment.time_s
        return [taken.get(slot) for slot in range(len(self._last))]

    def _keyed(self, bodies: Sequence[Person], taken: dict[int, Person]) -> list[Person]:
        """Place persons whose key has a slot; return the others."""
        holders = {
            held.key: slot
            for slot, held in enumerate(self._last)
            if held is not None and held.key is not None
        }
        strangers = []
        for body in bodies:
            slot = holders.get(body.key) if body.key is not None else None
            if slot is None or slot in taken:
                strangers.append(body)
            else:
                taken[slot] = body
        return strangers

    def _nearest(
        self, bodies: Sequence[Person], taken: dict[int, Person], time_s: float
    ) -> list[Person]:
        """Place persons without a key in the slot of the nearest one; return the others."""
        pairs = [
            (_distance(held, body), slot, k)
            for slot, held in enumerate(self._last)
            if held is not None and held.key is None and not self._gone(slot, time_s)
            for k, body in enumerate(bodies)
            if body.key is None
        ]
        placed: set[int] = set()
        for _, slot, k in sorted(pairs):
            if slot not in taken and k not in placed:
                taken[slot] = bodies[k]
                placed.add(k)
        return [body for k, body in enumerate(bodies) if k not in placed]

    def _free(self, taken: dict[int, Person], time_s: float) -> int | None:
        for slot in range(len(self._last)):
            if slot not in taken and self._gone(slot, time_s):
                return slot
        return None

    def _gone(self, slot: int, time_s: float) -> bool:
        return time_s - self._seen_s[slot] > KEEP_S


def _distance(a: Person, b: Person) -> float:
    """Return the mean distance of joints seen in both, or else of their centroids."""
    both = (a.scores > 0) & (b.scores > 0)
    with np.errstate(over="ignore"):
        if both.any():
            return float(np.linalg.norm(a.joints[both] - b.joints[both], axis=1).mean())
        middles = [body.joints[body.scores > 0].mean(axis=0) for body in (a, b)]
        return float(np.linalg.norm(middles[0] - middles[1]))
