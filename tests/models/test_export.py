"""Steps in ONNX Runtime are ours."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from costream.errors import ModelError
from costream.models.build import save_model
from costream.models.export import export_step
from costream.models.random_init import random_model

onnxruntime = pytest.importorskip("onnxruntime")
SMALL = {"input_width": 12, "embed_dim": 16, "num_heads": 4, "feedforward": 24, "window": 7}
FAMILIES = {
    "cooadtr": {},
    "pre-norm": {"norm_first": True, "activation": "gelu_tanh", "positions": "fixed"},
    "cotrans": {"qkv_bias": False, "out_bias": False, "activation": "relu", "final_norm": False},
    "deepcot": {"depth": 2, "positions": "none"},
}


def _random(architecture, options, path):
    card, network, _ = random_model(architecture, "x", {**SMALL, **options}, None, 0)
    for parameter in network.parameters():  # large enough that the attention is uneven
        parameter.data *= 1.5
    save_model(path, card, network)
    return network.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_500_steps_agree(family, tmp_path):
    path, out = tmp_path / "x.safetensors", tmp_path / "step.onnx"
    architecture = "cooadtr" if family == "pre-norm" else family
    network = _random(architecture, {"num_classes": 5, **FAMILIES[family]}, path)
    names = export_step(str(path), out)
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    inputs = {i.name: np.zeros(i.shape, kinds[i.type]) for i in session.get_inputs()}
    assert list(inputs) == names
    outputs = [o.name for o in session.get_outputs()]
    state, rows = network.init_state(1), torch.randn(500, 1, 12)
    with torch.inference_mode():
        for row in rows:
            found = dict(zip(outputs, session.run(None, {**inputs, "x": row.numpy()}), strict=True))
            inputs = {k: found.get(f"next_{k}") for k in names}
            logits = network.forward_step(row, state).logits
            np.testing.assert_allclose(found["logits"], logits.numpy(), rtol=1e-5, atol=1e-5)
            probabilities = logits.softmax(-1).numpy()
            np.testing.assert_allclose(found["probabilities"], probabilities, atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "options", "message"),
    [
        ("cooadtr", {"depth": 2}, "a new row changes all rows"),
        ("deepcot", {"positions": "rotary"}, "rotations"),
        ("deepcot", {"attention": "soft"}, "not a softmax"),
    ],
)
def test_what_is_not_exported_has_a_reason(architecture, options, message, tmp_path):
    path = tmp_path / "x.safetensors"
    _random(architecture, {"num_classes": 3, **options}, path)
    with pytest.raises(ModelError, match=message):
        export_step(str(path), tmp_path / "step.onnx")
    assert not (tmp_path / "step.onnx").exists()
