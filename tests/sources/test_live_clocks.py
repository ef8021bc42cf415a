"""Clocks of live sources: feeds over many connections, and chunks of sound by their arrival."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.sources.live.clock import (
    AHEAD_S,
    KNOWN_S,
    LATE_S,
    REOPENED,
    SILENT,
    TOO_SLOW,
    DelayTracker,
    FeedClock,
    LiveClock,
)
from costream.sources.live.connection import FIRST_S, LONGEST_S, Backoff
from costream.sources.live.recorder import AudioChunk

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


# --- chunks of sound ---------------------------------------------------------------------------

RATE, FRAMES = 16000, 4000
BLOCK_S = FRAMES / RATE
BEGAN_S = 1000.0


def chunk(k: int, arrived_s: float, recording: int = 0, rate_hz: int = RATE) -> AudioChunk:
    """Return chunk number k of a recording."""
    return AudioChunk(recording, rate_hz, 1, k * FRAMES, FRAMES, b"", arrived_s)


def due(k: int) -> float:
    """Return when chunk k of an even stream comes."""
    return BEGAN_S + (k + 1) * BLOCK_S


def run(chunks: list[AudioChunk]) -> list[tuple[float | None, str | None]]:
    """Return for each chunk that was placed where it begins anew, and why."""
    clock, out = LiveClock(), []
    for c in chunks:
        for _, jump in clock.take(c):
            begins = None if jump is None else jump.begins_s
            out.append((None, None) if begins is None else (float(begins), jump.reason))
    return out


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 0.9 * LATE_S), min_size=1, max_size=200))
def test_jitter_is_no_gap(jitter: list[float]) -> None:
    assert run([chunk(k, due(k) + late) for k, late in enumerate(jitter)]) == (
        [(None, None)] * len(jitter)
    )


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 30), st.integers(2, 40))
def test_late_all_at_once_is_no_gap(before: int, late: int) -> None:
    """A thread that did not run for seconds, and then gives all that had waited."""
    came = [due(k) for k in range(before)]
    came += [due(before + late - 1) + 0.001 * k for k in range(late)]
    came += [due(k) for k in range(before + late, before + late + 4)]
    placed = run([chunk(k, at) for k, at in enumerate(came)])
    assert placed == [(None, None)] * len(came)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 30), st.floats(LATE_S + 0.01, 3600.0))
def test_missing_sound_is_a_gap_of_its_length(before: int, lost_s: float) -> None:
    came = [due(k) + (lost_s if k >= before else 0.0) for k in range(before + 4)]
    placed = run([chunk(k, at) for k, at in enumerate(came)])
    begins_s, reason = placed[before]
    assert begins_s == pytest.approx(before * BLOCK_S + lost_s, abs=1.5 / RATE)
    assert reason == SILENT
    assert [p for k, p in enumerate(placed) if k != before] == [(None, None)] * (before + 3)


def test_missing_sound_with_a_burst_after_it() -> None:
    """Three seconds are lost, then one that waited somewhere comes at once."""
    came = [due(k) for k in range(8)] + [due(11) + 3.0] * 4 + [due(k) + 3.0 for k in range(12, 15)]
    placed = run([chunk(k, at) for k, at in enumerate(came)])
    assert placed[8] == (pytest.approx(8 * BLOCK_S + 3.0, abs=1e-3), SILENT)
    assert len(placed) == len(came)
    assert [p for k, p in enumerate(placed) if k != 8] == [(None, None)] * (len(came) - 1)


def test_opened_again_at_another_rate() -> None:
    first = [chunk(k, due(k)) for k in range(4)]
    again = [chunk(k, due(3) + 5.0 + (k + 1) * FRAMES / 48000, 1, 48000) for k in range(3)]
    placed = run(first + again)
    assert placed[4] == (pytest.approx(4 * BLOCK_S + 5.0, abs=1e-3), REOPENED)
    assert len(placed) == 7


def test_dropped_chunks_are_counted_by_their_number() -> None:
    placed = run([chunk(k, due(k)) for k in (0, 1, 2, 10, 11)])
    assert placed == [(None, None)] * 3 + [(10 * BLOCK_S, TOO_SLOW), (None, None)]


@pytest.mark.parametrize("ppm", [-300.0, 0.0, 40.0, 300.0])
def test_drift(ppm: float) -> None:
    """Ten minutes, with two breaks, of chunks that are late by chance."""
    chance, clock = np.random.default_rng(0), LiveClock()
    slow = 1 / (1 + ppm * 1e-6)
    gaps = 0
    for k in range(2400):
        lost_s = 2.0 * (k >= 800) + 5.0 * (k >= 1600)
        late_s = chance.exponential(0.02) + 0.125 * chance.integers(2)
        placed = clock.take(chunk(k, BEGAN_S + (k + 1) * BLOCK_S * slow + lost_s + late_s))
        gaps += sum(jump is not None for _, jump in placed)
        if k * BLOCK_S < KNOWN_S:
            assert clock.delays.drift_ppm is None
    assert gaps == 2
    assert clock.delays.drift_ppm == pytest.approx(ppm, abs=15)


def test_drift_alone_is_never_a_gap() -> None:
    """An hour of a clock that is 1 in 1000 slow: 3.6 s in all."""
    clock = LiveClock()
    for k in range(3600 * 4):
        ((_, jump),) = clock.take(chunk(k, BEGAN_S + (k + 1) * BLOCK_S * 1.001))
        assert jump is None
    assert clock.delays.drift_ppm == pytest.approx(-999, abs=1)


def test_usual_delay_follows_slowly() -> None:
    delays = DelayTracker()
    for k in range(400):
        delays.add(k * BLOCK_S, 7.0 + 0.001 * k + (k % 3))
        assert delays.usual_s <= 7.0 + 0.001 * k + (k % 3)
    assert 7.3 < delays.usual_s < 7.4
