"""Importers against the outputs of the existing implementations, step by step."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

Reference = Callable[[str], tuple[dict[str, np.ndarray], dict[str, Tensor]]]


@torch.inference_mode()
def steps(network: Any, rows: np.ndarray) -> list[Any]:
    """Outputs of stepping through rows [T, B, C]."""
    state = network.init_state(rows.shape[1])
    return [network.forward_step(torch.from_numpy(row), state) for row in rows]


@pytest.mark.parametrize("name", ["b1_recycling_learned_64", "b2_recycling_fixed_127"])
def test_cooadtr(reference: Reference, load: Callable[..., Any], name: str) -> None:
    arrays, weights = reference(f"cooadtr_{name}.npz")
    card, network = load(weights, num_heads=4, window=64, labels="thumos14")
    assert (card.architecture, card.rate_hz, card.background) == ("cooadtr", 4.0, "Background")
    out = steps(network, arrays["x"][:, None])[int(arrays["first_step"]) :]
    logits = torch.cat([o.logits for o in out]).numpy()
    np.testing.assert_allclose(logits, arrays["window_out"], atol=2e-5, rtol=0)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_oadtr_with_its_arguments(
    reference: Reference, load: Callable[..., Any], prefix: str
) -> None:
    arrays, weights = reference("oadtr_learned.npz")
    args = argparse.Namespace(num_heads=4, decoder_num_heads=4, enc_layers=64, lr=1e-4)
    content = {"model": {prefix + k: v for k, v in weights.items()}, "args": args, "epoch": 4}
    card, network = load(content, labels="thumos14")
    assert card.architecture == "oadtr"
    rows = np.concatenate((arrays["rgb"], arrays["flow"]), 1)[:, None]
    out = steps(network, rows)[63:]
    logits = torch.cat([o.logits for o in out]).numpy()
    future = torch.cat([o.anticipation for o in out]).numpy()
    np.testing.assert_allclose(logits, arrays["out_x"], atol=1e-5, rtol=0)
    np.testing.assert_allclose(future, arrays["out_dec"], atol=1e-5, rtol=0)


def test_continual_encoder_of_two_blocks(reference: Reference, load: Callable[..., Any]) -> None:
    arrays, weights = reference("co_encoder2_gelu.npz")
    card, network = load(weights, num_heads=4, window=10, activation="gelu")
    assert (card.architecture, card.task, card.labels) == ("encoder", "encoder", ())
    out = torch.stack(steps(network, arrays["x"].transpose(2, 0, 1).copy())[9:]).numpy()
    np.testing.assert_allclose(out, arrays["window_out"], atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "at"), [("b1_recycling_learned_64", "3."), ("b2_recycling_fixed_127", "3.")]
)
def test_017_encoder_alone_is_the_one_in_cooadtr(
    reference: Reference, load: Callable[..., Any], name: str, at: str
) -> None:
    arrays, weights = reference(f"cooadtr_{name}.npz")
    alone = {k.removeprefix(at): v for k, v in weights.items() if k.startswith(at)}
    card, encoder = load(alone, num_heads=4, window=64, activation="gelu")
    assert card.architecture == "encoder"
    projected = arrays["x"] @ weights["0.weight"].numpy().T + weights["0.bias"].numpy()
    table = weights.get("1.pe.weight", weights.get("1.pe.pattern")).numpy()
    rows = projected + table[np.arange(len(projected)) % len(table)]
    out = torch.cat(steps(encoder, rows[:, None])[63:])
    out = torch.layer_norm(out, (32,), weights["4.fn.weight"], weights["4.fn.bias"])
    logits = torch.nn.functional.linear(out, weights["5.weight"], weights["5.bias"])
    np.testing.assert_allclose(logits.numpy(), arrays["window_out"], atol=2e-5, rtol=0)
