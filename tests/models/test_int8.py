"""Int8 weights: bounds of the error, what stays int8, steps as clips, the command."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import costream.nn as co
from costream.core.errors import ModelError
from costream.evaluation.int8_compression import BOUND, compress
from costream.models.build import build, save_model
from costream.models.catalogue import load_model, read_whole
from costream.models.int8 import to_float, to_int8
from costream.models.random_init import random_model
from costream.models.verify import verify
from costream.nn.fast import use_kernels
from costream.nn.int8 import LARGE, Int8Linear, dequantise, quantise
from costream.weights_io.file import read_card, read_weights, write_weights


@pytest.mark.parametrize("shape", [(6, 40), (5, 3, 3, 2)])
def test_rows_are_off_by_half_a_scale(shape):
    weight = torch.randn(shape)
    weight[1] = 0
    values, scale = quantise(weight)
    assert values.dtype == torch.int8
    largest = values.flatten(1).abs().amax(1).tolist()
    assert largest == [127 if k != 1 else 0 for k in range(len(weight))]
    error = (dequantise(values, scale) - weight).abs().flatten(1).amax(1)
    assert (error <= 0.5001 * scale).all()


@pytest.mark.parametrize("rows", [(), (1,), (4,), (3, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_compiled_rows_are_the_product(rows, bias):
    layer = nn.Linear(70, 33, bias=bias)
    small = Int8Linear(*quantise(layer.weight), layer.bias)
    x = torch.randn(*rows, 70)
    with torch.inference_mode():
        y = small(x)
        with use_kernels(False):
            torch.testing.assert_close(small(x), y, rtol=1e-5, atol=1e-5)
    expected = nn.functional.linear(x, dequantise(small.weight, small.scale), layer.bias)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("depth", [1, 2])
def test_large_layers_stay_int8_and_step_as_their_clip(depth):
    sizes = {"embed_dim": 512, "feedforward": 1024, "depth": depth, "window": 6, "num_classes": 3}
    card, network, _ = random_model("cooadtr", "x", {"input_width": 8, **sizes}, None, 0)
    tensors = {f"network.{k}": v for k, v in network.state_dict().items()}
    card = replace(card, compression={"int8": {}})
    small = build(card, to_int8(tensors))[0].eval()
    plain = build(replace(card, compression={}), to_float(to_int8(tensors)))[0].eval()
    kept = [m for m in small.modules() if isinstance(m, Int8Linear)]
    # linear1 and linear2 of each block, and the packed projection of all but a stack's last
    assert len(kept) == (3 if depth == 1 else 5)
    assert all(layer.weight.numel() >= LARGE for layer in kept)
    assert small.count_macs() == plain.count_macs()
    clip = torch.randn(1, 9, 8)
    with torch.inference_mode():
        expected, state = plain(clip).logits, small.init_state(1)
        steps = torch.stack([small.forward_step(x, state).logits for x in clip.unbind(1)], 1)
        torch.testing.assert_close(steps, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(small(clip).logits, expected, rtol=1e-4, atol=1e-4)


def test_files_are_a_quarter_and_say_what_changed(tmp_path):
    card, network, _ = random_model(
        "cooadtr", "x", {"input_width": 64, "embed_dim": 128, "num_classes": 3}, None, 0
    )
    path, small = tmp_path / "x.safetensors", tmp_path / "small.safetensors"
    save_model(path, card, network)
    facts = compress(str(path), small)
    assert read_card(small).compression["int8"] == facts
    assert facts["measured_on"] == "noise"
    assert 0 < facts["score_difference"] <= BOUND
    assert facts["float16"] == []
    assert small.stat().st_size < 0.32 * path.stat().st_size
    assert verify(small) == read_weights(small).sha256
    assert load_model(str(small)).info.card.name == "small"
    with pytest.raises(ModelError, match="int8 already"):
        compress(str(small), tmp_path / "again.safetensors")
    stored, whole = read_weights(small), read_whole(str(small))
    assert whole.card.compression == {}
    assert {k: v.shape for k, v in whole.tensors.items()} == {
        k: v.shape for k, v in read_weights(path).tensors.items()
    }
    unscaled = {k: v for k, v in stored.tensors.items() if not k.endswith("linear1.weight_scale")}
    other = tmp_path / "unscaled.safetensors"
    write_weights(other, stored.card, unscaled)
    with pytest.raises(ModelError, match=r"scales of network.* do not fit"):
        load_model(str(other))
    damaged = {k: v for k, v in stored.tensors.items() if not k.endswith("linear1.weight")}
    write_weights(small, stored.card, damaged)
    with pytest.raises(ModelError, match=r"linear1\.weight"):
        load_model(str(small))


def test_matrices_that_change_a_score_much_stay_float16(tmp_path):
    card, network, _ = random_model(
        "cooadtr", "x", {"input_width": 64, "embed_dim": 64, "num_classes": 3}, None, 0
    )
    with torch.no_grad():
        network.head.weight.mul_(40)  # what comes before matters in its last digits
    path, small = tmp_path / "x.safetensors", tmp_path / "small.safetensors"
    save_model(path, card, network)
    facts = compress(str(path), small)
    assert facts["score_difference"] <= BOUND
    assert facts["tensors"] > 0
    stored, kept = read_weights(small).tensors, facts["float16"]
    assert kept
    assert {stored[name].dtype for name in kept} == {torch.float16}
    assert not {f"{name}_scale" for name in kept} & stored.keys()
    assert verify(small)


def test_a_converted_network_steps_with_int8_weights():
    layer = nn.TransformerEncoderLayer(64, 4, 128, activation="gelu", batch_first=True)
    module = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(64, 48)).eval()
    clip = torch.randn(1, 8, 64)
    networks = {
        "converted": co.convert(module, clip, 1, approximate=["windowed attention"], window=8),
        "deepcot": co.DeepEncoder(co.EncoderConfig(64, 4, 128, 2, 8), rotary=True).eval(),
    }
    before = module(clip)
    for name, net in networks.items():
        with torch.no_grad():
            exact = net.forward_steps(clip, net.init_state())
            assert co.to_int8(net, least=1000) is net
            steps = net.forward_steps(clip, net.init_state())
        change = (steps - exact).norm() / exact.norm()
        assert 1e-5 < change < 0.05, name
    torch.testing.assert_close(module(clip), before)
    small = co.to_int8(nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 2000)), least=1000)
    assert [type(each) for each in small] == [nn.Linear, Int8Linear]
