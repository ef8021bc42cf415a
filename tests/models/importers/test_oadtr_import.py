"""Official OadTR on random weights, against its arithmetic written out with its own names."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.core.errors import ModelError
from costream.core.label_sets import THUMOS14
from costream.weights_io.file import read_card
from kit.foreign_actions import OADTR, OADTR_DECODER, oadtr
from kit.program import costream

D, N, HEADS = OADTR["width"], OADTR["window"], OADTR["heads"]
DECODER_HEADS = OADTR_DECODER["heads"]
Load = Callable[..., Any]
ARGS = argparse.Namespace(
    num_heads=HEADS,
    decoder_num_heads=DECODER_HEADS,
    enc_layers=N,
    class_index=["Background", "b", "c", "d", "e", "f"],
    positional_encoding_type="learned",
)


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
    for i in range(OADTR["layers"]):
        at = f"encoder.net.{2 * i}.fn"
        q, k, v = linear(norm(x, f"{at}.norm"), f"{at}.fn.qkv").chunk(3, -1)
        x = x + linear(attend(q, k, v, HEADS), f"{at}.fn.proj")
        at = f"encoder.net.{2 * i + 1}.fn"
        hidden = F.gelu(linear(norm(x, f"{at}.norm"), f"{at}.fn.net.0"))
        x = x + linear(hidden, f"{at}.fn.net.3")
    memory = norm(x, "pre_head_ln")
    y = w["decoder_cls_token"][0]
    for j in range(OADTR_DECODER["layers"]):
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
@torch.inference_mode()
def test_every_full_window(load: Load, fixed: bool) -> None:
    weights = oadtr(fixed)
    card, network = load({"model": weights, "args": ARGS}, rate_hz=4)
    assert card.labels == tuple(ARGS.class_index)
    assert card.arguments["positions"] == ("fixed" if fixed else "learned")
    rows = torch.randn(3, 4 * N, OADTR["inputs"])
    state = network.init_state(3)
    for t in range(4 * N):
        out = network.forward_step(rows[:, t], state)
        if t < N - 1:
            continue
        for b in range(3):  # every stream as if it were alone, also with fixed positions
            logits, future = window(weights, rows[b, t - N + 1 : t + 1])
            torch.testing.assert_close(out.logits[b], logits, atol=1e-5, rtol=0)
            torch.testing.assert_close(out.anticipation[b], future, atol=1e-5, rtol=0)


def test_the_window_is_that_of_learned_positions(load: Load) -> None:
    config = {"num_heads": HEADS, "decoder_heads": DECODER_HEADS}
    assert load(oadtr(), **config)[0].arguments["window"] == N
    with pytest.raises(ModelError, match=f"window=64 contradicts .* tensors say {N}"):
        load(oadtr(), **config, window=64)
    assert load(oadtr(fixed=True), **config)[0].arguments["window"] == 64, "the published one"


def test_no_setting_is_needed(tmp_path: Path) -> None:
    torch.save({"model": oadtr(classes=22, width=16)}, tmp_path / "oadtr_checkpoint.pth")
    target = tmp_path / "my.safetensors"
    done = costream("models", "import", tmp_path / "oadtr_checkpoint.pth", "-o", target)
    assert (done.returncode, done.stdout) == (0, f"{target}\n"), done.stderr
    taken = "num_heads=8, decoder_heads=4, rate_hz=4, labels=thumos14"
    assert f"took {taken} from the published settings; override with --config" in done.stderr
    card = read_card(target)
    assert (card.labels, card.background, card.rate_hz) == (THUMOS14.names, "Background", 4.0)
    assert (card.arguments["num_heads"], card.arguments["decoder_heads"]) == (8, 4)
    assert costream("models", "verify", target).returncode == 0


def test_class_names_must_be_as_many_as_the_classes(load: Load) -> None:
    args = argparse.Namespace(**{**vars(ARGS), "class_index": ["a", "b"]})
    with pytest.raises(ModelError, match="name 2 classes, it has 6"):
        load({"model": oadtr(), "args": args}, rate_hz=4)


@torch.inference_mode()
def test_the_reference_arrays(
    reference: Callable[[str], tuple[dict[str, np.ndarray], dict[str, Tensor]]], load: Load
) -> None:
    arrays, weights = reference("oadtr_learned.npz")
    args = argparse.Namespace(num_heads=4, decoder_num_heads=4, enc_layers=64, lr=1e-4)
    card, network = load({"model": weights, "args": args, "epoch": 4}, labels="thumos14")
    assert card.architecture == "oadtr"
    state = network.init_state(1)
    rows = torch.from_numpy(np.concatenate((arrays["rgb"], arrays["flow"]), 1))
    out = [network.forward_step(row[None], state) for row in rows][63:]
    for part, expected in (("logits", "out_x"), ("anticipation", "out_dec")):
        given = torch.cat([getattr(o, part) for o in out])
        torch.testing.assert_close(given, torch.from_numpy(arrays[expected]), atol=1e-5, rtol=0)
