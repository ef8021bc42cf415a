"""Stacks of single-output blocks against an oracle: each block over its own last n inputs."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn.deepcot import DeepEncoder
from kit.encoders import build_encoder, step_through

PLAIN: dict[str, Any] = {}
SOFT = {"attention": "soft", "residual": "scaled", "activation": "none"}
FORMS = [
    PLAIN,
    {"rotary": True, "norm_first": True, "activation": "relu"},
    SOFT,
    {"attention": "soft", "rotary": True, "qkv_bias": False, "final_norm": True},
]


build = partial(build_encoder, DeepEncoder, embed_dim=12, heads=3, feedforward=10, window=5)


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


@pytest.mark.parametrize("options", FORMS)
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("batch", [1, 2])
def test_clip_and_steps_equal_the_oracle(depth: int, batch: int, options: dict[str, Any]) -> None:
    encoder = build(depth=depth, **options).double()
    x = torch.randn(batch, 3 * depth * encoder.window + 7, 12, dtype=torch.float64)
    truth = oracle(encoder, x)
    torch.testing.assert_close(encoder(x), truth)
    torch.testing.assert_close(step_through(encoder, x), truth)
    torch.testing.assert_close(encoder(x, last=3), truth[:, -3:])


@pytest.mark.parametrize("options", FORMS)
def test_float32_with_hard_logits(options: dict[str, Any]) -> None:
    encoder = build(depth=3, window=8, **options)
    rows = 12 if options.get("attention") == "soft" else 24  # soft: queries are keys
    for block in encoder.layers:
        block.self_attn.in_proj_weight.data[:rows] *= 4  # logits times 16
    x = torch.randn(1, 200, 12)
    torch.testing.assert_close(
        step_through(encoder, x), oracle(encoder, x).float(), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("options", FORMS)
def test_tokens_of_a_step_see_one_another(options: dict[str, Any]) -> None:
    encoder = build(depth=2, window=5, **options).double()
    x = torch.randn(2, 27, 12, dtype=torch.float64)
    torch.testing.assert_close(encoder(x, tokens=3), oracle(encoder, x, 3))
    assert not torch.allclose(encoder(x, tokens=3)[:, 0], encoder(x)[:, 0])
    with pytest.raises(ValueError, match="26 rows in steps of 3"):
        encoder(x[:, 1:], tokens=3)
    with pytest.raises(ValueError, match="over a window of 5"):
        encoder.forward_step(x[:, :6], encoder.init_state(2))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("start", [1_000_000, 10_000_000, 10_000_000_000])
def test_rotary_positions_stay_exact(start: int, batch: int) -> None:
    encoder = build(depth=2, window=6, rotary=True)
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


def test_an_output_draws_on_the_receptive_field_and_no_further() -> None:
    encoder = build(depth=3, window=4).double()
    x = torch.randn(1, 20, 12, dtype=torch.float64)
    changed = x.clone()
    changed[:, 5] += 1
    moved = (encoder(x) - encoder(changed)).abs().amax(-1)[0] > 0
    assert moved.tolist() == [False] * 5 + [True] * 10 + [False] * 5


def test_macs() -> None:
    d, n, ff = 12, 5, 10
    assert build(depth=3).count_macs() == 3 * (4 * d**2 + 2 * n * d + 2 * d * ff)
    assert build(depth=3, **SOFT).count_macs() == 3 * (3 * d**2 + 2 * n * d + 2 * d * ff)
    assert build(depth=2).dense_macs == 2 * (4 * n * d**2 + 2 * n**2 * d + 2 * n * d * ff)
