from __future__ import annotations

import math

import continual
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from costream.nn.pooling import TemporalMax, TemporalMean
from kit.stepping import by_steps, check, chunkings, fresh, places


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


def test_a_late_stream_has_a_mean_of_its_own() -> None:
    pool = TemporalMean(4, partial=True)
    x = torch.randn(3, 20, 2, dtype=torch.float64)
    state = fresh(pool, x)
    by_steps(pool, x[:, :9], state)
    state.reset([1])
    pool.forward_steps(x[:, 9:11], state)
    for t in range(11, 20):
        out = pool.forward_step(x[:, t], state)
        assert out is not None
        for stream, start in ((0, 0), (1, 9), (2, 0)):
            expected = x[stream, max(start, t - 3) : t + 1].mean(0)
            torch.testing.assert_close(out[stream], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("window", [1, 3, 8])
def test_means_are_those_of_continual_inference(window: int) -> None:
    theirs, ours = continual.AvgPool1d(window, 1), TemporalMean(window)
    x = torch.randn(2, 30, 3)
    outputs = by_steps(ours, x, fresh(ours, x))
    for t, row in enumerate(x.unbind(1)):
        out = theirs.forward_step(row)
        assert isinstance(out, Tensor) == (t in outputs)
        if t in outputs:
            torch.testing.assert_close(outputs[t], out, rtol=0, atol=1e-6)


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


def test_maxima_of_a_late_stream_know_nothing_of_the_one_before() -> None:
    pool = TemporalMax(3, padding=(2, 0))
    x = torch.randn(2, 20, 4) - 9
    state = fresh(pool, x)
    by_steps(pool, x[:, :8], state)
    state.reset([1])
    outputs = by_steps(pool, x[:, 8:], state)
    alone = by_steps(pool, x[1:, 8:], fresh(pool, x[1:]))
    for t, out in outputs.items():
        assert torch.equal(out[0], x[0, 6 + t : 9 + t].amax(0))
        assert torch.equal(out[1:], alone[t])


def test_maxima_are_right_for_20000_steps() -> None:
    x = torch.randn(1, 20_000, 2, dtype=torch.float64)
    expected = F.max_pool1d(x.transpose(1, 2), 3, 2).transpose(1, 2)
    check(TemporalMax(3, 2), x, expected, [1000, 1, 0, 777])


@pytest.mark.parametrize("pool", [TemporalMean(5), TemporalMax(5)])
def test_a_state_keeps_no_gradient(pool: TemporalMean | TemporalMax) -> None:
    with torch.enable_grad():
        x = torch.randn(1, 12, 2, requires_grad=True)
        state = fresh(pool, x)
        pool.forward_step(x[:, 0], state)
        pool.forward_steps(x[:, 1:], state)
    assert not any(tensor.requires_grad for tensor in state.tensors().values())


def test_costs_are_of_one_step() -> None:
    assert TemporalMean(75).count_macs(256) == 3 * 256
    assert TemporalMax(3).count_macs(256) == 2 * 256


@pytest.mark.parametrize(
    "options",
    [{"window": 0}, {"window": 3, "zeros": 3}, {"window": 3, "zeros": 1, "partial": True}],
)
def test_windows_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="window"):
        TemporalMean(**options)


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
