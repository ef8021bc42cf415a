"""Who is in which zone, and who crosses which line: from boxes with track ids, step by step.

A detector's boxes tremble, so an object has left a zone once it was outside for ``OUT_S``, and a
line is crossed once the object is ``CLEAR`` of it; the records have the times at which it was first
outside, and behind the line. One that is out of sight stays where it was for as long as the tracker
knows it; if it does not come back, it left when it was seen last.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from costream.clock import SLACK_S
from costream.places import Crossing, Place, PlaceCount, ZoneEvent, contains, crossings, distance
from costream.records import Box, PixelSize
from costream.runtime.tracking import PATIENCE_S

if TYPE_CHECKING:
    from costream.places import Points

log = logging.getLogger("costream")
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
    """Keeps what is in the zones of one stream; ``events`` are those of the newest step."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._zones = [place for place in places if place.kind == "zone"]
        self._lines = [place for place in places if place.kind == "line"]
        self._objects: dict[int, _Object] = {}
        self._counts: defaultdict[tuple[str, str, str], list[int]]  # kind, place, label: ins, outs
        self._counts = defaultdict(lambda: [0, 0])
        self._size: PixelSize = (0, 0)
        self._shapes: dict[str, Points] = {}
        self.events: list[Event] = []
        self.boxes: tuple[Box, ...] = ()  # of the newest step

    @property
    def names(self) -> dict[str, str]:
        """The zones and lines, each with its kind."""
        return {place.name: place.kind for place in (*self._zones, *self._lines)}

    def update(self, time_s: float, boxes: Sequence[Box], size: PixelSize) -> tuple[Box, ...]:
        """Take the boxes of a step, which have ids; return them with the names of their zones.

        ``size``: width and height of the picture that their pixels are of.
        """
        self.events = []
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
        limit_s = time_s - PATIENCE_S - SLACK_S
        for number in [n for n, known in self._objects.items() if known.seen_s < limit_s]:
            self._forget(number)
        self.boxes = tuple(placed)
        return self.boxes

    def reset(self) -> list[Event]:
        """Let every object leave, as after a gap, and return the records of that."""
        self.events, self.boxes = [], ()
        for number in list(self._objects):
            self._forget(number)
        return self.events

    def visits(self, zone: str, label: str | None) -> dict[int, Visit]:
        """Return the visits of objects of a label (None: of any) in a zone, by track id."""
        return {
            number: known.visits[zone]
            for number, known in self._objects.items()
            if zone in known.visits and label in (None, known.label)
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
                self.count(label, place) if kind == "zone" else 0,
                *numbers,
            )
            for (kind, place, label), numbers in self._counts.items()
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
        counts = self._counts["line", line, known.label]
        for _ in range(abs(net)):
            counts[net < 0] += 1
            direction = "in" if net > 0 else "out"
            self.events.append(Crossing(time_s, line, direction, known.label, number, *counts))

    def _visit(self, time_s: float, box: Box, known: _Object, zones: Sequence[str]) -> None:
        """Let an object enter and leave zones; ``zones``: those that it stands in."""
        assert box.id is not None
        for name in zones:
            visit = known.visits.get(name)
            if visit is None:
                visit = known.visits[name] = Visit(known.label, time_s)
                self._counts["zone", name, known.label][0] += 1
                self._tell("enter", time_s, name, box.id, visit)
            visit.out_s, visit.score = None, box.score
            stayed_s = time_s - visit.since_s
            if stayed_s - visit.told_s >= DWELL_S - SLACK_S:
                visit.told_s += DWELL_S * ((stayed_s - visit.told_s + SLACK_S) // DWELL_S)
                self._tell("dwell", time_s, name, box.id, visit)
        for name in [name for name in known.visits if name not in zones]:
            visit = known.visits[name]
            visit.out_s = time_s if visit.out_s is None else visit.out_s
            if time_s - visit.out_s >= OUT_S - SLACK_S:
                self._leave(visit.out_s, name, box.id, known)

    def _leave(self, time_s: float, zone: str, number: int, known: _Object) -> None:
        visit = known.visits.pop(zone)
        self._counts["zone", zone, known.label][1] += 1
        self._tell("leave", time_s, zone, number, visit)

    def _tell(self, event: str, time_s: float, zone: str, number: int, visit: Visit) -> None:
        counts = self._counts["zone", zone, visit.label]
        now, dwell_s = self.count(visit.label, zone), time_s - visit.since_s
        self.events.append(
            ZoneEvent(time_s, zone, event, visit.label, number, dwell_s, now, *counts)
        )

    def _forget(self, number: int) -> None:
        """Forget an object that does not come back: it left when it was seen last."""
        known = self._objects[number]
        for line, (net, since_s) in known.under_way.items():
            if net:
                self._crossed(line, number, known, net, since_s)
        for zone, visit in list(known.visits.items()):
            self._leave(known.seen_s if visit.out_s is None else visit.out_s, zone, number, known)
        del self._objects[number]
