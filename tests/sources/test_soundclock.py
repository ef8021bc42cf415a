"""Counting samples against time stamps, without any file."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from costream.sources.media.audio_decoder import JITTER_S, Discontinuity, SoundClock

RATE = 16000
SIZE = 400  # 25 ms


def run(
    stamps: Sequence[int | None], base: Fraction = Fraction(1, RATE)
) -> tuple[SoundClock, list[Discontinuity | None]]:
    """Take a frame for each stamp; give the clock and what it said of each."""
    clock = SoundClock(base, Fraction(0))
    clock.start(stamps[0], SIZE, RATE, stamps[1] if len(stamps) > 1 else None)
    said = [None]
    for k, stamp in enumerate(stamps[1:], 1):
        after = stamps[k + 1] if k + 1 < len(stamps) else None
        said.append(clock.advance(stamp, SIZE, RATE, lambda after=after: after))
    return clock, said


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
    clock, said = run(stamps, base)
    assert said == [None] * len(jitter)
    assert clock.next_time == stamps[0] * base + Fraction(len(jitter) * SIZE, RATE)


def test_no_stamps_at_all() -> None:
    clock, said = run([None] * 10)
    assert said == [None] * 10
    assert clock.next_s == 10 * SIZE / RATE


def test_no_stamp_on_the_first() -> None:
    clock, _ = run([None, 5 * RATE, 5 * RATE + SIZE])
    assert clock.next_s == 5 + 2 * SIZE / RATE


def test_one_wrong_stamp() -> None:
    """The next one disagrees with it, so it is damaged."""
    for wrong in (10**9, 0, 3 * RATE):
        stamps = [10 * RATE + k * SIZE for k in range(6)]
        stamps[3] = wrong
        clock, said = run(stamps)
        assert said == [None, None, None, Discontinuity("impossible time stamp(s)"), None, None]
        assert clock.next_s == 10 + 6 * SIZE / RATE


def test_a_wrong_first_stamp() -> None:
    clock, said = run([10**9, SIZE, 2 * SIZE])
    assert said == [None] * 3
    assert clock.next_s == 3 * SIZE / RATE


def test_missing_samples() -> None:
    def after(missing: int) -> list[int]:
        return [k * SIZE + (missing if k > 2 else 0) for k in range(6)]

    clock, said = run(after(3200))
    assert said[3] == Discontinuity("gap(s) filled with silence", silence=3200)
    assert clock.next_s == (6 * SIZE + 3200) / RATE
    clock, said = run(after(RATE))
    assert said[3] == Discontinuity(begins_s=Fraction(3 * SIZE + RATE, RATE))
    assert clock.next_s == (6 * SIZE + RATE) / RATE
    assert said[4:] == [None, None]


def test_backwards_is_a_new_epoch() -> None:
    stamps = [100 * RATE, 100 * RATE + SIZE, 0, SIZE, 2 * SIZE]
    clock, said = run(stamps)
    assert said == [None, None, Discontinuity("backward clock jump(s)"), None, None]
    assert clock.next_s == 100 + 5 * SIZE / RATE
    assert clock.seconds(3 * SIZE) == clock.next_s


def test_drift() -> None:
    """Slow deviation moves the clock by what it is; no jump is anything else."""
    for faster in (1.01, 0.99):
        stamps = [round(k * SIZE * faster) for k in range(2000)]
        clock, said = run(stamps)
        jumps = [jump for jump in said if jump is not None]
        assert all(jump.damage is None and not jump.silence for jump in jumps)
        assert all(abs(jump.shift_s) < 2 * JITTER_S for jump in jumps)
        assert sum(jump.shift_s for jump in jumps) != 0
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
