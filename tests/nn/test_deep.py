"""Stacks of single-output blocks against an oracle: each block over its own last n inputs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from costream.nn.block import EncoderConfig
from costream.nn.deepcot import DeepEncoder

PLAIN: dict[str, Any] = {}
SOFT = {"attention": "soft", "residual": "scaled", "activation": "none"}
FORMS = [
    PLAIN,
    {"rotary": True, "norm_first": True, "activation": "relu"},
    SOFT,
    {"attention": "soft", "rotary": True, "qkv_bias": False, "final_norm": True},
]


def build(
    depth: int = 3, window: int = 5, width: int = 12, heads: int = 3, **options: Any
) -> DeepEncoder:
    """A stack whose every parameter matters: biases and norms are not 0 and 1."""
    config, options = EncoderConfig(width, heads, 10, depth, window).update(options)
    encoder = DeepEncoder(config, **options).eval()
    for name, parameter in encoder.named_parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        else:
            nn.init.normal_(parameter, mean=float("norm" in name), std=0.1)
    return encoder


def oracle(encoder: DeepEncoder, x: Tensor, tokens: int = 1, start: int = 0) -> Tensor:
    """Outputs [B, T, d] in float64, row by row; the angles of step ``start`` come first."""
    w = {name: value.double() for name, value in encoder.state_dict().items()}
    x = x.double()
    for i in range(encoder.depth):
        x = block_oracle(encoder, w, f"layers.{i}.", x, tokens, start)
    return x if encoder.norm is None else norm(w, "norm", x)


def norm(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])


def block_oracle(
    encoder: DeepEncoder, w: dict[str, Tensor], at: str, x: Tensor, tokens: int, start: int
) -> Tensor:
    block = encoder.layers[int(at.split(".")[1])]
    activate = {"gelu": F.gelu, "relu": F.relu, "positive": lambda v: v}[block.activate.__name__]
    scaled = not any("norm1" in name for name in w)
    seen = norm(w, f"{at}norm1", x) if block.norm_first else x
    rows = [attend(encoder, w, at, seen, t, tokens, start) for t in range(x.shape[1])]
    attended = torch.stack(rows, 1)

    def feedforward(y: Tensor) -> Tensor:
        hidden = activate(F.linear(y, w[f"{at}linear1.weight"], w[f"{at}linear1.bias"]))
        return F.linear(hidden, w[f"{at}linear2.weight"], w[f"{at}linear2.bias"])

    if scaled:
        y = x + attended / encoder.depth
        return y + feedforward(y) / encoder.depth
    if block.norm_first:
        y = x + attended
        return y + feedforward(norm(w, f"{at}norm2", y))
    y = norm(w, f"{at}norm1", x + attended)
    return norm(w, f"{at}norm2", y + feedforward(y))


def attend(
    encoder: DeepEncoder, w: dict[str, Tensor], at: str, x: Tensor, t: int, tokens: int, start: int
) -> Tensor:
    """Attention of row ``t`` [B, d] over the window that ends with its step."""
    attention = encoder.layers[0].self_attn
    h, e = attention.num_heads, attention.head_dim
    end = t // tokens * tokens + tokens
    times = range(max(0, end - encoder.window), end)
    weight, bias = w[f"{at}self_attn.in_proj_weight"], w.get(f"{at}self_attn.in_proj_bias")
    parts = F.linear(x[:, list(times)], weight, bias).chunk(len(weight) // x.shape[-1], -1)
    keys, values = (parts[-2].unflatten(-1, (h, e)), parts[-1].unflatten(-1, (h, e)))
    query = F.linear(x[:, t], weight, bias).chunk(len(weight) // x.shape[-1], -1)[0]
    query = query.unflatten(-1, (h, e))
    if encoder.rotary is not None:
        query = turn(query, start + t)
        keys = torch.stack(
            [turn(k, start + s) for k, s in zip(keys.unbind(1), times, strict=True)], 1
        )
    if len(parts) == 2:  # soft
        weights = (-(query[:, None] - keys).square().sum(-1) / (2 * e)).exp()
    else:
        weights = ((query[:, None] * keys).sum(-1) / math.sqrt(e)).softmax(1)
    mixed = (weights[..., None] * values).sum(1).flatten(1)
    return F.linear(
        mixed, w[f"{at}self_attn.out_proj.weight"], w.get(f"{at}self_attn.out_proj.bias")
    )


def turn(rows: Tensor, t: int) -> Tensor:
    """Turn pairs of neighbours of [B, h, e] by the angles of step ``t``, number by number."""
    out, e = rows.clone(), rows.shape[-1]
    for i in range(e // 2):
        angle = t * 10_000 ** (-2 * i / e)
        c, s = math.cos(angle), math.sin(angle)
        a, b = rows[..., 2 * i], rows[..., 2 * i + 1]
        out[..., 2 * i], out[..., 2 * i + 1] = a * c - b * s, b * c + a * s
    return out


def step_through(encoder: DeepEncoder, x: Tensor, state: Any = None) -> Tensor:
    state = state or encoder.init_state(len(x))
    return torch.stack([encoder.forward_step(row, state) for row in x.unbind(1)], 1)


@pytest.mark.parametrize("options", FORMS)
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("batch", [1, 2])
def test_clip_and_steps_equal_the_oracle(depth: int, batch: int, options: dict[str, Any]) -> None:
    encoder = build(depth, **options).double()
    x = torch.randn(batch, 3 * depth * encoder.window + 7, 12, dtype=torch.float64)
    truth = oracle(encoder, x)
    torch.testing.assert_close(encoder(x), truth)
    torch.testing.assert_close(step_through(encoder, x), truth)
    torch.testing.assert_close(encoder(x, last=3), truth[:, -3:])


@pytest.mark.parametrize("options", FORMS)
def test_float32_with_hard_logits(options: dict[str, Any]) -> None:
    encoder = build(3, 8, **options)
    rows = 12 if options.get("attention") == "soft" else 24  # soft: queries are keys
    for block in encoder.layers:
        block.self_attn.in_proj_weight.data[:rows] *= 4  # logits times 16
    x = torch.randn(1, 200, 12)
    torch.testing.assert_close(
        step_through(encoder, x), oracle(encoder, x).float(), rtol=0, atol=1e-4
    )


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_chunking_equals_the_clip(data: st.DataObject) -> None:
    options = data.draw(st.sampled_from(FORMS))
    tokens = data.draw(st.integers(1, 4))
    window = data.draw(st.integers(tokens, 9))
    encoder = build(data.draw(st.integers(1, 3)), window, **options).double()
    chunks = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=5))
    x = torch.randn(data.draw(st.integers(1, 3)), tokens * sum(chunks), 12, dtype=torch.float64)
    truth = encoder(x, tokens=tokens)
    state, out = encoder.init_state(len(x)), []
    for part in x.split([tokens * steps for steps in chunks], 1):
        if data.draw(st.booleans()):
            out += [encoder.forward_step(step, state) for step in part.split(tokens, 1)]
        else:
            out.append(encoder.forward_steps(part, state, tokens))
    torch.testing.assert_close(torch.cat(out, 1), truth)


@pytest.mark.parametrize("options", FORMS)
def test_tokens_of_a_step_see_one_another(options: dict[str, Any]) -> None:
    encoder = build(2, 5, **options).double()
    x = torch.randn(2, 27, 12, dtype=torch.float64)
    torch.testing.assert_close(encoder(x, tokens=3), oracle(encoder, x, 3))
    assert not torch.allclose(encoder(x, tokens=3)[:, 0], encoder(x)[:, 0])
    with pytest.raises(ValueError, match="26 rows in steps of 3"):
        encoder(x[:, 1:], tokens=3)
    with pytest.raises(ValueError, match="over a window of 5"):
        encoder.forward_step(x[:, :6], encoder.init_state(2))


@pytest.mark.parametrize("options", FORMS)
def test_streams_start_again_leave_and_join(options: dict[str, Any]) -> None:
    encoder = build(2, **options).double()
    x = torch.randn(3, 40, 12, dtype=torch.float64)
    state = encoder.init_state(2)
    encoder.forward_steps(x[:2, :10], state)
    state = type(state).cat([state, encoder.init_state(1)])
    state.reset([0])
    assert encoder.warmup(state) == (True, False, True)
    starts = (10, 0, 10)
    steps = step_through(encoder, x[:, 10:17], state)
    out = torch.cat([steps, encoder.forward_steps(x[:, 17:30], state)], 1)
    for stream, start in enumerate(starts):
        alone = encoder(x[stream : stream + 1, start:30], last=20)
        torch.testing.assert_close(out[stream : stream + 1], alone)
    left = state.take([2, 1])
    torch.testing.assert_close(
        encoder.forward_step(x[[2, 1], 30], left), encoder.forward_step(x[:, 30], state)[[2, 1]]
    )


def test_a_stream_goes_on_bit_for_bit_after_saving() -> None:
    encoder = build(3, rotary=True)
    x = torch.randn(1, 30, 12)
    state = encoder.init_state()
    step_through(encoder, x[:, :11], state)
    saved = {name: value.clone() for name, value in state.tensors().items()}
    rest = step_through(encoder, x[:, 11:], state)
    restored = encoder.init_state()
    restored.load_tensors(saved)
    assert torch.equal(step_through(encoder, x[:, 11:], restored), rest)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("start", [1_000_000, 10_000_000, 10_000_000_000])
def test_rotary_positions_stay_exact(start: int, batch: int) -> None:
    encoder = build(2, 6, rotary=True)
    x = torch.randn(batch, 20, 12)
    state = encoder.init_state(batch)
    for layer in state.layers:
        layer.steps.fill_(start)
    state_2 = state.clone()
    # The ring is full of zeros then; what follows the receptive field does not see them.
    out = step_through(encoder, x, state)[:, encoder.receptive_field :]
    chunk = encoder.forward_steps(x, state_2)[:, encoder.receptive_field :]
    for start_of_truth in (0, start):  # only distances count
        truth = oracle(encoder, x, start=start_of_truth)[:, encoder.receptive_field :]
        exact = {"rtol": 0, "atol": 1e-5 + 1e-15 * start_of_truth}
        torch.testing.assert_close(out, truth.float(), **exact)
        torch.testing.assert_close(chunk, truth.float(), **exact)


def test_warmup_ends_with_the_receptive_field() -> None:
    encoder = build(3, 4)
    assert encoder.receptive_field == 10
    state = encoder.init_state(2)
    encoder.forward_steps(torch.randn(2, 9, 12), state)
    assert encoder.warmup(state) == (True, True)
    encoder.forward_step(torch.randn(2, 12), state)
    assert encoder.warmup(state) == (False, False)
    assert encoder.warmup(state, ago=1) == (True, True)


def test_an_output_draws_on_the_receptive_field_and_no_further() -> None:
    encoder = build(3, 4).double()
    x = torch.randn(1, 20, 12, dtype=torch.float64)
    changed = x.clone()
    changed[:, 5] += 1
    moved = (encoder(x) - encoder(changed)).abs().amax(-1)[0] > 0
    assert moved.tolist() == [False] * 5 + [True] * 10 + [False] * 5


@pytest.mark.parametrize("options", FORMS)
def test_every_parameter_learns(options: dict[str, Any]) -> None:
    encoder = build(2, dropout=0.2, **options).train()
    with torch.enable_grad():
        encoder(torch.randn(2, 15, 12)).square().sum().backward()
    assert [k for k, p in encoder.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("options", FORMS)
def test_bfloat16_steps(options: dict[str, Any]) -> None:
    encoder = build(2, **options)
    x = torch.randn(1, 20, 12)
    exact = step_through(encoder, x)
    rough = step_through(encoder.bfloat16(), x.bfloat16())
    torch.testing.assert_close(rough.float(), exact, atol=0.15, rtol=0.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("options", FORMS)
def test_steps_on_a_gpu(options: dict[str, Any]) -> None:
    encoder = build(2, **options)
    x = torch.randn(2, 20, 12)
    truth = oracle(encoder, x).float()
    encoder, x = encoder.cuda(), x.cuda()
    torch.testing.assert_close(encoder(x).cpu(), truth, rtol=0, atol=1e-4)
    torch.testing.assert_close(step_through(encoder, x).cpu(), truth, rtol=0, atol=1e-4)


def test_macs() -> None:
    d, n, ff = 12, 5, 10
    assert build(3).count_macs() == 3 * (4 * d**2 + 2 * n * d + 2 * d * ff)
    assert build(3, **SOFT).count_macs() == 3 * (3 * d**2 + 2 * n * d + 2 * d * ff)
    assert build(2).dense_macs == 2 * (4 * n * d**2 + 2 * n**2 * d + 2 * n * d * ff)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 0}, "at least 1"),
        ({"attention": "linear"}, "attention"),
        ({"residual": "none"}, "residual"),
        ({"residual": "scaled", "norm_first": True}, "scaled if not norm_first"),
        ({"rotary": True, "width": 9}, "even width"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**options)
