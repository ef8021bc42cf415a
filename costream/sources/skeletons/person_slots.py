"""Assignment of persons to slots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from costream.core.layouts import Layout
from costream.core.records import SkeletonFrame
from costream.sources.skeletons.person import Person
from costream.sources.skeletons.skeleton_recording import PersonFrame

# A person not seen for this long has left, and the slot is free again.
KEEP_S = 1.0


class Slots:
    """Assigns persons to slots and keeps the assignment while they are seen.

    Persons with a key keep the slot of that key. Others take the slot of the nearest person of
    the previous frame, nearest pair first. New persons take the first free slot, highest total
    score first; without a free slot they are left out.

    ``numbers``: number of the person who has, or last had, each slot, from 1 in order of
    appearance; 0 for an unused slot.
    """

    def __init__(self, size: int) -> None:
        """``size``: number of slots."""
        self.numbers = [0] * size
        self._newest = 0
        self._last: list[Person | None] = [None] * size
        self._seen_s = [-math.inf] * size

    @property
    def position(self) -> dict[str, Any]:
        """State as JSON values, for ``resume``; keys of persons are not kept."""
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
        """Continue from a position. Raises KeyError or TypeError if it is invalid."""
        self.numbers, self._newest = list(position["numbers"]), position["newest"]
        self._seen_s = [-math.inf if s is None else s for s in position["seen_s"]]
        self._last = [
            None
            if held is None
            else Person(np.array(held[0], np.float32), np.array(held[1], np.float32))
            for held in position["last"]
        ]

    def frame(self, i: int, moment: PersonFrame, layout: Layout, axes: int) -> SkeletonFrame:
        """Return frame ``i`` with the persons in their slots; empty slots have score 0."""
        placed = self.place(moment)
        joints = np.zeros((len(placed), len(layout.joints), axes), np.float32)
        scores = np.zeros((len(placed), len(layout.joints)), np.float32)
        for slot, person in enumerate(placed):
            if person is not None:
                joints[slot], scores[slot] = person.joints, person.scores
        numbers = tuple(self.numbers)
        return SkeletonFrame(i, moment.time_s, joints, scores, layout, persons=numbers)

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
