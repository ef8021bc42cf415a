"""Clocks of live sources: feeds over many connections, and chunks of sound by their arrival."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.sources.live.backoff import FIRST_S, LONGEST_S, Backoff
from costream.sources.live.delays import DRIFT_S, DelayTracker
from costream.sources.live.device_clock import LATE_S, REOPENED, SILENT, TOO_SLOW, DeviceClock
from costream.sources.live.device_recording import AudioChunk
from costream.sources.live.feed_clock import AHEAD_S, STANDING, FeedClock

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


@pytest.mark.long
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


def test_segments_that_come_at_once_are_returned_completely() -> None:
    """HLS: six seconds each six seconds."""
    clock = FeedClock()
    lost = [clock.place(k * STEP, 6.0 * (k // 150)) is None for k in range(3000)]
    assert not any(lost[300:])


@pytest.mark.parametrize("length_s", [2, 4, 6, 10])
def test_two_segments_that_arrive_together_are_returned_completely(length_s: int) -> None:
    """A playlist that is read a little less often than it grows, once has two new segments."""
    clock, lost, asked_s, given = FeedClock(), 0, 0.9 * length_s, 0
    for poll in range(40):
        there = int(asked_s / length_s) + 1
        for k in range(given * length_s * 25, there * length_s * 25):
            time_s = clock.place(k * STEP, asked_s)
            lost += time_s is None and poll > 1
        given, asked_s = there, asked_s + 1.05 * length_s
    assert lost == 0


def test_a_slow_frame_rate_is_not_a_burst() -> None:
    clock = FeedClock()
    assert [clock.place(2.0 * k, 2.0 * k) for k in range(5)] == pytest.approx(
        [2.0 * k for k in range(5)], abs=0.01
    )


@dataclass
class Placed:
    """What a clock makes of data: their times, without those left out, and what it says."""

    arrived: list[float]
    times: list[float]
    lost: int
    news: list[str]

    @property
    def off(self) -> list[float]:
        """How far each time is ahead of the arrival."""
        return [time_s - at_s for time_s, at_s in zip(self.times, self.arrived, strict=True)]

    @property
    def longest_step(self) -> float:
        """The longest time from one to the next."""
        return max(b - a for a, b in pairwise(self.times))


def place(data: Iterable[tuple[float, float]], clock: FeedClock | None = None, **how) -> Placed:
    """Place data with a stamp and an arrival each; ``how``: values of keywords, in order."""
    clock = clock or FeedClock()
    arrived, times, lost, news = [], [], 0, []
    for k, (media_s, now_s) in enumerate(data):
        values = {name: each(k, media_s, now_s) for name, each in how.items()}
        time_s = clock.place(media_s, now_s, **values)
        news += clock.news()
        if time_s is None:
            lost += 1
        else:
            arrived.append(now_s)
            times.append(time_s)
    assert all(a < b for a, b in pairwise(times))
    return Placed(arrived, times, lost, news)


def jittered(rate_hz: float, seconds: float, seed: int) -> list[float]:
    """Return when the frames of a camera arrive."""
    chance = random.Random(seed)
    return [k / rate_hz + chance.expovariate(50) for k in range(round(rate_hz * seconds))]


@settings(max_examples=25, deadline=None)
@given(
    rate=st.floats(1.04, 3.0),
    slow=st.booleans(),
    fps=st.sampled_from([8.0, 15.0]),
    seed=st.integers(0, 99),
    begin_s=st.floats(-1e5, 1e5),
)
def test_stamps_at_another_rate_give_way_to_arrivals(
    rate: float, slow: bool, fps: float, seed: int, begin_s: float
) -> None:
    """A camera that says it gives 25 frames a second and gives 21."""
    rate = 1 / rate if slow else rate
    placed = place((begin_s + rate * k / fps, at) for k, at in enumerate(jittered(fps, 60, seed)))
    assert placed.lost <= 0.02 * len(placed.times)  # those that jitter brings at once
    assert placed.longest_step < 0.5  # no gap
    assert max(map(abs, placed.off)) < 3.5
    assert max(map(abs, placed.off[-100:])) < 0.5
    (message,) = placed.news
    stated = float(message.partition("advance ")[2].partition(" s ")[0])
    assert stated == pytest.approx(rate, rel=0.06)


@pytest.mark.parametrize("step", [0.0, STEP / 90])
def test_stamps_that_stand_still_give_way_to_arrivals(step: float) -> None:
    placed = place((7.0 + k * step, at) for k, at in enumerate(jittered(25, 60, 0)))
    assert placed.times[-1000:] == placed.arrived[-1000:]
    assert placed.longest_step < 0.7
    assert placed.news == [STANDING]
    again = place((7.0 + max(0, k - 200) * STEP, k * STEP) for k in range(400))
    assert again.off[-100:] == pytest.approx([0.0] * 100, abs=0.01)


def test_a_rate_that_changes_is_followed() -> None:
    """A camera that gives fewer frames at night and stamps them as before."""
    arrived = [0.0]
    for k in range(4000):
        arrived.append(arrived[-1] + 1 / (25 if k < 1000 else 12 if k < 2000 else 25))
    placed = place((k / 25, at) for k, at in enumerate(arrived))
    assert placed.lost == 0
    assert placed.longest_step < 0.2
    assert abs(placed.off[999]) < 0.01
    assert abs(placed.off[1999]) < 0.1
    assert abs(placed.off[-1]) < 0.3
    assert len(placed.news) == 1


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(length_s=st.sampled_from([2, 4, 6, 10]), seed=st.integers(0, 10_000))
def test_segments_are_not_wrong_rate(length_s: int, seed: int) -> None:
    """HLS: segments that are asked for now and then come at once."""
    chance = random.Random(seed)
    now_s, there, data = length_s * chance.random(), 0, []
    while there < 60:
        ready = int(now_s / length_s)
        for number in range(there, ready):
            data += [(number * length_s + k / 25, now_s + 0.004 * k) for k in range(25 * length_s)]
        now_s += length_s * chance.uniform(0.95, 1.05) if ready > there else length_s / 2
        there = max(there, ready)
    placed = place(data)
    assert placed.news == []
    assert placed.lost <= 25 * (3 * length_s + 1)
    assert max(b - a for a, b in pairwise(placed.times)) < 0.1


def test_bursts_of_a_camera_are_not_wrong_rate() -> None:
    placed = place((k / 25, 1.0 + k // 25 + 0.001 * (k % 25)) for k in range(3000))
    assert (placed.lost, placed.news) == (0, [])
    assert placed.longest_step < 0.042


def slow_network(k: int) -> float:
    """Return the arrival of frame k: 20 of 25 frames a second come for 12 s, then what waits."""
    if k < 250:
        return k / 25
    return k / 20 - 2.5 if k < 500 else max(22.5 + (k - 500) * 0.005, k / 25)


def test_a_slow_network_is_none_where_the_sender_tells_its_time() -> None:
    chance = random.Random(0)
    sent = {"sent_s": lambda k, media_s, now_s: 1.7e9 + media_s + 1e-5 * chance.random()}
    placed = place(((k / 25, slow_network(k)) for k in range(1500)), **sent)
    assert (placed.lost, placed.news) == (0, [])
    assert placed.times == pytest.approx([k / 25 for k in range(1500)], abs=0.1)


def test_a_slow_network_is_taken_for_a_wrong_rate_only_while_it_lasts() -> None:
    placed = place((k / 25, slow_network(k)) for k in range(1500))
    assert placed.news == []
    assert placed.lost < 75
    assert max(map(abs, placed.off)) < 2.5
    assert abs(placed.off[-1]) < 0.5


def test_the_clock_of_the_sender_shows_a_wrong_rate() -> None:
    sent = {"sent_s": lambda k, media_s, now_s: 1.7e9 + media_s + 2.0 * (k // 75)}
    placed = place(((k / 25, k / 15) for k in range(900)), **sent)
    assert (placed.lost, len(placed.news)) == (0, 1)
    assert abs(placed.off[-1]) < 0.1


def test_a_machine_that_lags_behind_is_not_a_wrong_rate() -> None:
    """It reads each frame 50 ms after the one before, without ever waiting for one."""
    read, waited, now_s, waited_s = [], [], 0.0, 0.0
    for k in range(1500):
        waited_s += max(0.0, k / 25 - now_s)
        now_s = max(k / 25, now_s) + (0.05 if 200 < k < 700 else 0.005)
        read.append(now_s)
        waited.append(waited_s)
    placed = place(
        ((k / 25, at) for k, at in enumerate(read)), waited_s=lambda k, media_s, now_s: waited[k]
    )
    assert (placed.lost, placed.news) == (0, [])
    assert placed.longest_step < 0.05


@pytest.mark.parametrize("length_s", [2, 6])
@pytest.mark.parametrize("jump_s", [-4000.0, 5000.0])
def test_segments_whose_stamps_start_again_are_joined(length_s: int, jump_s: float) -> None:
    """A discontinuity in HLS; the media clock has joined backward jumps, and says so."""
    clock, times, frames = FeedClock(), [], 25 * length_s
    for number in range(10):
        for k in range(frames):
            media_s = number * length_s + k / 25 + (number * jump_s if jump_s > 0 else 0.0)
            if k == 0 and number and jump_s < 0:
                clock.join()
            times.append(clock.place(media_s, (number + 1) * length_s + k * 0.004))
    begins = next(k for k in range(frames, 2 * frames) if times[k] is not None)
    assert None not in times[begins:]
    assert begins - frames <= 25
    steps = np.diff(np.array(times[begins:], float))
    assert steps == pytest.approx(STEP, abs=0.002)


@pytest.mark.parametrize("jump_s", [-9000.0, 9000.0])
@pytest.mark.parametrize("pause_s", [0.0, 30.0])
def test_stamps_that_jump_for_good_follow_on_or_leave_the_pause(
    jump_s: float, pause_s: float
) -> None:
    clock, times, media_s = FeedClock(), [], 0.0
    for k in range(1500):
        later = k >= 750
        if k == 750 and jump_s < 0:
            clock.join()  # the media clock goes on where it was
        media_s = k * STEP + (jump_s if later and jump_s > 0 else 0.0)
        times.append(clock.place(media_s, k * STEP + (pause_s if later else 0.0)))
    assert None not in times
    assert times == pytest.approx([k * STEP + pause_s * (k >= 750) for k in range(1500)], abs=0.05)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_time_goes_forwards_and_not_ahead(data: st.DataObject) -> None:
    clock, now_s, last_s = FeedClock(), 0.0, 0.0
    for _ in range(data.draw(st.integers(1, 4))):
        clock.restart()
        now_s += data.draw(st.floats(0, 5))
        media_s, pause_s = data.draw(st.floats(-1e5, 1e5)), 0.0
        steps = st.tuples(st.floats(0, 3), st.floats(0, 3))
        for media_step_s, wall_step_s in data.draw(st.lists(steps, max_size=30)):
            media_s, now_s = media_s + media_step_s, now_s + wall_step_s
            pause_s = max(pause_s, wall_step_s)
            time_s = clock.place(media_s, now_s)
            if time_s is not None:
                assert time_s > last_s
                assert time_s <= max(now_s + 1.5 * AHEAD_S + pause_s, last_s + 0.002)
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


def test_waits_double_to_the_longest_and_start_again() -> None:
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
    clock, out = DeviceClock(), []
    for c in chunks:
        for _, jump in clock.take(c):
            begins = None if jump is None else jump.begins_s
            out.append((None, None) if begins is None else (float(begins), jump.reason))
    return out


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 0.9 * LATE_S), min_size=1, max_size=200))
def test_jitter_is_not_a_gap(jitter: list[float]) -> None:
    assert run([chunk(k, due(k) + late) for k, late in enumerate(jitter)]) == (
        [(None, None)] * len(jitter)
    )


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 30), st.integers(2, 40))
def test_late_all_at_once_is_not_a_gap(before: int, late: int) -> None:
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
    chance, clock = np.random.default_rng(0), DeviceClock()
    slow = 1 / (1 + ppm * 1e-6)
    gaps = 0
    for k in range(2400):
        lost_s = 2.0 * (k >= 800) + 5.0 * (k >= 1600)
        late_s = chance.exponential(0.02) + 0.125 * chance.integers(2)
        placed = clock.take(chunk(k, BEGAN_S + (k + 1) * BLOCK_S * slow + lost_s + late_s))
        gaps += sum(jump is not None for _, jump in placed)
        if k * BLOCK_S < DRIFT_S:
            assert clock.delays.drift_ppm is None
    assert gaps == 2
    assert clock.delays.drift_ppm == pytest.approx(ppm, abs=15)


def test_drift_alone_is_never_a_gap() -> None:
    """An hour of a clock that is 1 in 1000 slow: 3.6 s in all."""
    clock = DeviceClock()
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
