"""CoOadTR and its 0.17 encoder on random weights, against plain attention over each window."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.errors import ModelError

D, FF, C, K, N, HEADS = 12, 20, 7, 5, 6, 3
FIRST = ("0.0.1", "0.1.fn.0", "0.1.fn.1.fn.0", "0.1.fn.1.fn.3", "0.1.fn.2")
SINGLE = ("0.1", "1.fn", "2.1.0", "2.1.3", "3.fn")


def block_names(depth: int) -> list[tuple[str, ...]]:
    return [SINGLE] if depth == 1 else [FIRST, tuple(f"1.fn.{name}" for name in SINGLE)]


def checkpoint(depth: int, rows: int, fixed: bool = False, bias: bool = False) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}

    def linear(name: str, rows: int, columns: int) -> None:
        weights[f"{name}.weight"] = torch.randn(rows, columns) / columns**0.5
        weights[f"{name}.bias"] = 0.3 * torch.randn(rows)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = 1 + 0.3 * torch.randn(D)
        weights[f"{name}.bias"] = 0.3 * torch.randn(D)

    linear("0", D, C)
    weights["1.pe.pattern" if fixed else "1.pe.weight"] = torch.randn(rows, D)
    for attention, norm1, linear1, linear2, norm2 in block_names(depth):
        weights[f"3.{attention}.in_proj_weight"] = torch.randn(3 * D, D) / D**0.5
        weights[f"3.{attention}.out_proj.weight"] = torch.randn(D, D) / D**0.5
        if bias:
            weights[f"3.{attention}.in_proj_bias"] = 0.3 * torch.randn(3 * D)
            weights[f"3.{attention}.out_proj.bias"] = 0.3 * torch.randn(D)
        norm(f"3.{norm1}")
        linear(f"3.{linear1}", FF, D)
        linear(f"3.{linear2}", D, FF)
        norm(f"3.{norm2}")
    norm("4.fn")
    linear("5", K, D)
    return weights


def window_logits(w: dict[str, Tensor], depth: int, features: Tensor, end: int) -> Tensor:
    """Logits [K] after row ``end``, by the ordinary encoder over the last N rows."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (D,), w[f"{name}.weight"], w[f"{name}.bias"])

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    table = w.get("1.pe.weight", w.get("1.pe.pattern"))
    assert table is not None
    times = torch.arange(max(0, end - N + 1), end + 1)
    x = linear(features[times], "0") + table[times % len(table)]
    for attention, norm1, linear1, linear2, norm2 in block_names(depth):
        name = f"3.{attention}"
        qkv = F.linear(x, w[f"{name}.in_proj_weight"], w.get(f"{name}.in_proj_bias"))
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(0, 1) for t in qkv.chunk(3, -1))
        mixed = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
        x = norm(x + linear(mixed.transpose(0, 1).flatten(1), f"{name}.out_proj"), f"3.{norm1}")
        x = norm(x + linear(F.gelu(linear(x, f"3.{linear1}")), f"3.{linear2}"), f"3.{norm2}")
    return linear(norm(x[-1], "4.fn"), "5")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("rows", [N, 2 * N - 1])
@pytest.mark.parametrize("depth", [1, 2])
@torch.inference_mode()
def test_every_step_equals_its_window(
    load: Callable[..., Any], tmp_path: Any, depth: int, rows: int, fixed: bool, bias: bool
) -> None:
    weights = checkpoint(depth, rows, fixed, bias)
    (tmp_path / "labels.txt").write_text("\n".join("abcde"), encoding="utf-8")
    card, network = load(
        weights, num_heads=HEADS, window=N, labels=tmp_path / "labels.txt", rate_hz=5
    )
    assert (card.labels, card.background, card.rate_hz) == (tuple("abcde"), None, 5.0)
    assert card.arguments["positions"] == ("fixed" if fixed else "learned")
    features = torch.randn(4 * N, C)
    state = network.init_state(1)
    for t in range(len(features)):
        logits = network.forward_step(features[t : t + 1], state).logits[0]
        expected = window_logits(weights, depth, features, t)
        torch.testing.assert_close(logits, expected, atol=2e-5, rtol=0)


def test_arguments_of_the_training_script_say_heads_window_and_classes(
    load: Callable[..., Any],
) -> None:
    names = ["Background", "b", "c", "d", "e"]
    args = argparse.Namespace(num_heads=HEADS, enc_layers=N, class_index=names, hidden_dim=9999)
    card, _ = load({"model": checkpoint(1, N), "args": args}, rate_hz=4)
    assert (card.arguments["num_heads"], card.arguments["window"]) == (HEADS, N)
    assert (card.labels, card.background) == (tuple(names), "Background")
    with pytest.raises(ModelError, match=r"num_heads=4 contradicts .* arguments say num_heads=3"):
        load({"model": checkpoint(1, N), "args": args}, rate_hz=4, num_heads=4)


CONFIG = {"num_heads": HEADS, "window": N, "rate_hz": 4}


@pytest.mark.parametrize("key", ["num_heads", "window", "labels"])
def test_what_is_not_said_must_be_given(load: Callable[..., Any], key: str) -> None:
    config: dict[str, Any] = {**CONFIG, "labels": "thumos14"}
    del config[key]
    with pytest.raises(ModelError, match=f"does not contain {key} .*--config {key}="):
        load(checkpoint(1, N), **config)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("embed_dim", 24, D),
        ("input_width", 3072, C),
        ("feedforward", 1024, FF),
        ("depth", 2, 1),
        ("num_positions", 9, N),
        ("num_classes", 22, K),
    ],
)
def test_contradictions_are_errors(
    load: Callable[..., Any], key: str, value: int, says: int
) -> None:
    with pytest.raises(ModelError, match=f"{key}={value} contradicts .* tensors say {says}"):
        load(checkpoint(1, N), **CONFIG, **{key: value})


def test_missing_left_over_and_misshapen_tensors_are_named(load: Callable[..., Any]) -> None:
    weights = checkpoint(2, N)
    del weights["3.0.1.fn.1.fn.3.bias"]
    weights["mlp.weight"] = torch.ones(1)
    with pytest.raises(ModelError, match=r"missing: 3\.0\.1\.fn\.1\.fn\.3\.bias; left over: mlp"):
        load(weights, **CONFIG)
    weights = checkpoint(1, N)
    weights["3.1.fn.bias"] = torch.ones(D + 1)
    with pytest.raises(ModelError, match=r"3\.1\.fn\.bias is \(13,\), not \(12,\)"):
        load(weights, **CONFIG)
    weights = checkpoint(1, N)
    del weights["5.weight"]
    with pytest.raises(ModelError, match=r"missing: 5\.weight"):
        load(weights, **CONFIG)
    with pytest.raises(ModelError, match="num_heads=5 does not divide the token width 12"):
        load(checkpoint(1, N), **{**CONFIG, "num_heads": 5})


def test_labels_must_be_as_many_as_the_classes(load: Callable[..., Any], tmp_path: Any) -> None:
    with pytest.raises(ModelError, match="thumos14 has 22 names, the checkpoint 5 classes"):
        load(checkpoint(1, N), **CONFIG, labels="thumos14")
    wrong = r"neither one of thumos14, .*, coco, .* nor a readable text file"
    with pytest.raises(ModelError, match=wrong):
        load(checkpoint(1, N), **CONFIG, labels="thumos15")
    (tmp_path / "labels.txt").write_text("a\nb\na\nc\nd\n", encoding="utf-8")
    with pytest.raises(ModelError, match=r"labels\.txt: labels given twice: a"):
        load(checkpoint(1, N), **CONFIG, labels=tmp_path / "labels.txt")


def test_rate_and_background(load: Callable[..., Any], tmp_path: Any) -> None:
    (tmp_path / "labels.txt").write_text("a\nb\nc\nd\nbackground\n", encoding="utf-8")
    config: dict[str, Any] = {**CONFIG, "labels": tmp_path / "labels.txt"}
    assert load(checkpoint(1, N), **config)[0].background == "background"
    assert load(checkpoint(1, N), **config, background="a")[0].background == "a"
    with pytest.raises(ModelError, match="background=x is not one of the labels"):
        load(checkpoint(1, N), **config, background="x")
    del config["rate_hz"]
    with pytest.raises(ModelError, match="does not contain rate_hz"):
        load(checkpoint(1, N), **config)
