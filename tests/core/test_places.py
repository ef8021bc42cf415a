"""Places: how they are written, and their geometry for all polygons, lines and pictures."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.errors import UsageError
from costream.core.places import (
    Crossing,
    Place,
    ZoneEvent,
    check_places,
    contains,
    covered,
    crossings,
    distance,
    parse_place,
    places_of,
)
from costream.core.records import to_json
from costream.core.schema import from_json

UNIT = 32  # coarse, so that points lie on edges, corners coincide and polygons touch themselves
POINT = st.tuples(st.integers(0, UNIT), st.integers(0, UNIT))
POLYGON = st.lists(POINT, min_size=3, max_size=8)


def parts(points: list[tuple[int, int]]) -> np.ndarray:
    return np.array(points, np.float64) / UNIT


def on_segment(p: tuple[int, int], a: tuple[int, int], b: tuple[int, int]) -> bool:
    across = (b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0])
    along = (p[0] - a[0]) * (p[0] - b[0]) + (p[1] - a[1]) * (p[1] - b[1])
    return across == 0 and along <= 0


def is_inside(polygon: list[tuple[int, int]], p: tuple[int, int]) -> bool:
    """The definition, in exact numbers: on an edge, or an odd number of edges to the right."""
    edges = list(zip(polygon, [*polygon[1:], polygon[0]], strict=True))
    if any(on_segment(p, a, b) for a, b in edges):
        return True
    odd = False
    for (x1, y1), (x2, y2) in edges:
        if (y1 > p[1]) != (y2 > p[1]):
            odd ^= p[0] < x1 + Fraction(p[1] - y1, y2 - y1) * (x2 - x1)
    return odd


@given(POLYGON, st.lists(POINT, min_size=1, max_size=8))
def test_inside_is_as_defined(polygon: list, points: list) -> None:
    """Also for concave polygons, and such that cross or touch themselves, or have no area."""
    expected = [is_inside(polygon, p) for p in points]
    assert contains(parts(polygon), parts(points)).tolist() == expected


@given(POLYGON, st.data())
def test_points_on_edges_are_inside_at_any_resolution(polygon: list, data: st.DataObject) -> None:
    size = data.draw(st.tuples(st.integers(33, 4000), st.integers(33, 3000)))
    k, share = data.draw(st.integers(0, len(polygon) - 1)), data.draw(st.floats(0, 1))
    pixels = [(x * size[0] / UNIT + 2, y * size[1] / UNIT + 2) for x, y in polygon]
    (x1, y1), (x2, y2) = pixels[k], pixels[(k + 1) % len(pixels)]
    edge = np.array([(x1 + share * (x2 - x1), y1 + share * (y2 - y1))]) / size
    assert contains(Place("z", "zone", tuple(pixels), pixels=True).within(size), edge).all()


@given(POLYGON, POINT, st.integers(0, 7), st.booleans())
def test_where_it_begins_and_which_way_it_turns_does_not_matter(
    polygon: list, point: tuple[int, int], first: int, back: bool
) -> None:
    other = polygon[first % len(polygon) :] + polygon[: first % len(polygon)]
    other = other[::-1] if back else other
    one = contains(parts(polygon), parts([point]))
    assert one.tolist() == contains(parts(other), parts([point])).tolist()
    turned = [(UNIT - y, x) for x, y in polygon]  # a camera that was mounted on its side
    at = parts([(UNIT - point[1], point[0])])
    assert one.tolist() == contains(parts(turned), at).tolist()


def winding(polygon: list[tuple[int, int]], p: tuple[float, float]) -> int:
    total = 0.0
    for (x1, y1), (x2, y2) in zip(polygon, [*polygon[1:], polygon[0]], strict=True):
        a, b = (x1 - p[0], y1 - p[1]), (x2 - p[0], y2 - p[1])
        total += math.atan2(a[0] * b[1] - a[1] * b[0], a[0] * b[0] + a[1] * b[1])
    return round(total / (2 * math.pi))


@given(POLYGON, st.lists(POINT, min_size=2, max_size=8))
def test_a_way_into_a_closed_line_crosses_it_once_more_than_out(polygon: list, way: list) -> None:
    """Whatever the way touches between its ends: corners, edges, or points on the line."""
    ends = [(x + 0.31, y + 0.47) for x, y in (way[0], way[-1])]  # on no edge
    edges = zip(polygon, [*polygon[1:], polygon[0]], strict=True)
    if any(distance(parts([a, b]), (x / UNIT, y / UNIT)) < 1e-9 for a, b in edges for x, y in ends):
        return
    steps = parts([ends[0], *way[1:-1], ends[1]])
    line = parts([*polygon, polygon[0]])
    net = sum(crossings(line, a, b) for a, b in pairwise(steps))
    # Clockwise on the screen, so that the right of the line is inside, counts 1.
    assert net == winding(polygon, ends[1]) - winding(polygon, ends[0])


def test_in_is_from_left_to_right_as_seen_along_the_line() -> None:
    up = np.array([(0.5, 0.9), (0.5, 0.1)])
    assert crossings(up, (0.4, 0.5), (0.6, 0.5)) == 1
    assert crossings(up, (0.6, 0.5), (0.4, 0.5)) == -1
    assert crossings(up, (0.4, 0.95), (0.6, 0.95)) == 0  # past its end
    assert crossings(up, (0.4, 0.5), (0.49, 0.5)) == 0


def test_pixels_under_masks() -> None:
    left = parse_place("tv=0,0 0.5,0 0.5,1 0,1", "mask", "--mask")
    corner = parse_place("c=60,30 80,30 80,40 60,40", "mask", "--mask")
    hidden = covered([left, corner], 4, 8, (80, 40))
    expected = np.zeros((4, 8), bool)
    expected[:, :4] = expected[3:, 6:] = True
    assert (hidden == expected).all()


@pytest.mark.parametrize(
    ("text", "points", "pixels"),
    [
        ("a=0,0 1,0 1,1", ((0, 0), (1, 0), (1, 1)), False),
        ("front door=0.1,0.2; 0.4,0.2;.4,.9", ((0.1, 0.2), (0.4, 0.2), (0.4, 0.9)), False),
        ("Tür=10,20 300,20 300,400", ((10, 20), (300, 20), (300, 400)), True),
    ],
)
def test_how_places_are_written(text: str, points: tuple, pixels: bool) -> None:
    place = parse_place(text, "zone", "--zone")
    assert (place.points, place.pixels) == (points, pixels)
    assert parse_place(str(place), "zone", "--zone") == place
    assert places_of({"places": (place,)}) == (place,)
    assert places_of({"places": [{**vars(place), "points": list(points)}, {"kind": 3}, 7]}) == (
        place,
    )


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("0.1,0.2 0.4,0.2 0.4,0.9", "zone", "does not begin with a name"),
        ("=0,0 1,0 1,1", "zone", "does not begin with a name"),
        ("a'b=0,0 1,0 1,1", "zone", "does not begin with a name"),
        ("door=0,0 1", "zone", "'1' is not a point"),
        ("door=0,0 1,x 1,1", "zone", "'1,x' is not a point"),
        ("door=0,0 1,-1 1,1", "zone", "not a point in the picture"),
        ("door=0,0 1,nan 1,1", "zone", "not a point in the picture"),
        ("door=0,0 1,1", "zone", "at least 3 points, not 2"),
        ("gate=0,0", "line", "at least 2 points, not 1"),
    ],
)
def test_mistakes_are_named(text: str, kind: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^--{kind}: .*{message}"):
        parse_place(text, kind, f"--{kind}")  # type: ignore[arg-type]


def test_a_name_is_given_once() -> None:
    place = parse_place("a=0,0 1,0 1,1", "zone", "--zone")
    with pytest.raises(UsageError, match="'a' is used twice"):
        check_places([place, Place("a", "line", ((0, 0), (1, 1)))], "--line")


@pytest.mark.parametrize(
    "event",
    [
        ZoneEvent(1.5, "door", "leave", "person", 3, 12.25, 0, 4, 4),
        Crossing(2.0, "gate", "in", "car", 7, 2, 1),
    ],
)
def test_records_come_back(event: ZoneEvent | Crossing) -> None:
    fields = to_json(event)
    assert from_json(fields.pop("type"), fields) == event
    with pytest.raises(ValueError, match="without a valid"):
        from_json(event.type, {"time_s": 1.0})
