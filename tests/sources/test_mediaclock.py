"""Time stamps to seconds: exact, monotonic, and not led astray by a single bad one."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.sources.media.video_decoder import MediaClock

MS = Fraction(1, 1000)


def times(
    stamps: list[int | None], *, time_base: Fraction = MS, origin: Fraction = Fraction(0)
) -> list[tuple[float, bool]]:
    """Return what a clock of nominally 25 frames a second makes of these stamps."""
    clock = MediaClock(time_base, origin, 0.04)
    after = [*stamps[1:], None]
    return [clock.advance(stamp, lambda k=k: after[k]) for k, stamp in enumerate(stamps)]


def test_good_stamps_are_taken_as_they_are() -> None:
    assert times([0, 40, 80, 120]) == [(0.0, False), (0.04, False), (0.08, False), (0.12, False)]


def test_exact_after_days() -> None:
    """30000/1001 frames a second: frame k is at k x 1001 / 30000 s, correctly rounded."""
    clock = MediaClock(Fraction(1, 30000), Fraction(0), 1001 / 30000)
    for k in [0, 1, 12_946_053, 90_622_377]:
        assert clock.seconds(k * 1001) == k * 1001 / 30000


def test_origin() -> None:
    assert times([7200, 10800], time_base=Fraction(1, 90000), origin=Fraction(7200, 90000)) == [
        (0.0, False),
        (0.04, False),
    ]


def test_missing_stamps_go_on_with_the_last_good_distance() -> None:
    assert times([0, 100, None, None, 400]) == [
        (0.0, False),
        (0.1, False),
        (pytest.approx(0.2), True),
        (pytest.approx(0.3), True),
        (0.4, False),
    ]


def test_missing_from_the_start() -> None:
    assert times([None] * 3) == [(pytest.approx(0.04 * k), True) for k in range(3)]
    # The first picture of an RTSP stream has none; the second one tells.
    assert times([None, 4087, 4127])[:2] == [(pytest.approx(4.047), True), (4.087, False)]


def test_estimates_do_not_drift() -> None:
    assert times([None] * 100_001)[-1] == (0.04 * 100_000, True)


def test_one_bad_stamp_costs_one_frame_its_time() -> None:
    good = [k * 40 for k in range(10)]
    for bad in (95_443_000, 5000, 10**12, 900):
        stamps: list[int | None] = [*good[:5], bad, *good[6:]]
        out = times(stamps)
        assert [t for t, _ in out] == pytest.approx([k * 0.04 for k in range(10)])
        assert [k for k, (_, estimated) in enumerate(out) if estimated] == [5]


def test_one_bad_stamp_backwards() -> None:
    stamps: list[int | None] = [60_000 + k * 40 for k in range(10)]
    stamps[5] = 300
    out = times(stamps)
    assert [t for t, _ in out] == pytest.approx([60 + k * 0.04 for k in range(10)])


def test_a_pause_is_a_pause() -> None:
    """Pictures of a slide show, of a camera that sends on motion, of one a minute."""
    for stamps in ([0, 40, 5000, 5040], [0, 5000, 10_000, 15_000], [0, 60_000, 120_000, 180_000]):
        assert times(list(stamps)) == [(s / 1000, False) for s in stamps]


def test_a_new_epoch_goes_on_where_the_old_one_ended() -> None:
    stamps: list[int | None] = [k * 40 for k in range(100)] + [k * 40 for k in range(100)]
    out = times(stamps)
    assert [t for t, _ in out] == pytest.approx([k * 0.04 for k in range(200)])
    assert not any(estimated for _, estimated in out)


def test_pictures_out_of_order_are_held() -> None:
    assert [t for t, _ in times([0, 40, 120, 80, 160])] == [0.0, 0.04, 0.12, 0.12, 0.16]


def test_seek_stamp_is_at_or_before_the_time() -> None:
    clock = MediaClock(Fraction(1, 90000), Fraction(7200, 90000), 0.04)
    assert clock.ticks(0.0) == 7200
    assert clock.ticks(1.0) == 97200
    assert clock.seconds(clock.ticks(0.123456789)) <= 0.123456789
    assert clock.ticks(-1.0) == -82800


@given(st.lists(st.none() | st.integers(-(2**34), 2**34), max_size=60))
def test_never_backwards(stamps: list[int | None]) -> None:
    out = [t for t, _ in times(stamps, time_base=Fraction(1, 90000))]
    assert out == sorted(out)


@given(st.lists(st.integers(0, 999), min_size=1, max_size=60))
def test_rising_stamps_are_never_touched(steps: list[int]) -> None:
    """Whatever the rate does, as long as nothing is missing or runs backwards."""
    stamps = [sum(steps[: k + 1]) for k in range(len(steps))]
    assert [t for t, _ in times(list(stamps))] == [s / 1000 for s in stamps]
