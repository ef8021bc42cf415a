"""DeepCoT's own checkpoints, and other encoders that are to run as DeepCoT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from costream.errors import ModelError
from costream.importers.run import import_module_encoder
from costream.models.build import build

D, FF, C, K, N, HEADS = 16, 24, 12, 10, 8, 4
CONFIG: dict[str, Any] = {"num_heads": HEADS, "window": N, "labels": "gtzan"}


def block(at: str, retroactive: bool = False) -> dict[str, Tensor]:
    """A layer of continual-inference 1.x."""
    after, ff = (f"{at}1.fn.", "_ff_block.fn") if retroactive else (f"{at}1.", "_ff_block.1")
    norms = [f"{after}{name}{'' if retroactive else '.fn'}" for name in ("norm1", "norm2")]
    return {
        f"{at}0.self_attn.in_proj_weight": torch.randn(3 * D, D) / D**0.5,
        f"{at}0.self_attn.in_proj_bias": 0.3 * torch.randn(3 * D),
        **linear(f"{at}0.self_attn.out_proj", D, D),
        **linear(f"{after}{ff}.linear1", FF, D),
        **linear(f"{after}{ff}.linear2", D, FF),
        **{f"{name}.weight": 1 + 0.3 * torch.randn(D) for name in norms},
        **{f"{name}.bias": 0.3 * torch.randn(D) for name in norms},
    }


def linear(name: str, rows: int, columns: int) -> dict[str, Tensor]:
    return {
        f"{name}.weight": torch.randn(rows, columns) / columns**0.5,
        f"{name}.bias": 0.3 * torch.randn(rows),
    }


def classifier(encoder: dict[str, Tensor], width: int = C, rows: int = D) -> dict[str, Tensor]:
    """The audio networks' ``Sequential`` around an encoder whose names begin with ``2.``."""
    return {
        **linear("0", D, width),
        "1.pe.weight": torch.randn(rows, D),
        **encoder,
        "3.fn.weight": 1 + 0.3 * torch.randn(D),
        "3.fn.bias": 0.3 * torch.randn(D),
        **linear("4", K, D),
    }


def deep(depth: int) -> dict[str, Tensor]:
    if depth == 1:
        return classifier(block("2."))
    blocks = [block(f"2.layers.{i}.") for i in range(depth)]
    return classifier({name: value for part in blocks for name, value in part.items()})


@torch.inference_mode()
def steps(network: Any, rows: Tensor) -> Tensor:
    state = network.init_state(rows.shape[0])
    return torch.stack([network.forward_step(row, state).logits for row in rows.unbind(1)], 1)


def test_reference_arrays(
    reference: Callable[[str], tuple[dict[str, np.ndarray], dict[str, Tensor]]],
    load: Callable[..., Any],
) -> None:
    arrays, weights = reference("deepcot_L3.npz")
    card, network = load(weights, **CONFIG)
    assert (card.architecture, card.limits, card.rate_hz) == ("deepcot", "", 4.0)
    rows = torch.from_numpy(arrays["x"]).transpose(1, 2)
    out = steps(network, rows)
    first = int(arrays["first_step"])
    assert network.receptive_field == first + 1
    published = torch.from_numpy(arrays["step_out"]).transpose(0, 1)
    torch.testing.assert_close(out[:, first:], published, rtol=0, atol=2e-6)
    # Their chunked form starts early, with zeros in the empty slots; later on it is the same.
    chunked = torch.from_numpy(arrays["forward_steps_out"]).transpose(1, 2)[:, first - (N - 1) :]
    torch.testing.assert_close(out[:, first:], chunked, rtol=0, atol=2e-6)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_any_depth(load: Callable[..., Any], depth: int) -> None:
    card, network = load(deep(depth), form="deepcot", **CONFIG)
    assert (card.architecture, card.arguments["depth"]) == ("deepcot", depth)
    assert network.receptive_field == depth * (N - 1) + 1
    assert card.paper.endswith("2511.17693")


def test_stacks_are_known_by_their_names(load: Callable[..., Any]) -> None:
    assert load(deep(3), **CONFIG)[0].architecture == "deepcot"
    with pytest.raises(ModelError, match=r"stack=exact contradicts .* tensors say deepcot"):
        load(deep(3), stack="exact", **CONFIG)
    with pytest.raises(ModelError, match="a stack of DeepCoT"):
        load(deep(3), form="cooadtr", **CONFIG)
    alone = {k.removeprefix("2."): v for k, v in deep(3).items() if k.startswith("2.")}
    card, _ = load(alone, num_heads=HEADS, window=N, activation="gelu")
    assert (card.architecture, card.limits) == ("deepcot-encoder", "")


def test_soft_attention_needs_no_keys(load: Callable[..., Any]) -> None:
    weights = deep(2)
    card, network = load(weights, attention="soft", **CONFIG)
    assert card.arguments["attention"] == "soft"
    theirs = weights["2.layers.1.0.self_attn.in_proj_weight"]
    ours = network.encoder.layers[1].self_attn.in_proj_weight
    assert torch.equal(ours, torch.cat([theirs[:D], theirs[2 * D :]]))
    with pytest.raises(ModelError, match="attention=soft requires DeepCoT"):
        load(classifier(block("2.")), attention="soft", **CONFIG)


@pytest.mark.parametrize("form", ["cooadtr", "continual", "torch"])
def test_ordinary_encoders_run_as_deepcot(load: Callable[..., Any], form: str) -> None:
    if form == "cooadtr":
        second = block("2.layers.1.fn.")
        weights = classifier({**block("2.layers.0.", retroactive=True), **second})
        config, twin = CONFIG, "deepcot"
    elif form == "continual":
        weights = {**block("layers.0.", retroactive=True), **block("layers.1.fn.")}
        config, twin = {"num_heads": HEADS, "window": N, "activation": "gelu"}, "deepcot-encoder"
    else:
        layer = nn.TransformerEncoderLayer(D, HEADS, FF, activation="gelu", batch_first=True)
        weights = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).state_dict()
        config = {"num_heads": HEADS, "window": N, "activation": "gelu", "norm_first": "false"}
        twin = "deepcot-encoder"
    exact, ordinary = load(weights, **config)
    card, network = load(weights, stack="deepcot", **config)
    assert (exact.limits, card.architecture) == ("", twin)
    assert f"depends on {2 * N - 1} steps" in card.limits
    assert network.receptive_field == 2 * N - 1
    twins = network.state_dict()
    assert all(torch.equal(twins[k], v) for k, v in ordinary.state_dict().items())


def test_one_block_stays_what_it_is(load: Callable[..., Any]) -> None:
    weights = classifier(block("2."))
    exact, network = load(weights, **CONFIG)
    card, deep_network = load(weights, stack="deepcot", **CONFIG)
    assert (exact.architecture, card.architecture, card.limits) == ("cooadtr", "deepcot", "")
    rows = torch.randn(2, 4 * N, C)
    torch.testing.assert_close(steps(deep_network, rows), steps(network, rows))


def test_an_encoder_in_memory(perturb: Callable[[Any], Any]) -> None:
    layer = nn.TransformerEncoderLayer(D, HEADS, FF, activation="gelu", batch_first=True)
    module = perturb(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    card, tensors = import_module_encoder(module, "mine", N, stack="deepcot")
    network = build(card, tensors)[0].eval()
    # The first output is over one row, in every block: what the ordinary encoder gives for it.
    x = torch.randn(1, 1, D)
    torch.testing.assert_close(network(x), module(x))
    assert (card.architecture, network.receptive_field) == ("deepcot-encoder", 3 * (N - 1) + 1)
