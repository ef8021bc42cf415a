"""Encoders, CoOadTR, CoTrans and DeepCoT of every dialect, against what they compute."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.models.build import build
from costream.models.oad.torch_encoder import import_module_encoder
from kit.foreign_actions import DIALECTS, classifier, encoder, window_logits

D, FF, C, HEADS, N = 12, 20, 7, 3, 6
CONFIG: dict[str, Any] = {"num_heads": HEADS, "window": N}
ALONE = {**CONFIG, "activation": "gelu"}
TEN = {**CONFIG, "labels": "gtzan"}  # of ten classes, 4 steps a second
Load = Callable[..., Any]
Reference = Callable[[str], tuple[dict[str, np.ndarray], dict[str, Tensor]]]
their_warning = pytest.mark.filterwarnings("ignore:Positional args:FutureWarning:continual")


@torch.inference_mode()
def steps(network: Any, rows: Tensor) -> Tensor:
    """Return the outputs [B, T, ...] of stepping through rows [B, T, C]."""
    state = network.init_state(rows.shape[0])
    outs = [network.forward_step(row, state) for row in rows.unbind(1)]
    return torch.stack([getattr(out, "logits", out) for out in outs], 1)


def check(network: Any, newest: Callable[[Tensor], Tensor]) -> None:
    """Compare every full window: ``newest`` returns [B, D] for a window [B, N, D]."""
    rows = torch.randn(2, 4 * N, D)
    for t, out in enumerate(steps(network, rows).unbind(1)):
        if t >= N - 1:
            with torch.inference_mode():
                expected = newest(rows[:, t - N + 1 : t + 1])
            torch.testing.assert_close(out, expected, atol=2e-5, rtol=0)


def torch_encoder(depth: int, **options: Any) -> Any:
    layer = nn.TransformerEncoderLayer(
        D, HEADS, FF, 0.1, batch_first=True, **{"activation": "gelu", **options}
    )
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_torch_encoder(
    load: Load,
    perturb: Callable[[Any], Any],
    depth: int,
    norm_first: bool,
    activation: str,
    last: bool,
) -> None:
    module = torch_encoder(depth, norm_first=norm_first, activation=activation)
    module.norm = nn.LayerNorm(D) if last else None
    perturb(module)
    config = {**CONFIG, "activation": activation, "norm_first": norm_first}
    card, network = load(module.state_dict(), **config)
    assert (card.arguments["depth"], card.arguments["final_norm"]) == (depth, last)
    check(network, lambda x: module(x)[:, -1])
    in_memory, tensors = import_module_encoder(module, "test", N)
    assert in_memory.arguments == card.arguments
    check(build(in_memory, tensors)[0].eval(), lambda x: module(x)[:, -1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": nn.GELU("tanh")}, "neither ReLU nor exact GELU"),
        ({"layer_norm_eps": 1e-6}, "LayerNorm eps 1e-06"),
    ],
)
def test_torch_modules_that_the_encoder_cannot_follow(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        import_module_encoder(torch_encoder(2, **change), "test", N)


def test_an_encoder_has_no_labels(load: Load) -> None:
    with pytest.raises(ModelError, match="labels: not applicable, this encoder has no classifier"):
        load(encoder("1.x", 1, D, FF), **ALONE, labels="thumos14")


@pytest.fixture(scope="module")
def co() -> Any:
    return pytest.importorskip("continual", reason="needs the test extra: continual-inference")


@their_warning
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
def test_continual_inference_encoder(
    co: Any, load: Load, perturb: Callable[[Any], Any], depth: int, last: bool
) -> None:
    factory = co.TransformerEncoderLayerFactory(D, HEADS, FF, 0.0, nn.GELU(), sequence_len=N)
    module = perturb(co.TransformerEncoder(factory, depth, nn.LayerNorm(D) if last else None))
    card, network = load(module.state_dict(), **ALONE)
    assert (card.arguments["depth"], card.arguments["final_norm"]) == (depth, last)
    check(network, lambda x: module.forward(x.mT).reshape(2, D, -1)[..., -1])


@their_warning
@pytest.mark.parametrize("kind", ["single_output", "retroactive"])
def test_continual_inference_layer(
    co: Any, load: Load, perturb: Callable[[Any], Any], kind: str
) -> None:
    factory = co.TransformerEncoderLayerFactory(D, HEADS, FF, 0.0, nn.ReLU(), sequence_len=N)
    module = perturb(factory(kind))
    _, network = load(module.state_dict(), **{**ALONE, "activation": "relu"})
    check(network, lambda x: module.forward(x.mT)[..., -1])


@torch.inference_mode()
def check_windows(network: Any, w: dict[str, Tensor], dialect: str, depth: int, heads: int) -> None:
    """Compare every step of a classifier with its window."""
    window = network.receptive_field
    features = torch.randn(window * 2 + 4, w["0.weight"].shape[1])
    for t, logits in enumerate(steps(network, features[None])[0]):
        times = torch.arange(max(0, t - window + 1), t + 1)
        expected = window_logits(w, dialect, depth, heads, features, times)
        torch.testing.assert_close(logits, expected, atol=3e-5, rtol=0)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("rows", [N, 2 * N - 1])
@pytest.mark.parametrize(("dialect", "depth"), DIALECTS)
def test_cooadtr_at_every_step(
    load: Load, tmp_path: Any, dialect: str, depth: int, rows: int, fixed: bool, bias: bool
) -> None:
    weights = classifier(dialect, depth, rows=rows, fixed=fixed, bias=bias)
    (tmp_path / "labels.txt").write_text("\n".join("abcde"), encoding="utf-8")
    card, network = load(weights, **CONFIG, labels=tmp_path / "labels.txt", rate_hz=5)
    assert (card.labels, card.background, card.rate_hz) == (tuple("abcde"), None, 5.0)
    assert card.arguments["positions"] == ("fixed" if fixed else "learned")
    check_windows(network, weights, dialect, depth, HEADS)


@pytest.mark.parametrize("feedforward", [192, 384])
@pytest.mark.parametrize(("dialect", "depth"), DIALECTS)
def test_cotrans_at_every_step(load: Load, dialect: str, depth: int, feedforward: int) -> None:
    sizes = {"inputs": 128, "width": 192, "rows": 192, "classes": 10}
    weights = classifier(dialect, depth, feedforward=feedforward, **sizes)
    weights["1.pe.weight"] *= 0.1
    card, network = load(weights, labels="gtzan", window=10)
    assert (card.architecture, card.rate_hz, card.labels[0]) == ("cotrans", 4.0, "blues")
    assert (card.task, card.arguments["feedforward"]) == ("sound classification", feedforward)
    assert card.limits == (
        "Not in the checkpoint, taken from the published settings: num_heads=16."
    )
    check_windows(network, weights, dialect, depth, 16)
    card, _ = load(weights, labels="gtzan")  # the paper's heads and window, by default
    assert (card.arguments["num_heads"], card.arguments["window"]) == (16, 120)
    assert "num_heads=16, window=120" in card.limits
    card, _ = load(weights, labels="gtzan", num_heads=8, window=60)
    assert (card.arguments["num_heads"], card.arguments["window"], card.limits) == (8, 60, "")


def test_a_training_script_names_heads_window_and_classes(load: Load) -> None:
    names = ["Background", "b", "c", "d", "e"]
    args = argparse.Namespace(num_heads=HEADS, enc_layers=N, class_index=names, hidden_dim=9999)
    content = {"model": classifier("0.17", 1), "args": args}
    card, _ = load(content, rate_hz=4)
    assert (card.arguments["num_heads"], card.arguments["window"]) == (HEADS, N)
    assert (card.labels, card.background) == (tuple(names), "Background")
    with pytest.raises(ModelError, match=r"num_heads=4 contradicts .* arguments say num_heads=3"):
        load(content, rate_hz=4, num_heads=4)


def test_labels_and_background(load: Load, tmp_path: Any) -> None:
    weights, file = classifier("0.17", 1), tmp_path / "labels.txt"
    config = {**CONFIG, "rate_hz": 4}
    for labels, message in (
        ("thumos14", "thumos14 has 22 names, the checkpoint 5 classes"),
        ("thumos15", r"neither one of thumos14, .*, coco, .* nor a readable text file"),
    ):
        with pytest.raises(ModelError, match=message):
            load(weights, **config, labels=labels)
    file.write_text("a\nb\na\nc\nd\n", encoding="utf-8")
    with pytest.raises(ModelError, match=r"labels\.txt: labels given twice: a"):
        load(weights, **config, labels=file)
    file.write_text("a\nb\nc\nd\nbackground\n", encoding="utf-8")
    assert load(weights, **config, labels=file)[0].background == "background"
    assert load(weights, **config, labels=file, background="a")[0].background == "a"
    with pytest.raises(ModelError, match="background=x is not one of the labels"):
        load(weights, **config, labels=file, background="x")
    with pytest.raises(ModelError, match=r"num_heads=5 does not divide .* 12; .* window \("):
        load(weights, num_heads=5, labels=file)
    with pytest.raises(
        ModelError, match=r"neither one of .*; the checkpoint does not contain num_h"
    ):
        load(weights, labels="thumos15")


def deep(depth: int) -> dict[str, Tensor]:
    return classifier("deepcot", depth, classes=10)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_deepcot_of_any_depth(load: Load, depth: int) -> None:
    card, network = load(deep(depth), form="deepcot", **TEN)
    assert (card.architecture, card.arguments["depth"]) == ("deepcot", depth)
    assert network.receptive_field == depth * (N - 1) + 1
    assert card.paper.endswith("2511.17693")


def test_stacks_are_known_by_their_names(load: Load) -> None:
    assert load(deep(3), **TEN)[0].architecture == "deepcot"
    with pytest.raises(ModelError, match=r"stack=exact contradicts .* tensors say deepcot"):
        load(deep(3), stack="exact", **TEN)
    with pytest.raises(ModelError, match="a stack of DeepCoT"):
        load(deep(3), form="cooadtr", **TEN)
    card, _ = load(encoder("deepcot", 3, D, FF), **ALONE)
    assert (card.architecture, card.limits) == ("deepcot-encoder", "")


def test_soft_attention_needs_no_keys(load: Load) -> None:
    weights = deep(2)
    card, network = load(weights, attention="soft", **TEN)
    assert card.arguments["attention"] == "soft"
    theirs = weights["2.layers.1.0.self_attn.in_proj_weight"]
    ours = network.encoder.layers[1].self_attn.in_proj_weight
    assert torch.equal(ours, torch.cat([theirs[:D], theirs[2 * D :]]))
    with pytest.raises(ModelError, match="attention=soft requires DeepCoT"):
        load(classifier("1.x", 1, classes=10), attention="soft", **TEN)


@pytest.mark.parametrize("form", ["cooadtr", "continual", "torch"])
def test_ordinary_encoders_run_as_deepcot(load: Load, form: str) -> None:
    if form == "cooadtr":
        weights, config, twin = classifier("1.x", 2, classes=10), TEN, "deepcot"
    else:
        weights = encoder("1.x" if form == "continual" else "torch", 2, D, FF)
        config = ALONE if form == "continual" else {**ALONE, "norm_first": "false"}
        twin = "deepcot-encoder"
    exact, ordinary = load(weights, **config)
    card, network = load(weights, stack="deepcot", **config)
    assert (exact.limits, card.architecture) == ("", twin)
    assert f"depends on {2 * N - 1} steps" in card.limits
    assert network.receptive_field == 2 * N - 1
    twins = network.state_dict()
    assert all(torch.equal(twins[k], v) for k, v in ordinary.state_dict().items())


def test_one_block_is_the_same_as_deepcot(load: Load) -> None:
    weights = classifier("1.x", 1, classes=10)
    exact, network = load(weights, **TEN)
    card, deep_network = load(weights, stack="deepcot", **TEN)
    assert (exact.architecture, card.architecture, card.limits) == ("cooadtr", "deepcot", "")
    rows = torch.randn(2, 4 * N, C)
    torch.testing.assert_close(steps(deep_network, rows), steps(network, rows))


def test_an_encoder_in_memory_as_deepcot(perturb: Callable[[Any], Any]) -> None:
    module = perturb(torch_encoder(3))
    card, tensors = import_module_encoder(module, "mine", N, stack="deepcot")
    network = build(card, tensors)[0].eval()
    # The first output is over one row, in every block: what the ordinary encoder gives for it.
    x = torch.randn(1, 1, D)
    torch.testing.assert_close(network(x), module(x))
    assert (card.architecture, network.receptive_field) == ("deepcot-encoder", 3 * (N - 1) + 1)


def test_deepcot_of_the_reference_arrays(reference: Reference, load: Load) -> None:
    arrays, weights = reference("deepcot_L3.npz")
    card, network = load(weights, num_heads=4, window=8, labels="gtzan")
    assert (card.architecture, card.limits, card.rate_hz) == ("deepcot", "", 4.0)
    out = steps(network, torch.from_numpy(arrays["x"]).transpose(1, 2))
    first = int(arrays["first_step"])
    assert network.receptive_field == first + 1
    published = torch.from_numpy(arrays["step_out"]).transpose(0, 1)
    torch.testing.assert_close(out[:, first:], published, rtol=0, atol=2e-6)
    # Their chunked form starts early, with zeros in the empty slots; later on it is the same.
    chunked = torch.from_numpy(arrays["forward_steps_out"]).transpose(1, 2)[:, first - 7 :]
    torch.testing.assert_close(out[:, first:], chunked, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["b1_recycling_learned_64", "b2_recycling_fixed_127"])
def test_cooadtr_of_the_reference_arrays(reference: Reference, load: Load, name: str) -> None:
    arrays, weights = reference(f"cooadtr_{name}.npz")
    card, network = load(weights, num_heads=4, window=64, labels="thumos14")
    assert (card.architecture, card.rate_hz, card.background) == ("cooadtr", 4.0, "Background")
    x, published = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["window_out"])
    logits = steps(network, x[None])[0, int(arrays["first_step"]) :]
    torch.testing.assert_close(logits, published, atol=2e-5, rtol=0)
    alone = {k.removeprefix("3."): v for k, v in weights.items() if k.startswith("3.")}
    card, network = load(alone, num_heads=4, window=64, activation="gelu")
    assert card.architecture == "encoder"
    table = weights.get("1.pe.weight", weights.get("1.pe.pattern"))
    rows = nn.functional.linear(x, weights["0.weight"], weights["0.bias"])
    rows = rows + table[torch.arange(len(rows)) % len(table)]  # type: ignore[arg-type, index]
    out = steps(network, rows[None])[0, 63:]
    out = torch.layer_norm(out, (32,), weights["4.fn.weight"], weights["4.fn.bias"])
    logits = nn.functional.linear(out, weights["5.weight"], weights["5.bias"])
    torch.testing.assert_close(logits, published, atol=2e-5, rtol=0)


def test_continual_encoder_of_the_reference_arrays(reference: Reference, load: Load) -> None:
    arrays, weights = reference("co_encoder2_gelu.npz")
    card, network = load(weights, num_heads=4, window=10, activation="gelu")
    assert (card.architecture, card.task, card.labels) == ("encoder", "encoder", ())
    out = steps(network, torch.from_numpy(arrays["x"]).transpose(1, 2))[:, 9:].transpose(0, 1)
    published = torch.from_numpy(arrays["window_out"])
    torch.testing.assert_close(out, published, atol=2e-5, rtol=0)
