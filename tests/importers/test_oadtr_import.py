"""Official OadTR on random weights, against its arithmetic written out with its own names."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.errors import ModelError

C, D, FF, N, LAYERS, HEADS = 7, 12, 10, 5, 2, 3
Q, DECODER, DECODER_FF, DECODER_HEADS, K = 4, 2, 14, 2, 6
ARGS = argparse.Namespace(
    num_heads=HEADS,
    decoder_num_heads=DECODER_HEADS,
    enc_layers=N,
    class_index=["Background", "b", "c", "d", "e", "f"],
    positional_encoding_type="learned",
)


def checkpoint(fixed: bool = False) -> dict[str, Tensor]:
    w: dict[str, Tensor] = {}

    def linear(name: str, rows: int, columns: int, bias: bool = True) -> None:
        w[f"{name}.weight"] = torch.randn(rows, columns) / columns**0.5
        if bias:
            w[f"{name}.bias"] = 0.3 * torch.randn(rows)

    def norm(name: str) -> None:
        w[f"{name}.weight"], w[f"{name}.bias"] = 1 + 0.3 * torch.randn(D), 0.3 * torch.randn(D)

    w["cls_token"], w["decoder_cls_token"] = torch.randn(1, 1, D), torch.randn(1, Q, D)
    linear("linear_encoding", D, C)
    for name, rows in (("position_encoding", N + 1), ("decoder_position_encoding", Q)):
        if fixed:
            w[f"{name}.pe"] = torch.randn(20, 1, D)
        else:
            w[f"{name}.position_ids"] = torch.arange(rows)[None]
            w[f"{name}.pe.weight"] = torch.randn(rows, D)
    for i in range(LAYERS):
        norm(f"encoder.net.{2 * i}.fn.norm")
        linear(f"encoder.net.{2 * i}.fn.fn.qkv", 3 * D, D, bias=False)
        linear(f"encoder.net.{2 * i}.fn.fn.proj", D, D)
        norm(f"encoder.net.{2 * i + 1}.fn.norm")
        linear(f"encoder.net.{2 * i + 1}.fn.fn.net.0", FF, D)
        linear(f"encoder.net.{2 * i + 1}.fn.fn.net.3", D, FF)
    norm("pre_head_ln")
    linear("mlp_head", K, 2 * D)
    for j in range(DECODER):
        at = f"decoder.layers.{j}"
        for attention in ("self_attention", "cross_attention"):
            for part in ("query", "key", "value", "out"):
                linear(f"{at}.{attention}.{part}_projection", D, D)
        for name, rows, columns in (("conv1", DECODER_FF, D), ("conv2", D, DECODER_FF)):
            linear(f"{at}.{name}", rows, columns)
            w[f"{at}.{name}.weight"] = w[f"{at}.{name}.weight"][..., None]
        for k in (1, 2, 3):
            norm(f"{at}.norm{k}")
    norm("decoder.norm")
    linear("classifier", K, D)
    return w


def window(w: dict[str, Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [K] and anticipation [Q, K] of one full window [N, C]."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"].flatten(1), w.get(f"{name}.bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (D,), w[f"{name}.weight"], w[f"{name}.bias"])

    def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool = False) -> Tensor:
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(0, 1) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0]
        return out.transpose(0, 1).flatten(1)

    x = torch.cat((linear(rows, "linear_encoding"), w["cls_token"][0]))
    learned = w.get("position_encoding.pe.weight")
    x = x + (w["position_encoding.pe"][0] if learned is None else learned)
    for i in range(LAYERS):
        at = f"encoder.net.{2 * i}.fn"
        q, k, v = linear(norm(x, f"{at}.norm"), f"{at}.fn.qkv").chunk(3, -1)
        x = x + linear(attend(q, k, v, HEADS), f"{at}.fn.proj")
        at = f"encoder.net.{2 * i + 1}.fn"
        hidden = F.gelu(linear(norm(x, f"{at}.norm"), f"{at}.fn.net.0"))
        x = x + linear(hidden, f"{at}.fn.net.3")
    memory = norm(x, "pre_head_ln")
    y = w["decoder_cls_token"][0]
    for j in range(DECODER):
        at = f"decoder.layers.{j}"
        for k, (name, other) in enumerate((("self_attention", None), ("cross_attention", memory))):
            seen = y if other is None else other
            parts = (
                linear(s, f"{at}.{name}.{p}_projection")
                for s, p in ((y, "query"), (seen, "key"), (seen, "value"))
            )
            mixed = attend(*parts, DECODER_HEADS, causal=other is None)
            y = norm(y + linear(mixed, f"{at}.{name}.out_projection"), f"{at}.norm{k + 1}")
        y = norm(y + linear(F.gelu(linear(y, f"{at}.conv1")), f"{at}.conv2"), f"{at}.norm3")
    y = norm(y, "decoder.norm")
    return linear(torch.cat((memory[-1], y.mean(0))), "mlp_head"), linear(y, "classifier")


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("prefix", ["", "module."])
@torch.inference_mode()
def test_every_full_window(load: Callable[..., Any], fixed: bool, prefix: str) -> None:
    weights = checkpoint(fixed)
    content = {"model": {prefix + k: v for k, v in weights.items()}, "args": ARGS}
    card, network = load(content, rate_hz=4)
    assert card.labels == tuple(ARGS.class_index)
    assert card.arguments["positions"] == ("fixed" if fixed else "learned")
    rows = torch.randn(3, 4 * N, C)
    state = network.init_state(3)
    for t in range(4 * N):
        out = network.forward_step(rows[:, t], state)
        if t < N - 1:
            continue
        for b in range(3):  # every stream as if it were alone, also with fixed positions
            logits, future = window(weights, rows[b, t - N + 1 : t + 1])
            torch.testing.assert_close(out.logits[b], logits, atol=1e-5, rtol=0)
            torch.testing.assert_close(out.anticipation[b], future, atol=1e-5, rtol=0)


def test_without_arguments_the_heads_must_be_given(load: Callable[..., Any]) -> None:
    config = {"num_heads": HEADS, "decoder_heads": DECODER_HEADS, "rate_hz": 4}
    with pytest.raises(ModelError, match="does not contain labels"):
        load(checkpoint(), **config)
    with pytest.raises(ModelError, match="does not contain window"):
        load(checkpoint(fixed=True), **config)
    for key in ("num_heads", "decoder_heads"):
        less = {k: v for k, v in config.items() if k != key}
        with pytest.raises(ModelError, match=f"does not contain {key}"):
            load(checkpoint(), **less)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("window", 64, N),
        ("depth", 3, LAYERS),
        ("feedforward", 1024, FF),
        ("num_queries", 8, Q),
        ("decoder_depth", 5, DECODER),
        ("decoder_feedforward", 1024, DECODER_FF),
    ],
)
def test_contradictions_are_errors(
    load: Callable[..., Any], key: str, value: int, says: int
) -> None:
    args = argparse.Namespace(**{k: v for k, v in vars(ARGS).items() if k != "enc_layers"})
    with pytest.raises(ModelError, match=f"{key}={value} contradicts .* tensors say {says}"):
        load({"model": checkpoint(), "args": args}, rate_hz=4, **{key: value})


def test_missing_and_left_over_tensors_are_named(load: Callable[..., Any]) -> None:
    weights = checkpoint()
    del weights["decoder.layers.1.cross_attention.key_projection.bias"]
    weights["merge_fc.weight"] = torch.ones(1)
    with pytest.raises(ModelError) as caught:
        load({"model": weights, "args": ARGS}, rate_hz=4)
    assert "missing: decoder.layers.1.cross_attention.key_projection.bias" in str(caught.value)
    assert "left over: merge_fc.weight" in str(caught.value)
    weights = checkpoint()
    del weights["cls_token"]
    with pytest.raises(ModelError, match="missing: cls_token"):
        load({"model": weights, "args": ARGS}, rate_hz=4)


def test_class_names_must_be_as_many_as_the_classes(load: Callable[..., Any]) -> None:
    args = argparse.Namespace(**{**vars(ARGS), "class_index": ["a", "b"]})
    with pytest.raises(ModelError, match="name 2 classes, it has 6"):
        load({"model": checkpoint(), "args": args}, rate_hz=4)
