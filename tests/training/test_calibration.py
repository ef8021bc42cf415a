"""Calibration of temperature and timeline on validation streams."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.evaluation.metrics.reliability import calibration_error, reliability
from costream.labels.recording import UNSCORED
from costream.training import stream_calibration as calibration
from costream.training.stream_calibration import (
    MIN_EXAMPLES,
    MIN_LABEL_EXAMPLES,
    StreamPredictions,
    at_temperature,
    best_temperature,
    calibrate,
    clips_alone,
    count_segments,
    segment_f1,
    segments,
    true_segments,
)
from costream.weights_io.card import Timeline

LABELS = ("nothing", "walk", "sit", "fall")
NAMES = ("background", "walk", "sit down", "sit", "stand up", "fall", "lie")
RATE_HZ = 8.0


def softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def drawn(count: int, temperature: float, seed: int = 0) -> StreamPredictions:
    """Steps whose labels are drawn by the probabilities that are right at this temperature."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (count, len(LABELS)))
    chances = softmax(logits / temperature)
    labels = (rng.random((count, 1)) > chances.cumsum(1)).sum(1)
    return StreamPredictions(softmax(logits).astype(np.float32), labels)


def acted(
    events: int, seed: int, noise: float = 0.6, labels: int = len(LABELS)
) -> StreamPredictions:
    """Events of one to three seconds with pauses, told with flicker, shy of the last label."""
    rng = np.random.default_rng(seed)
    steps: list[int] = []
    for _ in range(events):
        steps += [0] * int(rng.integers(6, 16))
        steps += [int(rng.integers(1, labels))] * int(rng.integers(8, 24))
    truth = np.array([*steps, *[0] * 8])
    logits = 3 * np.eye(len(LABELS))[truth] + rng.normal(0, 3 * noise, (len(truth), len(LABELS)))
    logits[:, -1] -= 1.5
    return StreamPredictions(softmax(logits).astype(np.float32), truth)


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7, 3.0])
def test_a_known_temperature_is_found(temperature: float) -> None:
    told = drawn(40_000, temperature)
    assert best_temperature([[told]]) == pytest.approx(temperature, rel=0.04)
    better = at_temperature(told.probabilities, best_temperature([[told]]))
    assert calibration_error(reliability(better, told.labels)) < 0.015


def test_it_has_the_least_cross_entropy() -> None:
    parts = [[drawn(500, 1.4, seed), drawn(200, 1.4, seed + 9)] for seed in (1, 2)]
    best = best_temperature(parts)

    def surprise(temperature: float) -> float:
        means = []
        for part in parts:
            rows = np.concatenate([at_temperature(t.probabilities, temperature) for t in part])
            labels = np.concatenate([t.labels for t in part])
            means.append(-np.log(rows[np.arange(len(rows)), labels]).mean())
        return float(np.mean(means))

    assert all(surprise(best) <= surprise(best * factor) for factor in (0.8, 0.98, 1.02, 1.25))


def test_it_stays_within_bounds_where_everything_is_right() -> None:
    sure = StreamPredictions(softmax(5 * np.eye(4)).astype(np.float32), np.arange(4))
    assert best_temperature([[sure]]) == pytest.approx(calibration.MIN_TEMPERATURE, abs=1e-3)
    wrong = replace(sure, labels=np.array([1, 2, 3, 0]))
    assert best_temperature([[wrong]]) == pytest.approx(calibration.MAX_TEMPERATURE, abs=1e-3)


@given(st.floats(0.25, 4.0), st.integers(0, 99))
def test_probabilities_and_logits_agree(temperature: float, seed: int) -> None:
    logits = np.random.default_rng(seed).normal(0, 4, (5, 7))
    expected = softmax(logits / temperature)
    np.testing.assert_allclose(at_temperature(softmax(logits), temperature), expected, atol=1e-12)
    p = softmax(logits)
    assert at_temperature(p, 1.0) is p


def test_unknown_steps_count_nothing() -> None:
    told = drawn(2000, 2.0)
    some = np.arange(2000) % 3 == 0
    masked = replace(told, labels=np.where(some, told.labels, UNSCORED))
    alone = StreamPredictions(told.probabilities[some], told.labels[some])
    assert best_temperature([[masked]]) == best_temperature([[alone]])


@settings(max_examples=10, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([0.2, 0.6, 1.0]),
    st.sampled_from([1, MIN_EXAMPLES, MIN_LABEL_EXAMPLES]),
)
def test_validation_never_gets_worse(seed: int, noise: float, examples: int) -> None:
    groups = [[acted(3, seed, noise)], [acted(2, seed + 1, noise)]]
    start, counts = Timeline(), dict.fromkeys(LABELS, examples)
    chosen = calibrate(groups, LABELS, RATE_HZ, start, examples=counts)
    assert chosen.f1[0] == segment_f1(groups, start, LABELS, RATE_HZ)
    assert chosen.f1[1] >= chosen.f1[0]
    scaled = [
        [replace(t, probabilities=at_temperature(t.probabilities, chosen.temperature)) for t in g]
        for g in groups
    ]
    assert chosen.f1[1] == segment_f1(scaled, chosen.timeline, LABELS, RATE_HZ)


@pytest.mark.long
def test_flicker_and_a_shy_label_are_cured_for_others_too() -> None:
    counts = dict.fromkeys(LABELS, MIN_LABEL_EXAMPLES)
    chosen = calibrate([[acted(40, 0)]], LABELS, RATE_HZ, Timeline(), examples=counts)
    assert chosen.temperature != 1.0
    assert chosen.f1[1] > chosen.f1[0] + 0.1
    new = [acted(40, seed) for seed in range(50, 53)]
    scaled = [
        replace(t, probabilities=at_temperature(t.probabilities, chosen.temperature)) for t in new
    ]
    after = segment_f1([scaled], chosen.timeline, LABELS, RATE_HZ)
    assert after > segment_f1([new], Timeline(), LABELS, RATE_HZ) + 0.05
    figures = f"F1 of segments {chosen.f1[1]:.2f}, {chosen.f1[0]:.2f} with the initial settings."
    assert figures in chosen.how
    assert f"temperature ({chosen.temperature:g})" in chosen.how
    high = calibrate(
        [[acted(40, 0)]], LABELS, RATE_HZ, Timeline(), examples=counts, least_threshold=0.8
    )
    thresholds = high.timeline.threshold, *high.timeline.thresholds.values()
    assert set(thresholds) <= {Timeline().threshold, 0.8}


def test_what_is_right_already_stays() -> None:
    truth = acted(30, 0).labels
    told = StreamPredictions(np.where(np.eye(4)[truth] > 0, 0.97, 0.01), truth)
    chosen = calibrate([[told]], LABELS, RATE_HZ, Timeline())
    assert chosen.f1 == (1.0, 1.0)
    assert chosen.timeline == Timeline()


def test_few_examples_set_few_values() -> None:
    groups = [[acted(12, 0)]]
    few = dict.fromkeys(LABELS, 1)
    chosen = calibrate(groups, LABELS, RATE_HZ, Timeline(), examples=few)
    assert (chosen.temperature, chosen.timeline.thresholds) == (1.0, {})
    assert "3 examples are too few for a temperature and per-label thresholds" in chosen.how
    some = {"walk": MIN_LABEL_EXAMPLES, "sit": MIN_LABEL_EXAMPLES, "fall": MIN_LABEL_EXAMPLES - 1}
    chosen = calibrate(groups, LABELS, RATE_HZ, Timeline(), examples=some)
    assert chosen.temperature != 1.0
    assert set(chosen.timeline.thresholds) <= {"walk", "sit"}


def test_the_cross_entropy_is_convex_in_its_search() -> None:
    """What the bisection stands on: the slope has one root, from below to above."""
    told = drawn(300, 1.0, seed=4)
    logs = np.log(told.probabilities.astype(np.float64))
    true = logs[np.arange(300), told.labels].mean()
    slopes = [(softmax(b * logs) * logs).sum(-1).mean() - true for b in np.linspace(0.25, 4, 40)]
    assert all(a < b for a, b in pairwise(slopes))
    assert slopes[0] < 0 < slopes[-1]
    assert math.isfinite(best_temperature([[told]]))


def test_segments_of_streams():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, -1, 2, 0, 6], 32)
    sure = np.eye(7)[np.maximum(labels, 0)] * 0.9 + 0.1 / 7
    noisy = 0.5 * sure + 0.5 * rng.dirichlet(np.ones(7), 192)
    assert [(s.start_s, s.end_s, s.label) for s in true_segments(labels, NAMES, RATE_HZ)] == [
        (4, 8, "walk"), (12, 16, "sit down"), (20, 24, "lie")]  # fmt: skip
    assert (
        count_segments([StreamPredictions(sure, labels)], Timeline(), NAMES, RATE_HZ, 0.5).f1 == 1
    )
    unsure = [StreamPredictions(noisy, labels)]
    assert count_segments(unsure, Timeline(0.9), NAMES, RATE_HZ, 0.3).f1 == 0
    assert count_segments(unsure, Timeline(0.3), NAMES, RATE_HZ, 0.3).f1 > 0.8
    assert len(segments(noisy, Timeline(0.3), NAMES, RATE_HZ)) < 8


def test_clips_of_which_no_label_is_sure_are_shown_by_those_alone() -> None:
    """As of linear heads of features whose means still hold the clip before, in joined streams."""
    labels, clips = ("background", *"abcdef"), 24
    kinds = np.arange(clips) % 6 + 1
    rows = []
    for kind in kinds:
        row = np.full((45, 7), 0.12)
        row[:, 0], row[:, kind] = 0, 0.4
        rows.append(row)
    late = [np.concatenate([before[:35], row[35:]]) for before, row in pairwise(rows)]
    joined = StreamPredictions(
        np.concatenate([rows[0], *late]), np.repeat(kinds, 45).astype(np.int64)
    )
    alone = clips_alone(rows, kinds.tolist())
    start = Timeline(threshold=0.5, low=0.5)
    groups = [[joined], alone]
    chosen = calibrate(groups, labels, 15.0, start)
    shown = [at_temperature(row, chosen.temperature) for row in rows]
    assert segment_f1([alone], start, labels, 15.0) == 0
    found = segment_f1([clips_alone(shown, kinds.tolist())], chosen.timeline, labels, 15.0)
    assert found == 1
