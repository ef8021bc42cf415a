"""Time stamps to seconds: exact, monotonic, and not led astray by a single bad one."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.sources.media.media_clock import MediaClock
from costream.sources.media.sound_clock import JITTER_S, Discontinuity, SoundClock

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


def test_missing_stamps_continue_with_the_last_good_distance() -> None:
    assert times([0, 100, None, None, 400]) == [
        (0.0, False),
        (0.1, False),
        (pytest.approx(0.2), True),
        (pytest.approx(0.3), True),
        (0.4, False),
    ]


def test_a_slow_source_is_not_held_back_until_its_next_frame() -> None:
    clock, peeks = MediaClock(MS, Fraction(0), 0.04), []
    for k in range(8):
        known = clock.advance(2000 * k, lambda k=k: peeks.append(k) or 2000 * (k + 1))
        assert known == (2.0 * k, False)
    assert max(peeks) == 2  # two distances are known by then


def test_missing_from_the_start() -> None:
    assert times([None] * 3) == [(pytest.approx(0.04 * k), True) for k in range(3)]
    # The first picture of an RTSP stream has none; the second one tells.
    assert times([None, 4087, 4127])[:2] == [(pytest.approx(4.047), True), (4.087, False)]


def test_estimates_do_not_drift() -> None:
    assert times([None] * 100_001)[-1] == (0.04 * 100_000, True)


@pytest.mark.parametrize(
    ("first", "bad"), [(0, 95_443_000), (0, 5000), (0, 10**12), (0, 900), (60_000, 300)]
)
def test_one_bad_stamp_costs_one_frame_its_time(first: int, bad: int) -> None:
    stamps: list[int | None] = [first + k * 40 for k in range(10)]
    stamps[5] = bad
    found = times(stamps)
    assert [t for t, _ in found] == pytest.approx([first / 1000 + k * 0.04 for k in range(10)])
    assert [k for k, (_, estimated) in enumerate(found) if estimated] == [5]


def test_a_pause_is_a_pause() -> None:
    """Pictures of a slide show, of a camera that sends on motion, of one a minute."""
    for stamps in ([0, 40, 5000, 5040], [0, 5000, 10_000, 15_000], [0, 60_000, 120_000, 180_000]):
        assert times(list(stamps)) == [(s / 1000, False) for s in stamps]


def test_a_new_epoch_continues_where_the_old_one_ended() -> None:
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


# --- samples are counted against time stamps ---------------------------------------------------

RATE = 16000
SIZE = 400  # 25 ms


def run(
    stamps: Sequence[int | None], base: Fraction = Fraction(1, RATE)
) -> tuple[SoundClock, list[Discontinuity | None]]:
    """Take a frame for each stamp; return the clock and the jump that it reports of each."""
    clock = SoundClock(base, Fraction(0))
    clock.start(stamps[0], SIZE, RATE, stamps[1] if len(stamps) > 1 else None)
    jumps = [None]
    for k, stamp in enumerate(stamps[1:], 1):
        after = stamps[k + 1] if k + 1 < len(stamps) else None
        jumps.append(clock.advance(stamp, SIZE, RATE, lambda after=after: after))
    return clock, jumps


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(-300, 300), min_size=2, max_size=60),
    st.integers(0, 10**9),
    st.sampled_from([Fraction(1, RATE), Fraction(1, 90000), Fraction(1, 1000)]),
)
def test_jitter_never_matters(jitter: list[int], first: int, base: Fraction) -> None:
    """However stamps wobble within the tolerance, the count alone says the time."""
    exact = [Fraction(first + k * SIZE, RATE) for k in range(len(jitter))]
    stamps = [round((t + Fraction(j, RATE)) / base) for t, j in zip(exact, jitter, strict=True)]
    stamps[0] = round(exact[0] / base)
    clock, jumps = run(stamps, base)
    assert jumps == [None] * len(jitter)
    assert clock.next_time == stamps[0] * base + Fraction(len(jitter) * SIZE, RATE)


def test_stamps_that_are_missing() -> None:
    clock, jumps = run([None] * 10)
    assert jumps == [None] * 10
    assert clock.next_s == 10 * SIZE / RATE
    clock, _ = run([None, 5 * RATE, 5 * RATE + SIZE])
    assert clock.next_s == 5 + 2 * SIZE / RATE


def test_one_wrong_stamp() -> None:
    """The next one disagrees with it, so it is damaged."""
    for wrong in (10**9, 0, 3 * RATE):
        stamps = [10 * RATE + k * SIZE for k in range(6)]
        stamps[3] = wrong
        clock, jumps = run(stamps)
        assert jumps == [None, None, None, Discontinuity("impossible time stamp(s)"), None, None]
        assert clock.next_s == 10 + 6 * SIZE / RATE


def test_a_wrong_first_stamp() -> None:
    clock, jumps = run([10**9, SIZE, 2 * SIZE])
    assert jumps == [None] * 3
    assert clock.next_s == 3 * SIZE / RATE


def test_missing_samples() -> None:
    def after(missing: int) -> list[int]:
        return [k * SIZE + (missing if k > 2 else 0) for k in range(6)]

    clock, jumps = run(after(3200))
    assert jumps[3] == Discontinuity("gap(s) filled with silence", silence=3200)
    assert clock.next_s == (6 * SIZE + 3200) / RATE
    clock, jumps = run(after(RATE))
    assert jumps[3] == Discontinuity(begins_s=Fraction(3 * SIZE + RATE, RATE))
    assert clock.next_s == (6 * SIZE + RATE) / RATE
    assert jumps[4:] == [None, None]


def test_backwards_is_a_new_epoch() -> None:
    stamps = [100 * RATE, 100 * RATE + SIZE, 0, SIZE, 2 * SIZE]
    clock, jumps = run(stamps)
    assert jumps == [None, None, Discontinuity("backward clock jump(s)"), None, None]
    assert clock.next_s == 100 + 5 * SIZE / RATE
    assert clock.seconds(3 * SIZE) == clock.next_s


def test_drift() -> None:
    """Slow deviation moves the clock by what it is; no jump is anything else."""
    for faster in (1.01, 0.99):
        stamps = [round(k * SIZE * faster) for k in range(2000)]
        clock, jumps = run(stamps)
        found = [jump for jump in jumps if jump is not None]
        assert all(jump.damage is None and not jump.silence for jump in found)
        assert all(abs(jump.shift_s) < 2 * JITTER_S for jump in found)
        assert sum(jump.shift_s for jump in found) != 0
        assert abs(clock.next_s - 2000 * SIZE / RATE * faster) < 0.06


def test_a_change_of_rate() -> None:
    """Seconds go on; so do the stamps' meaning and the checks."""
    clock = SoundClock(Fraction(1, 1000), Fraction(0))
    clock.start(0, 8000, 8000, 1000)
    assert clock.advance(1000, 16000, 16000, lambda: 2000) is None
    assert clock.advance(2000, 16000, 16000, lambda: 3000) is None
    assert clock.next_s == 3.0
    jump = clock.advance(9000, 16000, 16000, lambda: 10000)
    assert jump == Discontinuity(begins_s=Fraction(9))


def test_an_origin() -> None:
    clock = SoundClock(Fraction(1, 90000), Fraction(7, 5))
    assert clock.start(126000, 1024, 48000, None) == 0
    assert clock.ticks(1.0) == 216000
    assert clock.seconds(216000) == 1.0
