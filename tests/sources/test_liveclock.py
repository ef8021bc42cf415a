"""Arrival times: what is late, what is missing, and how fast a clock runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.sources.live.clock import (
    KNOWN_S,
    LATE_S,
    REOPENED,
    SILENT,
    TOO_SLOW,
    DelayTracker,
    LiveClock,
)
from costream.sources.live.recorder import AudioChunk

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
