from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from costream.nn.pooling import TemporalStatistics
from kit.stepping import by_chunks, by_steps, check, chunkings, fresh, places


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
