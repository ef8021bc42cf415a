"""Segments of several heads, in order of time."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from costream.records import Segment
from costream.sinks.subtitles import Timelines

LENGTHS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=20)


def timeline(head: str, lengths: list[tuple[int, int]]) -> list[Segment]:
    """Segments of these pauses and lengths, in tenths of seconds."""
    out, end = [], 0
    for pause, length in lengths:
        start, end = end + pause, end + pause + length
        out.append(Segment(start / 10, end / 10, f"{head}\r\n\u2028{start}", 0.5, head))
    return out


@given(LENGTHS, LENGTHS)
def test_they_come_back_in_order(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    kept = Timelines(["a"])
    heads = {"a": timeline("a", a), "b": timeline("b", b)}
    for segment in sorted(heads["a"] + heads["b"], key=lambda s: s.end_s):
        kept.add(segment)
    merged = list(kept.merged())
    assert [s.start_s for s in merged] == sorted(s.start_s for s in merged)
    for head, segments in heads.items():
        assert [s for s in merged if s.model == head] == segments
        assert kept.count(head) == len(segments)
        assert head not in kept.heads or list(kept.of(head)) == segments
    assert kept.heads == (("a", "b") if b else ("a",))
    kept.close()


def test_scores_that_are_not_numbers_stay_so() -> None:
    kept = Timelines()
    kept.add(Segment(0.0, 1.0, "a", math.nan))
    (segment,) = kept.merged()
    assert math.isnan(segment.score)
    kept.close()
