"""Places in the picture: zones, lines and masks, their geometry, and the records about them.

A place is ``NAME=X,Y X,Y ...``: corners in parts of the upright picture, from 0,0 at the upper left
to 1,1 at the lower right, or in pixels of it as soon as one of the numbers is above 1.

* A zone is a polygon, closed from its last corner to its first. A point on its edge is inside;
  where it crosses itself, the even-odd rule holds.
* A line is open and may have several parts. Seen along it, from its first point, an object that
  comes from its left to its right crosses it ``in``, and ``out`` the other way.
* A mask is a polygon that is painted over before the model sees the picture.

An object is where it stands: in the middle of the lower edge of its box.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from costream.core.errors import UsageError, clean
from costream.core.spelling import composed
from costream.core.units import short_time

if TYPE_CHECKING:  # commands that run nothing start without NumPy
    import numpy as np
    import numpy.typing as npt

    Points = npt.NDArray[np.float64]  # [n, 2]: x, y in parts of the picture

Kind = Literal["zone", "line", "mask"]
PixelSize = tuple[int, int]  # width, height
KINDS: tuple[Kind, ...] = ("zone", "line", "mask")
EDGE = 1e-9  # so far from an edge, in parts of the picture, is on it
PAINT = 114  # of masks, in all three colours
_LEAST = {"zone": 3, "line": 2, "mask": 3}
_MOST_PIXELS = 1e5
NO_NAME = re.compile(r"[\x00-\x1f\"'()<>]|^\s|\s$|^$|.{51}")


@dataclass(frozen=True)
class Place:
    """A named zone, line or mask."""

    name: str
    kind: Kind
    points: tuple[tuple[float, float], ...]  # its corners, or ends
    pixels: bool = False  # points are pixels of the upright picture, not parts of it

    def __str__(self) -> str:
        """Return what ``parse_place`` reads."""
        corners = (f"{x:.6g},{y:.6g}" for x, y in self.points)
        return f"{self.name}={' '.join(corners)}"

    def within(self, size: PixelSize) -> Points:
        """Return its points [n, 2] as parts of a picture of this width and height."""
        import numpy as np

        points = np.array(self.points, np.float64)
        return points / size if self.pixels else points


def parse_place(text: str, kind: Kind, where: str) -> Place:
    """Return the place ``NAME=X,Y X,Y ...``. UsageError names ``where``, the option or key."""
    name, equals, rest = composed(text).partition("=")
    hint = "write it as in: door=0.1,0.2 0.4,0.2 0.4,0.9"
    if not equals or NO_NAME.search(name):
        raise UsageError(f"{text!r} does not begin with a name and =", where=where, hint=hint)
    points = []
    for pair in rest.replace(";", " ").split():
        try:
            x, y = map(float, pair.split(","))
        except ValueError:
            raise UsageError(f"{pair!r} is not a point X,Y", where=where, hint=hint) from None
        if not (0 <= x <= _MOST_PIXELS and 0 <= y <= _MOST_PIXELS):
            raise UsageError(f"{pair!r} is not a point in the picture", where=where)
        points.append((x, y))
    if len(points) < _LEAST[kind]:
        what = f"a {kind} has at least {_LEAST[kind]} points, not {len(points)}"
        raise UsageError(f"{name}: {what}", where=where, hint=hint)
    return Place(name, kind, tuple(points), max(map(max, points)) > 1)


def check_places(places: Sequence[Place], where: str) -> tuple[Place, ...]:
    """Return the places. UsageError when two have the same name, because rules refer to names."""
    for number, place in enumerate(places):
        if place.name in {other.name for other in places[:number]}:
            raise UsageError(f"{place.name!r} is used twice", where=where)
    return tuple(places)


def places_of(options: Mapping[str, Any]) -> tuple[Place, ...]:
    """Return the places of a run by its header's options; what cannot be read is left out."""
    found = []
    places = options.get("places")
    for value in places if isinstance(places, (list, tuple)) else ():
        if isinstance(value, Place):
            found.append(value)
            continue
        try:
            points = tuple((float(x), float(y)) for x, y in value["points"])
            if (
                value["kind"] in KINDS
                and points
                and all(math.isfinite(n) for point in points for n in point)
            ):
                name, pixels = str(value["name"]), value.get("pixels") is True
                found.append(Place(name, value["kind"], points, pixels))
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return tuple(found)


# Geometry.


def contains(polygon: Points, points: Points) -> npt.NDArray[np.bool_]:
    """Return which points [n, 2] are in a polygon [m, 2], or on its edge: bool [n]."""
    import numpy as np

    start, end = polygon, np.roll(polygon, -1, 0)
    x, y = points[:, :1], points[:, 1:]
    along = end - start  # [m, 2]
    lengths = np.maximum((along**2).sum(1), 1e-300)
    across, down = x - start[:, 0], y - start[:, 1]
    near = np.clip((across * along[:, 0] + down * along[:, 1]) / lengths, 0, 1)
    gaps = np.hypot(across - near * along[:, 0], down - near * along[:, 1])
    # A ray to the right, half open at the ends of edges so that it meets a corner once.
    spans = (start[:, 1] > y) != (end[:, 1] > y)
    left = along[:, 0] * down - along[:, 1] * across
    meets = spans & ((left > 0) == (along[:, 1] > 0)) & (left != 0)
    inside: npt.NDArray[np.bool_] = (meets.sum(1) % 2 == 1) | (gaps <= EDGE).any(1)
    return inside


def crossings(line: Points, before: Sequence[float], after: Sequence[float]) -> int:
    """Return how often the way between two points crosses a line [m, 2]: in minus out.

    Ways that follow one another count a crossing once, also where they meet on the line, and so
    do parts of a line where the way goes through their common end.
    """
    net = 0
    sides = [_side(before, after, point, -1) for point in line]
    for number in range(len(line) - 1):
        if sides[number] == sides[number + 1]:
            continue
        start, end = line[number], line[number + 1]
        net += _side(start, end, after, 1) - _side(start, end, before, 1)
    return net


def distance(line: Points, point: Sequence[float]) -> float:
    """Return the distance of a point from a line [m, 2], in parts of the picture."""
    nearest = math.inf
    for (x1, y1), (x2, y2) in zip(line[:-1].tolist(), line[1:].tolist(), strict=True):
        dx, dy, x, y = x2 - x1, y2 - y1, point[0] - x1, point[1] - y1
        near = min(1.0, max(0.0, (x * dx + y * dy) / max(dx * dx + dy * dy, 1e-300)))
        nearest = min(nearest, math.hypot(x - near * dx, y - near * dy))
    return nearest


def _side(start: Sequence[float], end: Sequence[float], point: Sequence[float], shift: int) -> bool:
    """Return whether a point is to the right of a way from start to end.

    The point (``shift`` 1), or else the way (-1), counts as moved right and, much less, down by
    amounts too small to matter but for points on the way: all ways of objects are moved alike, so
    the answers for one line fit together.
    """
    dx, dy = end[0] - start[0], end[1] - start[1]
    across = dx * (point[1] - start[1]) - dy * (point[0] - start[0])
    return bool((across or -shift * dy or shift * dx) > 0)


def covered(
    masks: Iterable[Place], rows: int, columns: int, size: PixelSize
) -> npt.NDArray[np.bool_]:
    """Return which pixels of a picture have their middle under a mask: bool [rows, columns].

    ``size``: of the source's picture; this one may be a smaller copy of it.
    """
    import numpy as np

    hidden = np.zeros((rows, columns), np.bool_)
    x = (np.arange(columns) + 0.5) / columns
    for mask in masks:
        polygon = mask.within(size)
        for row in range(rows):
            points = np.stack([x, np.full(columns, (row + 0.5) / rows)], 1)
            hidden[row] |= contains(polygon, points)
    return hidden


# Records.


@dataclass(frozen=True)
class ZoneEvent:
    """An object that entered a zone, stays in it, or has left it."""

    type: ClassVar[str] = "zone"
    time_s: float  # when; of one that left unseen: when it was seen last
    zone: str  # name of the zone
    event: str  # "enter", "dwell" (every 10 s that it stays) or "leave"
    label: str  # of the object
    id: int  # its track id
    dwell_s: float  # for how long it has been in the zone
    now: int  # objects of this label in the zone after this
    entered: int  # objects of this label that have entered so far
    left: int  # objects of this label that have left so far

    def __str__(self) -> str:
        who = f"{clean(self.label)} #{self.id}"
        where = f"{clean(self.event)} {clean(self.zone)}"
        return f"{short_time(self.time_s, 2)}  {who}: {where}, {self.now} there"


@dataclass(frozen=True)
class Crossing:
    """An object that crossed a line."""

    type: ClassVar[str] = "crossing"
    time_s: float  # of the first step behind the line
    line: str  # name of the line
    direction: str  # "in": from the left of the line to its right; or "out"
    label: str  # of the object
    id: int  # its track id
    ins: int  # objects of this label that have crossed it inwards so far
    outs: int  # and outwards

    def __str__(self) -> str:
        who = f"{clean(self.label)} #{self.id}"
        return (
            f"{short_time(self.time_s, 2)}  {who}: {clean(self.direction)} over {clean(self.line)}"
        )


@dataclass(frozen=True)
class PlaceCount:
    """How many objects of one label are in a zone, or have crossed a line."""

    place: str  # name of the zone or line
    kind: Kind  # "zone" or "line"
    label: str  # of the objects
    now: int  # in the zone
    ins: int  # have entered it, or crossed the line inwards
    outs: int  # have left it, or crossed the line outwards
