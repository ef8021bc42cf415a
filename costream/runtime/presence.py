"""Who is in which zone, and who crosses which line: from boxes with track ids, step by step.

A detector's boxes tremble, and some are of nothing. So an object has entered a zone once it was
seen inside in ``STAY_STEPS`` steps over ``STAY_S``, has left it once it was outside for ``OUT_S``,
and has crossed a line once it is ``CLEAR`` of it; the records have the times at which it was first
inside, outside, and behind the line. One that is out of sight stays where it was for as long as the
tracker knows it; if it does not come back, it left when it was seen last.

So what happened is known late, by more or less. A record waits for those of an earlier time that
may come within ``PATIENCE_S`` of theirs, and its counts are those at its time.
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
STAY_S = 0.3  # at least, of a visit
STAY_STEPS = 2
OUT_S = 0.5
DWELL_S = 10.0  # between two records of one object in one zone
CLEAR = 0.005  # in parts of the picture
Event = ZoneEvent | Crossing


def feet_of(boxes: Sequence[Box], size: PixelSize) -> Points:
    """Return where objects stand [n, 2], for boxes in pixels of a picture of this size."""
    feet = [((box.x1 + box.x2) / 2, box.y2) for box in boxes]
    return np.array(feet, np.float64).reshape(-1, 2) / size


@dataclass
class Visit:
    """An object in a zone."""

    label: str
    since_s: float
    steps: int = 0  # in which it was seen inside
    counts: bool = False  # it has stayed for long enough
    score: float = 1.0
    out_s: float | None = None  # since when it has been outside
    told_s: float = 0.0  # for how long it had been there at the last record


@dataclass
class _Object:
    """An object that is tracked."""

    label: str
    seen_s: float
    at: tuple[float, float]
    visits: dict[str, Visit] = field(default_factory=dict)  # by zone
    under_way: dict[str, tuple[int, float]] = field(default_factory=dict)  # by line: net, time


class Presence:
    """Keeps what is in the zones of one stream.

    ``events``: the records that the newest step made final, in the order of their times.
    ``crossed``: the crossings that it showed, at once and without counts.
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

        ``size``: width and height of the picture that their pixels are of.
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
            known = self._objects.setdefault(box.id, _Object(box.label, time_s, at))
            self._cross(time_s, box.id, known, at)
            zones = tuple(name for name, flags in inside.items() if flags[number])
            self._visit(time_s, box, known, zones)
            known.at, known.seen_s = at, time_s
            placed.append(replace(box, zones=zones))
        limit_s = min(time_s - PATIENCE_S, before_s) - SLACK_S  # as the tracker
        for number in [n for n, known in self._objects.items() if known.seen_s < limit_s]:
            self._forget(number)
        self._finish_events(self._open_since_s())
        self.boxes = tuple(placed)
        return self.boxes

    def reset(self, *, whole: bool = False) -> list[Event]:
        """Let every object leave, as after a gap, and return the records that were not returned.

        ``whole``: the steps were all data; who was in a zone in all of them has visited it, however
        short they are, such as a single picture.
        """
        self.crossed, self.boxes = [], ()
        for number, known in list(self._objects.items()):
            for zone, visit in known.visits.items() if whole else ():
                there = visit.since_s == self._began_s and visit.out_s is None
                if there and known.seen_s == self._newest_s and not visit.counts:
                    self._enter(zone, number, visit)
            self._forget(number)
        self._finish_events(math.inf)
        return self.events

    def visits(self, zone: str, label: str | None) -> dict[int, Visit]:
        """Return the visits of objects of a label (None: of any) in a zone, by track id."""
        return {
            number: known.visits[zone]
            for number, known in self._objects.items()
            if zone in known.visits and known.visits[zone].counts and label in (None, known.label)
        }

    def count(self, label: str | None, zone: str | None) -> int:
        """Return the number of objects of a label (None: any) in a zone; None: in the picture."""
        if zone is None:
            return sum(label in (None, known.label) for known in self._objects.values())
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

    def _cross(self, time_s: float, number: int, known: _Object, at: tuple[float, float]) -> None:
        for line in self._lines:
            shape = self._shapes[line.name]
            net, since_s = known.under_way.get(line.name, (0, time_s))
            if step := crossings(shape, known.at, at):
                net, since_s = net + step, time_s
            if net and distance(shape, at) > CLEAR:
                self._crossed(line.name, number, known, net, since_s)
                net = 0
            known.under_way[line.name] = net, since_s

    def _crossed(self, line: str, number: int, known: _Object, net: int, time_s: float) -> None:
        direction = "in" if net > 0 else "out"
        crossed = abs(net) * [Crossing(time_s, line, direction, known.label, number, 0, 0)]
        self.crossed += crossed
        self._held += crossed

    def _visit(self, time_s: float, box: Box, known: _Object, zones: Sequence[str]) -> None:
        """Let an object enter and leave zones; ``zones``: those that it stands in."""
        assert box.id is not None
        for name in zones:
            visit = known.visits.setdefault(name, Visit(known.label, time_s))
            visit.out_s, visit.score, visit.steps = None, box.score, visit.steps + 1
            stayed_s = time_s - visit.since_s
            long = visit.steps >= STAY_STEPS and stayed_s >= STAY_S - SLACK_S
            if long and not visit.counts:
                self._enter(name, box.id, visit)
            if stayed_s - visit.told_s >= DWELL_S - SLACK_S:
                visit.told_s += DWELL_S * ((stayed_s - visit.told_s + SLACK_S) // DWELL_S)
                self._tell("dwell", time_s, name, box.id, visit)
        for name in [name for name in known.visits if name not in zones]:
            visit = known.visits[name]
            visit.out_s = time_s if visit.out_s is None else visit.out_s
            if time_s - visit.out_s >= OUT_S - SLACK_S:
                self._leave(visit.out_s, name, box.id, known)

    def _enter(self, zone: str, number: int, visit: Visit) -> None:
        visit.counts = True
        self._tell("enter", visit.since_s, zone, number, visit)

    def _leave(self, time_s: float, zone: str, number: int, known: _Object) -> None:
        visit = known.visits.pop(zone)
        if visit.counts:
            self._tell("leave", time_s, zone, number, visit)

    def _tell(self, event: str, time_s: float, zone: str, number: int, visit: Visit) -> None:
        dwell_s = time_s - visit.since_s
        self._held.append(ZoneEvent(time_s, zone, event, visit.label, number, dwell_s, 0, 0, 0))

    def _open_since_s(self) -> float:
        """Return the earliest time of a record that may yet come and is worth waiting for."""
        times_s = [self._newest_s]
        for known in self._objects.values():
            times_s += [since_s for net, since_s in known.under_way.values() if net]
            for visit in known.visits.values():
                left_s = known.seen_s if visit.out_s is None else visit.out_s
                times_s.append(left_s if visit.counts else visit.since_s)
        return min(t for t in times_s if t >= self._newest_s - PATIENCE_S - SLACK_S)

    def _finish_events(self, until_s: float) -> None:
        """Make the records up to ``until_s`` the events of this step, with their counts."""
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
        """Forget an object that does not come back: it left when it was seen last."""
        known = self._objects[number]
        for line, (net, since_s) in known.under_way.items():
            if net:
                self._crossed(line, number, known, net, since_s)
        for zone, visit in list(known.visits.items()):
            self._leave(known.seen_s if visit.out_s is None else visit.out_s, zone, number, known)
        del self._objects[number]
