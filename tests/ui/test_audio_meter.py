"""Audio meter of the live view: levels and spectrogram."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from costream.draw.audio_meter import SILENCE_DB, AudioMeter, Samples, decibels
from costream.ui.run.glyphs import level_line, spectrum_lines

BANDS, FRAMES = 64, 16
STEP_S = 0.25


def tone(amplitude: float) -> Samples:
    return (amplitude * np.sin(np.arange(4000) * 0.3)).astype(np.float32)


def spectrum(band: int, level: float = 0.0, floor: float = -12.0) -> Samples:
    """A tone in one band, above a floor; ln of power."""
    out = np.full((FRAMES, BANDS), floor, np.float32)
    out[:, band] = level
    return out


def heard(*spectra: Samples) -> AudioMeter:
    meter = AudioMeter(STEP_S)
    for i, each in enumerate(spectra):
        meter.add(i * STEP_S, tone(0.1), each)
    return meter


def test_levels_are_those_of_the_newest_step() -> None:
    meter = AudioMeter(STEP_S)
    assert (meter.rms_db, meter.peak_db, meter.held_db) == 3 * (SILENCE_DB,)
    assert [decibels(amplitude) for amplitude in (0.0, -1.0, math.nan)] == 3 * [SILENCE_DB]
    meter.add(0.0, tone(1.0), None)
    assert meter.rms_db == pytest.approx(-3.01, abs=0.05)
    assert meter.peak_db == pytest.approx(0.0, abs=0.01)
    meter.add(0.25, tone(0.1), None)
    assert meter.rms_db == pytest.approx(-23.01, abs=0.05)
    assert meter.peak_db == pytest.approx(-20.0, abs=0.01)


def test_the_highest_peak_is_held_for_a_while() -> None:
    meter = AudioMeter(STEP_S)
    meter.add(10.0, tone(1.0), None)
    held = []
    for k in range(1, 9):
        meter.add(10 + k * STEP_S, tone(0.1), None)
        held.append(round(meter.held_db))
    assert held == [0, 0, 0, 0, 0, 0, -20, -20]
    meter.add(3.0, tone(0.01), None)  # the clock of a live source may begin anew
    assert round(meter.held_db) == -40


def test_high_tones_are_above_and_new_ones_to_the_right() -> None:
    meter = heard(spectrum(4), spectrum(60))
    levels = meter.levels(80, 8)
    assert levels.shape == (8, 4)  # two columns a step
    assert levels.argmax(0).tolist() == [7, 7, 0, 0]
    assert meter.levels(2, 8).argmax(0).tolist() == [0, 0]


def test_silence_is_blank_and_noise_does_not_fill_the_scale() -> None:
    silent = heard(*[np.full((FRAMES, BANDS), -13.8, np.float32)] * 20)
    assert not silent.levels(40, 8).any()
    noise = np.random.default_rng(0).normal(-5, 0.5, (20, FRAMES, BANDS)).astype(np.float32)
    assert heard(*noise).levels(40, 8).max() < 0.3


def test_a_sound_far_above_the_floor_spans_the_scale() -> None:
    for shift in (-20.0, 0.0, 30.0):  # the unit of power does not matter
        steps = [spectrum(8 * k, shift, shift - 12) for k in range(8)]
        levels = heard(*steps).levels(40, 8)
        assert levels.min() == 0.0
        assert levels.max() == 1.0


def test_values_that_are_not_finite_and_other_shapes_are_harmless() -> None:
    broken = np.full((FRAMES, BANDS), np.nan, np.float32)
    broken[0] = np.inf
    meter = heard(broken, np.zeros((1, BANDS), np.float32), np.zeros((0, BANDS), np.float32))
    assert np.isfinite(meter.levels(40, 8)).all()
    meter.add(9.0, np.zeros(0, np.float32), np.ones((5, 3), np.float32))  # another frontend
    assert meter.levels(40, 8).shape == (3, 2)


def test_a_step_costs_microseconds_and_memory_stays() -> None:
    meter, sound, picture = AudioMeter(STEP_S), tone(0.3), spectrum(5)
    times = []
    for i in range(2000):
        began = time.perf_counter()
        meter.add(i * STEP_S, sound, picture)
        times.append(time.perf_counter() - began)
    assert np.median(times) < 1e-4  # some 10 microseconds; machines of others may be busy
    assert meter.levels(1000, 8).shape == (8, 128)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 130), st.integers(1, 6), st.integers(0, 70), st.integers(1, 70), st.booleans()
)
def test_lines_have_their_size(
    width: int, height: int, steps: int, bands: int, unicode: bool
) -> None:
    noise = np.random.default_rng(steps).normal(0, 5, (steps + 1, FRAMES, bands))
    meter = heard(*noise.astype(np.float32))
    lines = spectrum_lines(meter, width, height, unicode=unicode)
    assert len(lines) <= height
    assert {line.cell_len for line in lines} == {min(width, 2 * (steps + 1), 128)}
    level = level_line(meter, Text("level   "), max(30, width), unicode=unicode)
    assert level.cell_len == max(30, width)
    if not unicode:
        assert "".join(line.plain for line in [*lines, level]).isascii()


def test_the_meter_marks_level_and_peak() -> None:
    meter = AudioMeter(STEP_S)
    meter.add(0.0, tone(0.5), None)  # -9 dBFS
    meter.add(0.25, tone(0.01), None)
    text = level_line(meter, Text("level   "), 70, unicode=True)
    assert text.plain.endswith("  -43 dBFS, peak  -6")
    bar = text.plain[8:-20]
    assert bar.count("█") == round(len(bar) * (60 - 43) / 60)
    assert bar.index("│") == round(len(bar) * (60 - 6) / 60)
    assert any(span.style == "yellow" for span in text.spans)
    meter.add(0.5, tone(1.0), None)
    loud = level_line(meter, Text("level   "), 70, unicode=True)
    assert any(span.style == "red" for span in loud.spans)
    assert "│" in loud.plain
