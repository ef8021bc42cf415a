"""Encoders of torch and of continual-inference 1.x, freshly made, against what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from costream.errors import ModelError
from costream.importers.run import import_module_encoder
from costream.models.build import build

D, FF, HEADS, N = 12, 20, 3, 5
their_warning = pytest.mark.filterwarnings("ignore:Positional args:FutureWarning:continual")
CONFIG = {"num_heads": HEADS, "window": N, "activation": "gelu"}


@torch.inference_mode()
def check(network: Any, newest: Callable[[Tensor], Tensor]) -> None:
    """Compare every full window: ``newest`` gives [B, D] for a window [B, N, D]."""
    rows = torch.randn(2, 4 * N, D)
    state = network.init_state(2)
    for t in range(4 * N):
        out = network.forward_step(rows[:, t], state)
        if t >= N - 1:
            expected = newest(rows[:, t - N + 1 : t + 1])
            torch.testing.assert_close(out, expected, atol=2e-5, rtol=0)


def torch_encoder(depth: int, norm_first: bool, activation: str, last: bool) -> Any:
    layer = nn.TransformerEncoderLayer(
        D, HEADS, FF, 0.1, activation, batch_first=True, norm_first=norm_first
    )
    norm = nn.LayerNorm(D) if last else None
    return nn.TransformerEncoder(layer, depth, norm, enable_nested_tensor=False)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_torch_encoder(
    load: Callable[..., Any],
    perturb: Callable[[Any], Any],
    depth: int,
    norm_first: bool,
    activation: str,
    last: bool,
) -> None:
    module = perturb(torch_encoder(depth, norm_first, activation, last))
    card, network = load(
        module.state_dict(), num_heads=HEADS, window=N, activation=activation, norm_first=norm_first
    )
    assert (card.arguments["depth"], card.arguments["final_norm"]) == (depth, last)
    check(network, lambda x: module(x)[:, -1])
    card_2, tensors = import_module_encoder(module, "test", N)
    assert card_2.arguments == card.arguments
    check(build(card_2, tensors)[0].eval(), lambda x: module(x)[:, -1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": nn.GELU("tanh")}, "neither ReLU nor exact GELU"),
        ({"layer_norm_eps": 1e-6}, "LayerNorm eps 1e-06"),
    ],
)
def test_torch_modules_that_the_encoder_cannot_follow(change: dict[str, Any], message: str) -> None:
    layer = nn.TransformerEncoderLayer(D, HEADS, FF, batch_first=True, **change)
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    with pytest.raises(ModelError, match=message):
        import_module_encoder(module, "test", N)


@pytest.mark.parametrize("key", ["num_heads", "window", "activation", "norm_first"])
def test_what_the_state_dict_does_not_say(load: Callable[..., Any], key: str) -> None:
    config = {**CONFIG, "norm_first": "false"}
    del config[key]
    weights = torch_encoder(2, False, "gelu", True).state_dict()
    with pytest.raises(ModelError, match=f"does not contain {key}"):
        load(weights, **config)


def test_left_over_and_missing_tensors_are_named(load: Callable[..., Any]) -> None:
    config = {**CONFIG, "norm_first": "true"}
    weights = torch_encoder(3, True, "gelu", False).state_dict()
    del weights["layers.1.linear2.bias"]
    weights["classifier.weight"] = torch.ones(2, D)
    with pytest.raises(
        ModelError, match=r"missing: layers\.1\.linear2\.bias; left over: classifier\.weight"
    ):
        load(weights, **config)


def test_an_encoder_has_no_labels(load: Callable[..., Any]) -> None:
    weights = torch_encoder(1, False, "gelu", False).state_dict()
    with pytest.raises(ModelError, match="labels: not applicable, this encoder has no classifier"):
        load(weights, **CONFIG, norm_first="false", labels="thumos14")


@pytest.fixture(scope="module")
def co() -> Any:
    return pytest.importorskip("continual", reason="needs the test extra: continual-inference")


@their_warning
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
def test_continual_inference_encoder(
    co: Any, load: Callable[..., Any], perturb: Callable[[Any], Any], depth: int, last: bool
) -> None:
    factory = co.TransformerEncoderLayerFactory(D, HEADS, FF, 0.0, nn.GELU(), sequence_len=N)
    module = perturb(co.TransformerEncoder(factory, depth, nn.LayerNorm(D) if last else None))
    card, network = load(module.state_dict(), **CONFIG)
    assert (card.arguments["depth"], card.arguments["final_norm"]) == (depth, last)
    check(network, lambda x: module.forward(x.mT).reshape(2, D, -1)[..., -1])


@their_warning
@pytest.mark.parametrize("kind", ["single_output", "retroactive"])
def test_continual_inference_layer(
    co: Any, load: Callable[..., Any], perturb: Callable[[Any], Any], kind: str
) -> None:
    factory = co.TransformerEncoderLayerFactory(D, HEADS, FF, 0.0, nn.ReLU(), sequence_len=N)
    module = perturb(factory(kind))
    _, network = load(module.state_dict(), **{**CONFIG, "activation": "relu"})
    check(network, lambda x: module.forward(x.mT)[..., -1])
