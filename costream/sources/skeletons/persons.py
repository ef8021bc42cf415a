"""Persons per frame as read from skeleton formats, and their assignment to slots."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from costream.errors import SourceError
from costream.layouts import Layout

Numbers: TypeAlias = npt.NDArray[np.float32]

# A person not seen for this long has left, and the slot is free again.
KEEP_S = 1.0
# A joint is no part of a body if it is further from the median of the joints than so many times the
# median distance from there: numbers that stand for "missing", and slips of a tracker.
_FAR = 50


@dataclass(frozen=True)
class Person:
    """One person in one frame; missing joints have score 0 and zero coordinates."""

    joints: Numbers  # float32 [V, C], y up
    scores: Numbers  # float32 [V], 0 to 1
    key: Hashable = None  # the person's identifier, if the format has one
    strays: int = 0  # joints that were too far away to be this person's, and are missing


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


def check_joints(count: int, layout: Layout, where: str) -> None:
    """Raise SourceError unless a file has as many joints as its layout."""
    if count != len(layout.joints):
        raise SourceError(
            f"there are {count} joints in it, {layout.name} has {len(layout.joints)}", where=where
        )


def make_person(
    joints: npt.ArrayLike, scores: npt.ArrayLike | None = None, key: Hashable = None
) -> Person:
    """Return a person from raw coordinates [V, C] and scores [V].

    A joint is missing if a coordinate is not finite, its score is not above 0, or it is too far
    from the others; all joints are missing if all coordinates are zero, which is how recordings
    write an absent person.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        places = np.array(joints, np.float32)
        sure = np.ones(len(places), np.float32) if scores is None else np.array(scores, np.float32)
        strays = _strays(places)
    sure = np.where(np.isfinite(sure), np.clip(sure, 0, 1), 0).astype(np.float32)
    sure[~np.isfinite(places).all(axis=1)] = 0
    strays &= sure > 0
    sure[strays] = 0
    places[sure == 0] = 0
    if not places.any():
        sure[:] = 0
    return Person(places, sure, key, int(strays.sum()))


def _strays(places: Numbers) -> npt.NDArray[np.bool_]:
    """Return which joints [V, C] are too far from the others; those that are not finite do not."""
    known = np.isfinite(places).all(axis=1) & places.any(axis=1)
    own = places[known]
    if len(own) < 5:  # of two eyes and a hand
        return np.zeros(len(places), np.bool_)
    distances = np.abs(places - np.sort(own, axis=0)[len(own) // 2]).max(axis=1)
    middle = np.sort(distances[known])[len(own) // 2]
    far: npt.NDArray[np.bool_] = known & (distances > _FAR * middle) & (middle > 0)
    return far


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
