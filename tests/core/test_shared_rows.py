"""Labels of the same sound share a row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from costream.core.records import Segment
from costream.core.shared_rows import MOST, SEPARATOR, share_rows


def sound(start_s: float, end_s: float, label: str, score: float = 0.5) -> Segment:
    return Segment(start_s, end_s, label, score, model="mn04")


def test_labels_at_about_the_same_time_are_one_row() -> None:
    siren, car = sound(8, 13, "Siren", 0.6), sound(8, 14, "Police car (siren)", 0.4)
    (row,) = share_rows([siren, car])
    assert (row.start_s, row.end_s, row.score) == (8, 14, 0.6)
    assert row.label == "Siren | Police car (siren)"


def test_what_only_touches_or_is_counted_stays() -> None:
    apart = [sound(0, 5, "Dog"), sound(4, 9, "Speech")]
    assert share_rows(apart) == apart
    counted = [Segment(0, 5, label, 0.5, count=1, model="nanodet") for label in ("car", "person")]
    assert share_rows(counted) == counted
    people = [Segment(0, 5, label, 0.5, person=k) for k, label in enumerate(("sit", "walk"), 1)]
    assert share_rows(people) == people
    other = [sound(0, 5, "Dog"), Segment(0, 5, "bark", 0.5, model="cosounds")]
    assert share_rows(other) == other


PARTS = st.tuples(
    st.integers(0, 20), st.integers(1, 9), st.sampled_from("abcdefg"), st.floats(0, 1)
)


@given(st.lists(PARTS))
def test_no_time_is_lost_and_no_row_is_new(parts: list[tuple[int, int, str, float]]) -> None:
    segments = [sound(start, start + length, label, score) for start, length, label, score in parts]
    rows = share_rows(segments)
    assert len(rows) <= len(segments)
    for segment in segments:
        assert any(row.start_s <= segment.start_s <= segment.end_s <= row.end_s for row in rows)
    for row in rows:
        first, *others = row.label.split(SEPARATOR)
        assert len(others) < MOST
        assert row.score in {segment.score for segment in segments if segment.label == first}
