"""Smooth scores: their definition, and that a watch goes on with them where it was."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from costream.runtime.segments import Smoother

TIMES = st.lists(st.sampled_from([0.0, 0.01, 0.1, 0.125, 0.7, 30.0]), min_size=1, max_size=30)


def rows(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).dirichlet(np.ones(3), count)


def smooth(smoother: Smoother, times: np.ndarray[Any, Any], p: np.ndarray[Any, Any]) -> list[Any]:
    return [smoother.push(t, row).copy() for t, row in zip(times, p, strict=True)]


@given(TIMES, st.sampled_from([0.05, 0.5, 10.0]), st.integers(0, 99))
def test_is_the_average_with_weights_that_fade(
    steps: list[float], smooth_s: float, seed: int
) -> None:
    times, p = np.cumsum(steps), rows(len(steps), seed)
    out = np.array(smooth(Smoother(smooth_s), times, p))
    for k in range(len(p)):
        # What is up to a time counts exp(-age / smooth_s); the first row stands for all before.
        fade = np.exp(-(times[k] - times[: k + 1]) / smooth_s)
        expected = np.diff(fade, prepend=0.0) @ p[: k + 1]
        np.testing.assert_allclose(out[k], expected, atol=1e-12)
    np.testing.assert_allclose(out.sum(1), 1.0)
    assert out.min() >= 0


@given(TIMES, st.integers(0, 29))
def test_goes_on_bit_for_bit(steps: list[float], cut: int) -> None:
    times, p = np.cumsum(steps), rows(len(steps))
    whole = smooth(Smoother(0.3), times, p)
    first, second = Smoother(0.3), Smoother(0.3)
    out = smooth(first, times[:cut], p[:cut])
    if first.scores is not None:
        kept = json.loads(json.dumps([first.time_s, *first.scores.tolist()]))
        second.time_s, second.scores = kept[0], np.array(kept[1:])
    out += smooth(second, times[cut:], p[cut:])
    assert np.array_equal(out, whole)


def test_zero_seconds_change_no_bit() -> None:
    p = rows(20)
    assert np.array_equal(smooth(Smoother(0.0), np.arange(20) / 8, p), p)


def test_nothing_is_left_after_a_reset() -> None:
    smoother = Smoother(5.0)
    smooth(smoother, np.arange(9.0), rows(9))
    smoother.reset()
    assert smoother.time_s is None
    assert np.array_equal(smoother.push(9.1, rows(1)[0]), rows(1)[0])


def test_a_clock_that_stands_still_changes_nothing() -> None:
    smoother = Smoother(1.0)
    first, second = rows(2)
    smoother.push(4.0, first)
    assert np.array_equal(smoother.push(4.0, second), first)
