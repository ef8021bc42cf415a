"""The clock of a feed: media time of many connections on the wall clock."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.sources.live.clock import AHEAD_S, FeedClock
from costream.sources.live.connection import FIRST_S, LONGEST_S, Backoff

STEP = 0.04


def test_even_frames_keep_their_distance() -> None:
    clock = FeedClock()
    times = [clock.place(1000 + k * STEP, 7 + k * STEP + 0.003) for k in range(500)]
    assert times == pytest.approx([7.003 + k * STEP for k in range(500)], abs=1e-6)
    assert clock.ahead_s == pytest.approx(0, abs=1e-9)


def test_jitter_of_the_network_is_not_in_the_times() -> None:
    clock, chance = FeedClock(), random.Random(0)
    late = [chance.expovariate(20) for _ in range(3000)]
    times = [clock.place(k * STEP, k * STEP + late[k]) for k in range(3000)]
    assert None not in times
    distances = [b - a for a, b in pairwise(times)]
    assert min(distances) >= STEP * 0.995 - 1e-9
    assert max(distances) <= STEP * 1.005 + 1e-9
    # What has the least delay is now.
    assert times[-1] == pytest.approx(2999 * STEP, abs=0.05)


@pytest.mark.parametrize("ppm", [100, -100, 1000, -1000])
def test_a_clock_that_drifts_does_not_run_away(ppm: int) -> None:
    clock, step = FeedClock(), 1.0
    for k in range(15_000):
        now_s = k * step
        time_s = clock.place(now_s * (1 + ppm * 1e-6), now_s)
        assert time_s == pytest.approx(now_s, abs=0.05)
    assert clock.drift_ppm == pytest.approx(ppm, rel=0.05)


def test_a_burst_is_cut_off_and_then_time_is_now() -> None:
    clock, times = FeedClock(), []
    for k in range(500):  # ten seconds come at once, and then the others as they happen
        now_s = 5 + max(0.0, (k - 250) * STEP)
        times.append((clock.place(k * STEP, now_s), now_s))
    given = [(time_s, now_s) for time_s, now_s in times if time_s is not None]
    assert all(time_s <= now_s + AHEAD_S for time_s, now_s in given)
    assert sum(time_s is None for time_s, _ in times) == pytest.approx(250, abs=2)
    assert [time_s for time_s, _ in given[-100:]] == pytest.approx(
        [now_s for _, now_s in given[-100:]], abs=0.01
    )


def test_segments_that_come_at_once_are_given_whole() -> None:
    """HLS: six seconds each six seconds."""
    clock = FeedClock()
    lost = [clock.place(k * STEP, 6.0 * (k // 150)) is None for k in range(3000)]
    assert not any(lost[300:])


def test_a_slow_frame_rate_is_no_burst() -> None:
    clock = FeedClock()
    assert [clock.place(2.0 * k, 2.0 * k) for k in range(5)] == pytest.approx(
        [2.0 * k for k in range(5)], abs=0.01
    )


def test_stamps_that_run_slow_are_set_right() -> None:
    """A camera that says it gives 25 frames a second and gives 20."""
    clock, worst_s = FeedClock(), 0.0
    for k in range(20_000):
        now_s = k / 20
        time_s = clock.place(k / 25, now_s)
        assert time_s is not None
        worst_s = max(worst_s, now_s - time_s)
    assert 60 < worst_s < 75


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_time_goes_forwards_and_not_ahead(data: st.DataObject) -> None:
    clock, now_s, last_s = FeedClock(), 0.0, 0.0
    for _ in range(data.draw(st.integers(1, 4))):
        clock.restart()
        now_s += data.draw(st.floats(0, 5))
        media_s = data.draw(st.floats(-1e5, 1e5))
        steps = st.tuples(st.floats(0, 3), st.floats(0, 3))
        for media_step_s, wall_step_s in data.draw(st.lists(steps, max_size=30)):
            media_s, now_s = media_s + media_step_s, now_s + wall_step_s
            time_s = clock.place(media_s, now_s)
            if time_s is not None:
                assert time_s > last_s
                assert time_s <= max(now_s + AHEAD_S, last_s + 0.002)
                last_s = time_s
            assert clock.last_s == last_s
            assert clock.ahead_s >= 0


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_sound_never_overlaps(data: st.DataObject) -> None:
    clock, now_s, end_s, length_s = FeedClock(), 0.0, 0.0, 0.02
    for _ in range(data.draw(st.integers(1, 4))):
        clock.restart()
        media_s = data.draw(st.floats(-1e5, 1e5))
        for wall_step_s in data.draw(st.lists(st.floats(0, 1), max_size=30)):
            media_s, now_s = media_s + length_s, now_s + wall_step_s
            time_s = clock.place(media_s, now_s, length_s)
            if time_s is not None:
                assert time_s - length_s >= end_s - 0.005 * length_s - 1e-9
                end_s = time_s


def test_waits_double_to_the_longest_and_begin_anew() -> None:
    backoff = Backoff()
    waits = [backoff.next_s() for _ in range(10)]
    for k, wait_s in enumerate(waits):
        whole_s = min(FIRST_S * 2**k, LONGEST_S)
        assert whole_s / 2 <= wait_s <= whole_s
    backoff.reset()
    assert backoff.next_s() <= FIRST_S
    assert len({Backoff().next_s() for _ in range(5)}) > 1
