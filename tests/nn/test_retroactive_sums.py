"""Running sums of retroactive attention: within 1e-5 of float64, whatever the logits are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from costream.nn import fast
from costream.nn.attention import RetroactiveAttention
from kit.encoders import build_encoder


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    fast.compile_blocks()


@pytest.fixture(autouse=True)
def inference() -> Any:
    with torch.no_grad():
        yield


def attended(queries: Tensor, keys: Tensor, values: Tensor, rows: int) -> Tensor:
    """All rows [B, rows, h e] in float64 from rings [B, h, n, e]."""
    q, k, v = (r[:, :, :rows].double() for r in (queries, keys, values))
    return F.scaled_dot_product_attention(q, k, v, scale=1.0).transpose(1, 2).flatten(2)


@settings(max_examples=40, deadline=None)
@given(
    scale=st.sampled_from([0.0, 0.1, 1.0, 4.0, 16.0, 100.0]),
    spike=st.sampled_from([1.0, 30.0, 1e4, 1e12]),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 20)),
    seed=st.integers(0, 1000),
)
def test_each_row_is_within_1e_5_of_float64(
    scale: float, spike: float, sizes: tuple[int, int, int, int], seed: int
) -> None:
    from costream.nn.retroactive_kernels import RunningSums

    batch, heads, width, window = sizes
    rings = tuple(torch.zeros(batch, heads, window, width) for _ in range(3))
    sums, generator = RunningSums(*rings), torch.Generator().manual_seed(seed)
    for t in range(3 * window + 5):
        new = torch.randn(batch, 3, heads, width, generator=generator)
        new[:, 0] *= scale
        if t % 7 == 2:
            new[:, t % 3] *= spike
        truth_rows = min(t + 1, window)
        out = sums.step(new, t)
        truth = attended(*rings, truth_rows)
        largest = rings[2].abs().amax().clamp(min=1).item()
        torch.testing.assert_close(out.double(), truth, atol=1e-5 * largest, rtol=0)


@pytest.mark.parametrize("scale", [1.0, 16.0, 64.0])
@pytest.mark.parametrize("kept", [0.0, 0.999])
def test_long_streams_stay_within_1e_5(scale: float, kept: float) -> None:
    """Of rows that have nothing in common, or that change slowly; logits of this size."""
    from costream.nn.retroactive_kernels import RunningSums

    heads, width, window = 4, 12, 120
    rings = tuple(torch.zeros(1, heads, window, width) for _ in range(3))
    sums, generator = RunningSums(*rings), torch.Generator().manual_seed(0)
    rows = torch.randn(1, 3, heads, width, generator=generator)
    for t in range(5000):
        noise = torch.randn(rows.shape, generator=generator)
        rows = kept * rows + (1 - kept**2) ** 0.5 * noise
        new = rows.clone()
        new[:, 0] *= scale / width**0.5
        out = sums.step(new, t)
        if t % 100 == 99:
            truth = attended(*rings, min(t + 1, window))
            torch.testing.assert_close(out.double(), truth, atol=1e-5, rtol=0)


def test_few_rows_are_computed_again_and_all_of_hard_ones() -> None:
    from costream.nn.retroactive_kernels import RunningSums

    shares = []
    for scale in (1.0, 16.0):
        rings = tuple(torch.zeros(1, 4, 64, 12) for _ in range(3))
        sums = RunningSums(*rings)
        for t in range(500):
            new = torch.randn(1, 3, 4, 12) * torch.tensor([scale, 12**-0.5, 1]).view(3, 1, 1)
            sums.step(new, t)
        shares.append(sums.renewed / (500 * 4 * 64))
    assert shares[0] < 1e-4 < shares[1] < 0.02


def test_steps_go_on_after_whatever_happens_to_the_state() -> None:
    encoder = build_encoder(depth=2, window=6, logit_scale=6.0)
    reference = build_encoder(depth=2, window=6, logit_scale=6.0, dtype=torch.float64)
    reference.load_state_dict(encoder.state_dict())
    state, truth = encoder.init_state(2), reference.init_state(2)

    def advance(count: int) -> None:
        for x in torch.randn(count, len(state.attention.steps), 16):
            expected = reference.forward_step(x.double(), truth)
            torch.testing.assert_close(
                encoder.forward_step(x, state).double(), expected, atol=2e-5, rtol=1e-5
            )

    advance(20)
    assert state.attention.sums is not None
    x = torch.randn(2, 9, 16)
    torch.testing.assert_close(
        encoder.forward_steps(x, state).double(),
        reference.forward_steps(x.double(), truth),
        atol=2e-5,
        rtol=1e-5,
    )
    advance(9)
    state.reset([1]), truth.reset([1])
    advance(8)  # streams that began at different times
    state, truth = state.take([1, 0]), truth.take([1, 0])
    advance(3)
    saved = {name: t.clone() for name, t in state.tensors().items()}
    state.reset()
    state.load_tensors(saved)
    advance(8)
    state, truth = state.take([0]), truth.take([0])
    advance(13)
    assert state.attention.sums is not None
    with fast.use_kernels(False):
        advance(4)
    advance(9)


def test_a_number_that_is_nan_is_forgotten_with_its_row() -> None:
    module = RetroactiveAttention(8, 2, 5)
    state, x = module.init_state(), torch.randn(1, 30, 8)
    x[:, 9] = torch.nan
    outs = [module.forward_step(x[:, t], state) for t in range(30)]
    assert state.sums is not None
    assert outs[9].isnan().all()
    assert outs[13].isnan().all()
    fresh = module.init_state()
    for t in range(30 - 10, 30):
        expected = module.forward_step(x[:, t], fresh)
    torch.testing.assert_close(outs[29], expected)
