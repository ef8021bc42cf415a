from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.attention import MultiheadAttention, RetroactiveAttention, SingleOutputAttention

REFERENCE = Path(__file__).resolve().parents[2].parent / "shared/refs/transformers/co_retro_mha.npz"
SIZES = [(16, 4), (64, 2)]  # narrow and wide heads lie differently in memory
BIASES = [(True, True), (False, False), (False, True), (True, False)]


def fill_biases(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, std=0.3)


def plain_attention(module: MultiheadAttention, x: Tensor) -> Tensor:
    """Every row of [B, n, d], by F.scaled_dot_product_attention."""
    h = module.num_heads
    qkv = F.linear(x, module.in_proj_weight, module.in_proj_bias)
    q, k, v = (t.unflatten(2, (h, -1)).transpose(1, 2) for t in qkv.chunk(3, 2))
    out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return module.out_proj(out)


@pytest.mark.parametrize(("qkv_bias", "out_bias"), BIASES)
@pytest.mark.parametrize(("width", "heads"), SIZES)
def test_forward_is_ordinary_attention(
    width: int, heads: int, qkv_bias: bool, out_bias: bool
) -> None:
    module = MultiheadAttention(width, heads, qkv_bias=qkv_bias, out_bias=out_bias).double()
    fill_biases(module)
    assert (module.in_proj_bias is not None) == qkv_bias
    assert (module.out_proj.bias is not None) == out_bias
    x = torch.randn(3, 9, width, dtype=torch.float64)
    torch.testing.assert_close(module(x), plain_attention(module, x))


def test_parameters_are_those_of_torch() -> None:
    ours, theirs = MultiheadAttention(16, 4), nn.MultiheadAttention(16, 4, batch_first=True)
    fill_biases(ours)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0], atol=1e-6, rtol=1e-5)


def test_a_masked_row_is_seen_by_none() -> None:
    module = MultiheadAttention(16, 4)
    x = torch.randn(1, 6, 16)
    mask = torch.tensor([[True, True, False, True, True, True]])
    kept = x[:, mask[0]]
    torch.testing.assert_close(module(x, mask)[:, mask[0]], module(kept))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("qkv_bias", "out_bias"), BIASES)
@pytest.mark.parametrize(("width", "heads"), SIZES)
def test_single_output_steps_are_the_newest_row_of_each_window(
    width: int, heads: int, qkv_bias: bool, out_bias: bool, batch: int
) -> None:
    n, length = 7, 31
    module = SingleOutputAttention(width, heads, n, qkv_bias=qkv_bias, out_bias=out_bias).double()
    fill_biases(module)
    x = torch.randn(batch, length, width, dtype=torch.float64)
    truth = torch.stack(
        [plain_attention(module, x[:, max(0, t - n + 1) : t + 1])[:, -1] for t in range(length)], 1
    )
    state = module.init_state(batch)
    steps = torch.stack([module.forward_step(x[:, t], state) for t in range(length)], 1)
    torch.testing.assert_close(steps, truth)
    torch.testing.assert_close(module(x), truth)
    state = module.init_state(batch)
    chunks = torch.cat([module.forward_steps(part, state) for part in x.split(9, 1)], 1)
    torch.testing.assert_close(chunks, truth)


def test_a_clip_longer_than_one_pass() -> None:
    module = SingleOutputAttention(8, 2, 5).double()
    x = torch.randn(1, 600, 8, dtype=torch.float64)
    state = module.init_state()
    steps = torch.stack([module.forward_step(x[:, t], state) for t in range(600)], 1)
    torch.testing.assert_close(module(x), steps)
    torch.testing.assert_close(module.forward_steps(x, module.init_state()), steps)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("width", "heads"), SIZES)
def test_retroactive_steps_are_all_rows_of_each_window(width: int, heads: int, batch: int) -> None:
    n, length = 7, 31
    module = RetroactiveAttention(width, heads, n).double()
    fill_biases(module)
    x = torch.randn(batch, length, width, dtype=torch.float64)
    state, chunked = module.init_state(batch), module.init_state(batch)
    chunks = torch.cat([module.forward_steps(part, chunked) for part in x.split(9, 1)], 1)
    for t in range(length):
        low = max(0, t - n + 1)
        truth = plain_attention(module, x[:, low : t + 1])
        slots = [k % n for k in range(low, t + 1)]
        torch.testing.assert_close(module.forward_step(x[:, t], state)[:, slots], truth)
        torch.testing.assert_close(chunks[:, t, slots], truth)


@pytest.mark.parametrize("qkv_bias", [True, False])
def test_one_query_over_changed_rows_needs_no_keys_and_values(qkv_bias: bool) -> None:
    module = SingleOutputAttention(16, 4, 9, qkv_bias=qkv_bias).double()
    fill_biases(module)
    x = torch.randn(3, 9, 16, dtype=torch.float64)
    truth = plain_attention(module, x)[:, 4]
    torch.testing.assert_close(module.attend_changed(x, x[:, 4]), truth)
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[1, 6:] = False
    masked = module.attend_changed(x, x[:, 4], mask)
    torch.testing.assert_close(masked[[0, 2]], truth[[0, 2]])
    torch.testing.assert_close(masked[1:2], plain_attention(module, x[1:2, :6])[:, 4])


@pytest.mark.parametrize("kind", [SingleOutputAttention, RetroactiveAttention])
def test_window_delay_stride_and_warmup(kind: type) -> None:
    module = kind(16, 4, 5)
    assert (module.receptive_field, module.delay, module.stride) == (5, 0, 1)
    state = module.init_state(2)
    for t in range(5):
        assert module.warmup(state) == (True, True)
        module.forward_step(torch.randn(2, 16), state)
        assert state.steps.tolist() == [t + 1] * 2
    assert module.warmup(state) == (False, False)


def test_macs_follow_the_formulas() -> None:
    d, n, h = 16, 10, 4
    assert MultiheadAttention(d, h).count_macs(n) == 4 * n * d**2 + 2 * n**2 * d
    single = SingleOutputAttention(d, h, n)
    assert single.count_macs() == 4 * d**2 + 2 * n * d
    assert single.count_macs(3) == 4 * d**2 + 2 * 3 * d
    assert single.count_macs(changed=True) == 4 * d**2 + 2 * n * h * d
    retroactive = RetroactiveAttention(d, h, n)
    assert retroactive.count_macs() == 3 * d**2 + 2 * n**2 * d + n * d**2


def test_a_spike_in_the_logits_is_forgotten_with_its_row() -> None:
    # Subtracting exp(q k) leaves an error of 2 to 10 here, or NaN.
    n = 16
    module = RetroactiveAttention(8, 1, n)
    state, x = module.init_state(), torch.randn(1, 60, 8)
    x[:, 20] *= 300
    for t in range(60):
        out = module.forward_step(x[:, t], state)
    low = 60 - n
    truth = plain_attention(module, x[:, low:])
    torch.testing.assert_close(out[:, [k % n for k in range(low, 60)]], truth)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        MultiheadAttention(10, 4)


def test_a_step_under_inference_mode_continues_outside_it() -> None:
    module = SingleOutputAttention(8, 2, 4)
    with torch.inference_mode():
        state = module.init_state()
        module.forward_step(torch.randn(1, 8), state)
        copy = state.clone()
    with torch.enable_grad():
        module.forward_step(torch.randn(1, 8), state)
        module.forward_step(torch.randn(1, 8), copy)
    assert not state.keys.requires_grad
    assert state.steps.tolist() == copy.steps.tolist() == [2]


@pytest.mark.skipif(not REFERENCE.exists(), reason="needs ../shared/refs beside the repository")
def test_reference_arrays_of_retroactive_attention() -> None:
    data = np.load(REFERENCE)
    module = RetroactiveAttention(16, 4, 10)
    weights = {k[3:]: torch.from_numpy(data[k]) for k in data.files if k.startswith("sd/")}
    module.load_state_dict(weights)
    x, truth = (torch.from_numpy(data[k]) for k in ("x", "window_out"))  # [B,C,T], [step,B,C,n]
    state = module.init_state(2)
    for t in range(60):
        out = module.forward_step(x[:, :, t], state)
        assert out.shape[1] == min(t + 1, 10)
        if t >= 9:
            slots = [k % 10 for k in range(t - 9, t + 1)]
            torch.testing.assert_close(
                out[:, slots].transpose(1, 2), truth[t - 9], atol=2e-5, rtol=0
            )
