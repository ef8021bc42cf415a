"""Objects in zones and on lines, from boxes with track ids, step by step.

The boxes of a detector are noisy, and some show nothing. So an object has entered a zone once it
was seen inside in ``STAY_STEPS`` steps over ``STAY_S``, has left it once it was outside for
``OUT_S``, and has crossed a line once its distance is above ``CLEAR``. The records have the times
at which it was first inside, outside, and behind the line. An object that is not seen stays where
it was for as long as the tracker keeps it; if it does not come back, it left when last seen.

Events are therefore known with a delay that varies. A record is held back while one of an earlier
time may still follow, for at most ``PATIENCE_S``; its counts are for its time.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from costream.core.clock import SLACK_S
from costream.core.places import (
    Crossing,
    Place,
    PlaceCount,
    ZoneEvent,
    contains,
    crossings,
    distance,
)
from costream.core.records import Box, PixelSize
from costream.runtime.tracking import PATIENCE_S

if TYPE_CHECKING:
    from costream.core.places import Points

log = logging.getLogger("costream")
STAY_S = 0.3  # least duration of a visit
STAY_STEPS = 2
OUT_S = 0.5
DWELL_S = 10.0  # interval between "dwell" records of one object in one zone
CLEAR = 0.005  # least distance from a line, as a fraction of the picture
Event = ZoneEvent | Crossing


def feet_of(boxes: Sequence[Box], size: PixelSize) -> Points:
    """Return the middles of the lower edges [n, 2] of boxes, as fractions of the picture."""
    feet = [((box.x1 + box.x2) / 2, box.y2) for box in boxes]
    return np.array(feet, np.float64).reshape(-1, 2) / size


@dataclass
class Visit:
    """An object in a zone."""

    label: str
    since_s: float
    steps: int = 0  # in which it was seen inside
    counts: bool = False  # it has lasted long enough
    score: float = 1.0
    out_s: float | None = None  # since when it has been outside
    reported_s: float = 0.0  # duration of the visit at the last record


@dataclass
class _Object:
    """An object that is tracked."""

    label: str
    seen_s: float
    at: tuple[float, float]
    visits: dict[str, Visit] = field(default_factory=dict)  # by zone
    under_way: dict[str, tuple[int, float]] = field(default_factory=dict)  # by line: net, time


class Presence:
    """Follows the objects in the zones and over the lines of one stream.

    ``events``: the records that became final at the newest step, in the order of their times.
    ``crossed``: the crossings at the newest step, immediately and without counts.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._zones = [place for place in places if place.kind == "zone"]
        self._lines = [place for place in places if place.kind == "line"]
        self._objects: dict[int, _Object] = {}
        self._counts: defaultdict[tuple[str, str, str], list[int]]  # kind, place, label: ins, outs
        self._counts = defaultdict(lambda: [0, 0])
        self._size: PixelSize = (0, 0)
        self._shapes: dict[str, Points] = {}
        self._held: list[Event] = []  # without counts
        self._began_s: float | None = None
        self._newest_s = 0.0
        self.events: list[Event] = []
        self.crossed: list[Crossing] = []
        self.boxes: tuple[Box, ...] = ()  # of the newest step

    @property
    def names(self) -> dict[str, str]:
        """The zones and lines, each with its kind."""
        return {place.name: place.kind for place in (*self._zones, *self._lines)}

    def update(self, time_s: float, boxes: Sequence[Box], size: PixelSize) -> tuple[Box, ...]:
        """Take the boxes of a step, which have ids; return them with the names of their zones.

        ``size``: width and height of the picture, in the pixels of the boxes.
        """
        self.crossed = []
        self._began_s = time_s if self._began_s is None else self._began_s
        before_s, self._newest_s = self._newest_s, time_s
        if size != self._size:
            self._size = size
            self._shapes = {p.name: p.within(size) for p in (*self._zones, *self._lines)}
            for name, shape in self._shapes.items():
                if (shape.min(0) >= 1).any():
                    log.warning("%s: outside the picture, which is %dx%d", name, *size)
        feet = feet_of(boxes, size)
        inside = {zone.name: contains(self._shapes[zone.name], feet) for zone in self._zones}
        placed = []
        for number, box in enumerate(boxes):
            assert box.id is not None
            at = (float(feet[number, 0]), float(feet[number, 1]))
            obj = self._objects.setdefault(box.id, _Object(box.label, time_s, at))
            self._cross(time_s, box.id, obj, at)
            zones = tuple(name for name, flags in inside.items() if flags[number])
            self._visit(time_s, box, obj, zones)
            obj.at, obj.seen_s = at, time_s
            placed.append(replace(box, zones=zones))
        limit_s = min(time_s - PATIENCE_S, before_s) - SLACK_S  # as the tracker
        for number in [n for n, obj in self._objects.items() if obj.seen_s < limit_s]:
            self._forget(number)
        self._finish_events(self._open_since_s())
        self.boxes = tuple(placed)
        return self.boxes

    def reset(self, *, complete: bool = False) -> list[Event]:
        """Forget all objects, as after a gap, and return the records that were not returned yet.

        ``complete``: the steps were all data. Then an object that was in a zone in all of them
        has visited it, however short they are, such as a single picture.
        """
        self.crossed, self.boxes = [], ()
        for number, obj in list(self._objects.items()):
            for zone, visit in obj.visits.items() if complete else ():
                there = visit.since_s == self._began_s and visit.out_s is None
                if there and obj.seen_s == self._newest_s and not visit.counts:
                    self._enter(zone, number, visit)
            self._forget(number)
        self._finish_events(math.inf)
        return self.events

    def visits(self, zone: str, label: str | None) -> dict[int, Visit]:
        """Return the visits of objects of a label (None: of any) in a zone, by track id."""
        return {
            number: obj.visits[zone]
            for number, obj in self._objects.items()
            if zone in obj.visits and obj.visits[zone].counts and label in (None, obj.label)
        }

    def count(self, label: str | None, zone: str | None) -> int:
        """Return the number of objects of a label (None: any) in a zone; None: in the picture."""
        if zone is None:
            return sum(label in (None, obj.label) for obj in self._objects.values())
        return len(self.visits(zone, label))

    def counts(self) -> tuple[PlaceCount, ...]:
        """Return the counts of every zone and line, of each label that was there."""
        return tuple(
            PlaceCount(
                *(place, "line" if kind == "line" else "zone", label),
                ins - outs if kind == "zone" else 0,
                *(ins, outs),
            )
            for (kind, place, label), (ins, outs) in self._counts.items()
        )

    def _cross(self, time_s: float, number: int, obj: _Object, at: tuple[float, float]) -> None:
        for line in self._lines:
            shape = self._shapes[line.name]
            net, since_s = obj.under_way.get(line.name, (0, time_s))
            if step := crossings(shape, obj.at, at):
                net, since_s = net + step, time_s
            if net and distance(shape, at) > CLEAR:
                self._crossed(line.name, number, obj, net, since_s)
                net = 0
            obj.under_way[line.name] = net, since_s

    def _crossed(self, line: str, number: int, obj: _Object, net: int, time_s: float) -> None:
        direction = "in" if net > 0 else "out"
        crossed = abs(net) * [Crossing(time_s, line, direction, obj.label, number, 0, 0)]
        self.crossed += crossed
        self._held += crossed

    def _visit(self, time_s: float, box: Box, obj: _Object, zones: Sequence[str]) -> None:
        """Update the visits of an object; ``zones``: the zones in which it is."""
        assert box.id is not None
        for name in zones:
            visit = obj.visits.setdefault(name, Visit(obj.label, time_s))
            visit.out_s, visit.score, visit.steps = None, box.score, visit.steps + 1
            stayed_s = time_s - visit.since_s
            long = visit.steps >= STAY_STEPS and stayed_s >= STAY_S - SLACK_S
            if long and not visit.counts:
                self._enter(name, box.id, visit)
            if stayed_s - visit.reported_s >= DWELL_S - SLACK_S:
                visit.reported_s += DWELL_S * ((stayed_s - visit.reported_s + SLACK_S) // DWELL_S)
                self._record("dwell", time_s, name, box.id, visit)
        for name in [name for name in obj.visits if name not in zones]:
            visit = obj.visits[name]
            visit.out_s = time_s if visit.out_s is None else visit.out_s
            if time_s - visit.out_s >= OUT_S - SLACK_S:
                self._leave(visit.out_s, name, box.id, obj)

    def _enter(self, zone: str, number: int, visit: Visit) -> None:
        visit.counts = True
        self._record("enter", visit.since_s, zone, number, visit)

    def _leave(self, time_s: float, zone: str, number: int, obj: _Object) -> None:
        visit = obj.visits.pop(zone)
        if visit.counts:
            self._record("leave", time_s, zone, number, visit)

    def _record(self, event: str, time_s: float, zone: str, number: int, visit: Visit) -> None:
        dwell_s = time_s - visit.since_s
        self._held.append(ZoneEvent(time_s, zone, event, visit.label, number, dwell_s, 0, 0, 0))

    def _open_since_s(self) -> float:
        """Return the earliest time that a later record may have, within PATIENCE_S."""
        times_s = [self._newest_s]
        for obj in self._objects.values():
            times_s += [since_s for net, since_s in obj.under_way.values() if net]
            for visit in obj.visits.values():
                left_s = obj.seen_s if visit.out_s is None else visit.out_s
                times_s.append(left_s if visit.counts else visit.since_s)
        return min(t for t in times_s if t >= self._newest_s - PATIENCE_S - SLACK_S)

    def _finish_events(self, until_s: float) -> None:
        """Move the records up to ``until_s`` to the events of this step, with their counts."""
        self._held.sort(key=lambda event: event.time_s)
        ready = [event for event in self._held if event.time_s <= until_s + SLACK_S]
        del self._held[: len(ready)]
        self.events = [self._counted(event) for event in ready]

    def _counted(self, event: Event) -> Event:
        if isinstance(event, Crossing):
            counts = self._counts["line", event.line, event.label]
            counts[event.direction == "out"] += 1
            return replace(event, ins=counts[0], outs=counts[1])
        counts = self._counts["zone", event.zone, event.label]
        if event.event != "dwell":
            counts[event.event == "leave"] += 1
        entered, left = counts
        return replace(event, now=entered - left, entered=entered, left=left)

    def _forget(self, number: int) -> None:
        """Forget an object that is lost: it left when it was last seen."""
        obj = self._objects[number]
        for line, (net, since_s) in obj.under_way.items():
            if net:
                self._crossed(line, number, obj, net, since_s)
        for zone, visit in list(obj.visits.items()):
            self._leave(obj.seen_s if visit.out_s is None else visit.out_s, zone, number, obj)
        del self._objects[number]
