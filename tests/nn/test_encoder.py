from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from costream.nn.block import EncoderConfig
from costream.nn.encoder import Encoder
from costream.nn.fast import store_by_columns

REFERENCE = (
    Path(__file__).resolve().parents[2].parent / "shared/refs/transformers/co_encoder2_gelu.npz"
)
STYLES = [
    {},
    {"norm_first": True, "activation": "relu", "final_norm": True},
    {"qkv_bias": False, "out_bias": False, "final_norm": True},
    {"norm_first": True, "qkv_bias": False},
]
# The bound that is promised: activations are of size one after the norm.
TOLERANCE = {"atol": 2e-5, "rtol": 0.0}


def step_through(encoder: Encoder, x: Tensor) -> Tensor:
    state = encoder.init_state(len(x))
    return torch.stack([encoder.forward_step(x[:, t], state) for t in range(x.shape[1])], 1)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_steps_clip_and_window_agree_in_float64(
    build_encoder: Callable[..., Encoder],
    newest_of_windows: Callable[..., Tensor],
    depth: int,
    style: dict[str, object],
) -> None:
    encoder = build_encoder(depth, **style).double()
    x = torch.randn(3, 26, 16, dtype=torch.float64)
    truth = newest_of_windows(encoder, x)
    torch.testing.assert_close(step_through(encoder, x), truth)
    torch.testing.assert_close(step_through(encoder, x[:1]), truth[:1])
    torch.testing.assert_close(encoder(x), truth)
    torch.testing.assert_close(encoder(x, last=4), truth[:, -4:])
    torch.testing.assert_close(encoder.forward_steps(x, encoder.init_state(3)), truth)


@pytest.mark.parametrize("scale", [1.0, 2.0, 4.0, 8.0, 16.0])
@pytest.mark.parametrize("depth", [1, 2])
def test_float32_error_does_not_grow_with_the_logits(
    build_encoder: Callable[..., Encoder],
    newest_of_windows: Callable[..., Tensor],
    depth: int,
    scale: float,
) -> None:
    n = 64
    encoder = build_encoder(depth, n, logit_scale=scale)
    x = torch.randn(3, 10 * n, 16)
    ends = [0, n - 2, n - 1, 2 * n - 3, 2 * n - 1, 10 * n - 1]  # after 1, n-1, n, .., 10 n steps
    truth = newest_of_windows(encoder, x, ends).float()
    torch.testing.assert_close(step_through(encoder, x)[:, ends], truth, **TOLERANCE)


@pytest.mark.parametrize("steps", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("depth", [1, 2])
def test_many_steps_leave_no_trace(
    build_encoder: Callable[..., Encoder],
    newest_of_windows: Callable[..., Tensor],
    depth: int,
    steps: int,
) -> None:
    """With hard logits, which are worse than soft ones."""
    encoder = build_encoder(depth, window=8, embed_dim=8, heads=2, feedforward=8, logit_scale=16.0)
    n = 8
    block = torch.randn(1, 1000, 8)
    block[:, 500] *= 30  # a spike in every thousand
    rows = list(block[0].split(1))
    state = encoder.init_state()
    with torch.inference_mode():
        for t in range(steps):
            out = encoder.forward_step(rows[t % 1000], state)
            if t in (0, n - 1, 2 * n, steps // 2) or t >= steps - 3:
                low = max(0, t - n + 1)
                window = torch.cat([rows[k % 1000] for k in range(low, t + 1)])[None]
                truth = newest_of_windows(encoder, window, [t - low])[:, 0].float()
                torch.testing.assert_close(out, truth, **TOLERANCE)
    assert state.attention.steps.tolist() == [steps]


@pytest.mark.parametrize("depth", [1, 2, 3])
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_chunking_equals_steps(
    build_encoder: Callable[..., Encoder], depth: int, data: st.DataObject
) -> None:
    encoder = build_encoder(depth, window=data.draw(st.integers(1, 9)), embed_dim=8, heads=2)
    encoder = encoder.double()
    chunks = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    x = torch.randn(data.draw(st.integers(1, 3)), sum(chunks), 8, dtype=torch.float64)
    truth = step_through(encoder, x)
    state, out = encoder.init_state(len(x)), []
    for part in x.split(chunks, 1):
        one_by_one = data.draw(st.booleans())
        if one_by_one:
            out += [encoder.forward_step(part[:, t], state)[:, None] for t in range(part.shape[1])]
        else:
            out.append(encoder.forward_steps(part, state))
    torch.testing.assert_close(torch.cat(out, 1), truth)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_streams_that_join_leave_and_start_again(
    build_encoder: Callable[..., Encoder], depth: int
) -> None:
    encoder = build_encoder(depth).double()
    x = torch.randn(4, 40, 16, dtype=torch.float64)
    state = encoder.init_state(2)
    for t in range(10):
        encoder.forward_step(x[:2, t], state)
    # Stream 2 joins with a window half full, stream 3 with an empty one.
    late = encoder.init_state(1)
    encoder.forward_steps(x[2:3, 7:10], late)
    state = type(state).cat([state, late, encoder.init_state(1)])
    assert encoder.warmup(state) == (False, False, True, True)
    starts = [0, 0, 7, 10]
    for t in range(10, 20):
        out = encoder.forward_step(x[:, t], state)
        for stream, start in enumerate(starts):
            alone = encoder(x[stream : stream + 1, start : t + 1], last=1)[:, 0]
            torch.testing.assert_close(out[stream : stream + 1], alone)
    state.reset([1])
    out = encoder.forward_steps(x[:, 20:30], state)
    starts[1] = 20
    state = state.take([3, 1])  # streams 0 and 2 leave, the others change places
    for t in range(30, 40):
        pair = encoder.forward_step(x[[3, 1], t], state)
        for row, stream in enumerate((3, 1)):
            alone = encoder(x[stream : stream + 1, starts[stream] : t + 1], last=1)[:, 0]
            torch.testing.assert_close(pair[row : row + 1], alone)
    torch.testing.assert_close(out[1:2], encoder(x[1:2, 20:30]))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("batch", [1, 5])
def test_bfloat16_steps(build_encoder: Callable[..., Encoder], depth: int, batch: int) -> None:
    encoder = build_encoder(depth, final_norm=True)
    x = torch.randn(batch, 20, 16)
    exact = step_through(encoder, x)
    rough = step_through(encoder.bfloat16(), x.bfloat16())
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, atol=0.15, rtol=0.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 4])
def test_steps_on_a_gpu(
    build_encoder: Callable[..., Encoder],
    newest_of_windows: Callable[..., Tensor],
    depth: int,
    batch: int,
) -> None:
    encoder = build_encoder(depth)
    x = torch.randn(batch, 20, 16)
    truth = newest_of_windows(encoder, x).float()
    encoder, x = encoder.cuda(), x.cuda()
    state = encoder.init_state(batch)
    state.reset([0])
    first = encoder.forward_steps(x[:, :5], state)
    rest = torch.stack([encoder.forward_step(row, state) for row in x[:, 5:].unbind(1)], 1)
    torch.testing.assert_close(torch.cat([first, rest], 1).cpu(), truth, **TOLERANCE)
    torch.testing.assert_close(encoder(x).cpu(), truth, **TOLERANCE)
    state.reset([batch - 1])
    out = encoder.forward_step(x[:, 0], state)
    torch.testing.assert_close(out[-1:].cpu(), truth[-1:, 0], **TOLERANCE)


@pytest.mark.parametrize("depth", [1, 2])
def test_storing_weights_by_columns_changes_no_name_and_no_result(
    build_encoder: Callable[..., Encoder], depth: int
) -> None:
    encoder = build_encoder(depth)
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    x = torch.randn(2, 12, 16)
    truth = step_through(encoder, x)
    store_by_columns(encoder, max_bytes=4 * 24 * 16)
    assert encoder.layers[0].linear1.weight.stride() == (1, 24)
    assert encoder.layers[0].self_attn.in_proj_weight.stride() == (16, 1)  # too large
    store_by_columns(encoder)
    assert encoder.layers[0].self_attn.in_proj_weight.stride() == (1, 48)
    after = encoder.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[k], before[k]) for k in before)
    torch.testing.assert_close(step_through(encoder, x), truth)
    encoder.load_state_dict(before)
    assert encoder.layers[0].linear1.weight.stride() == (1, 24)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_every_parameter_learns_and_dropout_is_for_training_only(
    build_encoder: Callable[..., Encoder], depth: int
) -> None:
    encoder = build_encoder(depth, dropout=0.3, final_norm=True)
    x = torch.randn(2, 15, 16)
    assert torch.equal(encoder(x), encoder(x))
    encoder.train()
    assert not torch.equal(encoder(x), encoder(x))
    with torch.enable_grad():
        encoder(x).square().sum().backward()
    assert [k for k, p in encoder.named_parameters() if p.grad is None] == []


def test_macs_of_one_and_more_blocks(build_encoder: Callable[..., Encoder]) -> None:
    d, h, n, ff = 16, 4, 7, 24
    feedforward, ordinary = 2 * d * ff, 4 * n * d**2 + 2 * n**2 * d
    changed = 4 * d**2 + 2 * n * h * d + feedforward
    retroactive = 3 * d**2 + 2 * n**2 * d + n * d**2 + n * feedforward
    counts = {k: build_encoder(k).count_macs() for k in (1, 2, 4)}
    assert counts[1] == 4 * d**2 + 2 * n * d + feedforward
    assert counts[2] == retroactive + changed
    assert counts[4] == retroactive + 2 * (ordinary + n * feedforward) + changed
    assert build_encoder(3).dense_macs == 3 * (ordinary + n * feedforward)


def test_one_block_keeps_keys_and_values_only(build_encoder: Callable[..., Encoder]) -> None:
    names = {depth: set(build_encoder(depth).init_state().tensors()) for depth in (1, 2)}
    assert names[1] == {"attention.steps", "attention.keys", "attention.values"}
    assert names[2] == names[1] | {"attention.queries", "rows"}


def test_attributes_and_bad_arguments(build_encoder: Callable[..., Encoder]) -> None:
    encoder = build_encoder(2, window=9)
    assert (encoder.receptive_field, encoder.delay, encoder.stride) == (9, 0, 1)
    with pytest.raises(ValueError, match="at least 1"):
        EncoderConfig(8, 2, 8, 0, 4)
    with pytest.raises(ValueError, match="activation"):
        EncoderConfig(8, 2, 8, 1, 4, activation="tanh")


@pytest.mark.skipif(not REFERENCE.exists(), reason="needs ../shared/refs beside the repository")
def test_reference_arrays_of_two_blocks() -> None:
    data = np.load(REFERENCE)
    encoder = Encoder(EncoderConfig(16, 4, 24, 2, 10, final_norm=True)).eval()
    weights = {k[3:]: torch.from_numpy(data[k]) for k in data.files if k.startswith("sd/")}
    encoder.load_state_dict({_own_name(k): v for k, v in weights.items()})
    x = torch.from_numpy(data["x"]).transpose(1, 2)
    out = step_through(encoder, x)[:, 9:].transpose(0, 1)
    torch.testing.assert_close(out, torch.from_numpy(data["window_out"]), **TOLERANCE)


def _own_name(key: str) -> str:
    parts = key.split(".")
    if parts[0] == "norm":
        return f"norm.{parts[-1]}"
    start = next(k for k, part in enumerate(parts) if part[:4] in ("self", "line", "norm"))
    return ".".join([*parts[:2], *(part for part in parts[start:] if part != "fn")])
