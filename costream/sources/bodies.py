"""What the skeleton formats give: persons at moments; and which person keeps which slot."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from costream.layouts import Layout

Numbers: TypeAlias = npt.NDArray[np.float32]

# A person who was not seen for this long has left: the next one may have the slot.
KEEP_S = 1.0


@dataclass(frozen=True)
class Body:
    """One person at one moment; missing joints have score 0 and zeros for coordinates."""

    joints: Numbers  # float32 [V, C], y up
    scores: Numbers  # float32 [V], 0 to 1
    key: Hashable = None  # who it is, where the format says so


@dataclass(frozen=True)
class Moment:
    """Everybody who was seen at one time; nobody is a moment too."""

    time_s: float
    bodies: tuple[Body, ...]


@dataclass(frozen=True)
class Spoiled:
    """Something that was left out, named in a way that stands after a number."""

    what: str


@dataclass(frozen=True)
class Ended:
    """The recording is damaged or cut off here, and nothing can be read after it."""

    message: str


Event: TypeAlias = Moment | Spoiled | Ended


@dataclass(frozen=True)
class Recording:
    """An opened recording of skeletons."""

    layout: Layout
    axes: int  # coordinates a joint, 2 or 3
    rate_hz: float | None  # nominal frames a second
    duration_s: float | None
    events: Iterator[Event]  # in the order of the recording


def make_body(
    joints: npt.ArrayLike, scores: npt.ArrayLike | None = None, key: Hashable = None
) -> Body:
    """Give a person from coordinates [V, C] and scores [V] as they were read.

    Missing are joints with a coordinate that is not finite, or without a score above 0; and all
    joints of a person who is all zeros, which is how recordings write that nobody is there.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        places = np.array(joints, np.float32)
        sure = np.ones(len(places), np.float32) if scores is None else np.array(scores, np.float32)
    sure = np.where(np.isfinite(sure), np.clip(sure, 0, 1), 0).astype(np.float32)
    sure[~np.isfinite(places).all(axis=1)] = 0
    places[sure == 0] = 0
    if not places.any():
        sure[:] = 0
    return Body(places, sure, key)


class Slots:
    """Gives persons their slots, and the same slot as long as they are seen.

    Persons with a key keep the slot that belongs to it. Others take the slot of the person who
    was nearest the moment before, nearest pair first. New persons take the first slot that is
    free, those seen best before others; without a free slot they are left out.
    """

    def __init__(self, size: int) -> None:
        """``size``: number of slots."""
        self._last: list[Body | None] = [None] * size
        self._seen_s = [-math.inf] * size

    def place(self, moment: Moment) -> list[Body | None]:
        """Give who is in which slot at this moment."""
        taken: dict[int, Body] = {}
        bodies = [body for body in moment.bodies if body.scores.any()]
        strangers = self._keyed(bodies, taken)
        strangers = self._nearest(strangers, taken, moment.time_s)
        strangers.sort(key=lambda body: -float(body.scores.sum()))
        for body in strangers:
            free = self._free(taken, moment.time_s)
            if free is None:
                break
            taken[free] = body
        for slot, body in taken.items():
            self._last[slot], self._seen_s[slot] = body, moment.time_s
        return [taken.get(slot) for slot in range(len(self._last))]

    def _keyed(self, bodies: Sequence[Body], taken: dict[int, Body]) -> list[Body]:
        """Place those whose key holds a slot; give the others."""
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

    def _nearest(self, bodies: Sequence[Body], taken: dict[int, Body], time_s: float) -> list[Body]:
        """Place persons without a key where the nearest one was; give the others."""
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

    def _free(self, taken: dict[int, Body], time_s: float) -> int | None:
        for slot in range(len(self._last)):
            if slot not in taken and self._gone(slot, time_s):
                return slot
        return None

    def _gone(self, slot: int, time_s: float) -> bool:
        return time_s - self._seen_s[slot] > KEEP_S


def _distance(a: Body, b: Body) -> float:
    """Give the mean distance of the joints seen in both, or of their middles."""
    both = (a.scores > 0) & (b.scores > 0)
    with np.errstate(over="ignore"):
        if both.any():
            return float(np.linalg.norm(a.joints[both] - b.joints[both], axis=1).mean())
        middles = [body.joints[body.scores > 0].mean(axis=0) for body in (a, b)]
        return float(np.linalg.norm(middles[0] - middles[1]))
