from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from costream.nn.pooling import TemporalMax, TemporalMean, TemporalStatistics
from kit.stepping import by_chunks, by_steps, check, chunkings, fresh, places


def slide(x: Tensor, window: int, reduce: object) -> Tensor:
    """``reduce`` over every window of a clip; one window at a time."""
    ends = range(window, x.shape[1] + 1)
    out = [reduce(x[:, end - window : end]) for end in ends]  # type: ignore[operator]
    return torch.stack([x.new_zeros(x.shape[0], *x.shape[2:]), *out], 1)[:, 1:]


def mean(x: Tensor) -> Tensor:
    return x.mean(1)


def before(x: Tensor, count: int, value: float) -> Tensor:
    return torch.cat([x.new_full((x.shape[0], count, *x.shape[2:]), value), x], 1)


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 12), st.data(), places, st.integers(0, 60), chunkings)
def test_means_are_those_of_the_window(
    window: int, data: st.DataObject, place: tuple[int, ...], length: int, chunks: list[int]
) -> None:
    zeros = data.draw(st.integers(0, window - 1))
    pool = TemporalMean(window, zeros=zeros)
    x = torch.randn(2, length, *place, 3, dtype=torch.float64)
    expected = slide(before(x, zeros, 0), window, mean)
    torch.testing.assert_close(pool(x), expected, rtol=0, atol=1e-12)
    if length + zeros >= window:
        rows = F.pad(x.flatten(2).transpose(1, 2), (zeros, 0))
        ordinary = F.avg_pool1d(rows, window, 1).transpose(1, 2).reshape(expected.shape)
        torch.testing.assert_close(expected, ordinary, rtol=0, atol=1e-12)
    check(pool, x, expected, chunks)


@pytest.mark.long
@settings(deadline=None, max_examples=150)
@given(st.integers(1, 12), places, st.integers(0, 60), chunkings)
def test_partial_means_are_over_what_was_seen(
    window: int, place: tuple[int, ...], length: int, chunks: list[int]
) -> None:
    pool = TemporalMean(window, partial=True)
    x = torch.randn(2, length, *place, 3, dtype=torch.float64)
    means = [x[:, max(0, t + 1 - window) : t + 1].mean(1) for t in range(length)]
    expected = torch.stack(means, 1) if means else x
    torch.testing.assert_close(pool(x), expected, rtol=0, atol=1e-12)
    check(pool, x, expected, chunks)


@pytest.mark.long
@pytest.mark.parametrize("partial", [False, True])
def test_means_forget_large_features_and_do_not_drift_in_20000_steps(partial: bool) -> None:
    pool = TemporalMean(220, partial=partial)
    x = torch.randn(1, 20_000, 4)
    x[:, :300] *= 1e9  # a running sum that subtracts would keep their rounding errors for ever
    outputs = by_steps(pool, x, fresh(pool, x))
    expected = F.avg_pool1d(x.double().transpose(1, 2), 220, 1).transpose(1, 2)
    stepped = torch.stack([outputs[t] for t in range(219, 20_000)], 1).double()
    torch.testing.assert_close(stepped[:, 300:], expected[:, 300:], rtol=0, atol=1e-6)
    assert (stepped[:, 300:] - expected[:, 300:]).abs().max() > 0  # float32 after all


def test_a_bad_feature_is_forgotten() -> None:
    pool = TemporalMean(5)
    x = torch.ones(1, 30, 1)
    x[:, 7] = math.nan
    outputs = by_steps(pool, x, fresh(pool, x))
    assert [t for t, out in outputs.items() if out.isnan()] == list(range(7, 12))


def test_half_precision_is_summed_in_single() -> None:
    pool = TemporalMean(300)
    x = torch.full((1, 600, 1), 1.0078125, dtype=torch.bfloat16)
    out = by_steps(pool, x, fresh(pool, x))[599]
    assert out.dtype == torch.bfloat16
    assert out.item() == 1.0078125


@pytest.mark.long
@settings(deadline=None, max_examples=200)
@given(
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 4),
    st.data(),
    places,
    st.integers(0, 60),
    chunkings,
)
def test_maxima_are_those_of_the_kernel(
    kernel: int,
    stride: int,
    dilation: int,
    data: st.DataObject,
    place: tuple[int, ...],
    length: int,
    chunks: list[int],
) -> None:
    reach = (kernel - 1) * dilation
    left, right = data.draw(st.tuples(st.integers(0, reach), st.integers(0, 5)))
    pool = TemporalMax(kernel, stride, dilation, (left, right))
    x = torch.randn(2, length, *place, 3, dtype=torch.float64) - 9

    def largest(window: Tensor) -> Tensor:
        return window[:, ::dilation].amax(1)

    padded = before(x, left, -math.inf)
    expected = slide(padded, reach + 1, largest)[:, ::stride]
    check(pool, x, expected, chunks)
    after = before(padded.flip(1), right, -math.inf).flip(1)
    assert torch.equal(pool(x), slide(after, reach + 1, largest)[:, ::stride])


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 1), (2, 0), (2, 1)])
def test_maxima_of_a_clip_are_those_of_torch(stride: int, padding: int) -> None:
    x = torch.randn(2, 30, 5, 3) - 9
    rows = x.flatten(2).transpose(1, 2)
    expected = F.max_pool1d(rows, 3, stride, padding).transpose(1, 2).unflatten(2, (5, 3))
    assert torch.equal(TemporalMax(3, stride, padding=padding)(x), expected)


@pytest.mark.parametrize("before", [0, 1, 4, 5, 12])
def test_a_mean_may_begin_as_one_of_equal_features(before: int) -> None:
    torch.manual_seed(0)
    mean = TemporalMean(5, zeros=4)
    x = torch.randn(2, before + 9, 3, dtype=torch.float64)
    state = mean.init_state(2, (3,), x)
    mean.forward_steps(x[:, :before], state)
    mean.fill(state, [1], x[1:, before])
    given = mean.forward_steps(x[:, before:], state)
    endless = torch.cat([x[1:, before : before + 1].expand(-1, 4, -1), x[1:, before:]], 1)
    torch.testing.assert_close(given[1:], mean(endless)[:, 4:])
    torch.testing.assert_close(given[:1], mean(x[:1])[:, before:])


def described(x: Tensor, window: int) -> Tensor:
    """Mean and deviation of every window of a clip, one window at a time, by torch's own."""
    rows = []
    for end in range(1, x.shape[1] + 1):
        deviation, mean = torch.std_mean(x[:, max(0, end - window) : end], 1, correction=0)
        rows.append(torch.cat([mean, deviation.clamp(min=1e-4)], -1))
    return torch.stack(rows, 1) if rows else torch.cat([x, x], -1)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 12), places, st.integers(0, 60), chunkings)
def test_they_are_those_of_what_was_seen(
    window: int, place: tuple[int, ...], length: int, chunks: list[int]
) -> None:
    pool = TemporalStatistics(window)
    x = torch.randn(2, length, *place, 3, dtype=torch.float64)
    expected = described(x, window)
    torch.testing.assert_close(pool(x), expected, rtol=0, atol=1e-12)
    check(pool, x, expected, chunks)


def test_far_from_zero_and_after_long() -> None:
    pool = TemporalStatistics(24)
    x = 100 + 0.01 * torch.randn(1, 20_000, 6)
    state = fresh(pool, x)
    assert state.rows.dtype == torch.float64
    chunks = by_chunks(pool, x[:, :19_000], state, [97])
    steps = by_steps(pool, x[:, 19_000:], state).values()
    given = torch.cat([chunks, torch.stack(list(steps), 1)], 1)
    expected = described(x.double(), 24)
    assert given.dtype == torch.float32
    assert (given - expected)[..., :6].abs().max() < 1e-5  # of 100, in single precision
    assert (given - expected)[..., 6:].abs().max() < 1e-8  # of 0.01
    torch.testing.assert_close(pool(x), given, rtol=0, atol=1e-5)


def test_what_does_not_move_has_the_least_deviation_and_a_gradient() -> None:
    x = torch.full((1, 5, 2), 0.3, requires_grad=True)
    with torch.enable_grad():
        out = TemporalStatistics(3)(x)
        out.sum().backward()
    torch.testing.assert_close(out[..., 2:], torch.full((1, 5, 2), 1e-4))
    assert x.grad is not None
    assert x.grad.isfinite().all()
