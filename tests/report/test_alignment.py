"""Alignment of two runs, against a comparison of single moments."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from costream.report.alignment import Stretch, align_runs, held

TICKS = 60


@st.composite
def timelines(draw):
    """Stretches that do not overlap, on a grid so that floats are exact."""
    edges = draw(st.lists(st.integers(0, TICKS), max_size=12, unique=True))
    edges = sorted(edges)
    return [
        Stretch(a / 4, b / 4, draw(st.sampled_from("xyz")))
        for a, b in zip(edges[0::2], edges[1::2], strict=False)
    ]


def says(timeline, time_s):
    return next((s.value for s in timeline if s.start_s <= time_s < s.end_s), None)


@given(a=timelines(), b=timelines())
def test_every_moment_has_what_both_sides_say_there(a, b):
    pieces = list(align_runs(a, b))
    for piece in pieces:
        assert piece.end_s > piece.start_s
    for tick in range(TICKS):
        time_s = tick / 4 + 0.125
        found = [p for p in pieces if p.start_s <= time_s < p.end_s]
        expected = (says(a, time_s), says(b, time_s))
        if expected == (None, None):
            assert found == []
        else:
            (piece,) = found
            values = [side and side.value for side in (piece.a, piece.b)]
            assert tuple(values) == expected


def test_values_hold_until_the_next_but_not_for_ever():
    points = [(0.0, "a"), (0.5, "b"), (9.0, "c")]
    assert list(held(points, lambda: 0.25, 1.0)) == [
        Stretch(0.0, 0.5, "a"),
        Stretch(0.5, 1.5, "b"),
        Stretch(9.0, 9.25, "c"),
    ]
    assert list(held([], lambda: 0.25, 1.0)) == []
