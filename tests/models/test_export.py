"""Exported steps, in ONNX Runtime and as programs of torch, are ours."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from costream.core.errors import ModelError, UsageError
from costream.core.records import IMAGE_CLASSIFICATION
from costream.models.build import build, save_model
from costream.models.catalogue import read_model
from costream.models.export import export_step
from costream.models.exporting.mobile import why_not_linear
from costream.models.frontend import load_frontend
from costream.models.images import Pixels
from costream.models.oad.linear import LinearClassifier
from costream.models.objects.nanodet import boxes_at
from costream.models.pose.blazepose import LITE, BlazePose
from costream.models.random_init import random_model
from costream.models.video.efficientnet_lite import EfficientNetLite
from costream.weights_io.card import Card

onnxruntime = pytest.importorskip("onnxruntime")
TOKENS = {"input_width": 12, "embed_dim": 16, "num_heads": 4, "feedforward": 24, "window": 7}
JOINTS = {"joints": 4, "bones": [[0, 1], [2, 1], [3, 2]], "centre": 1, "persons": 2, "pool": 5}
JOINTS |= {"widths": [6, 6, 9], "strides": [1, 1, 1], "kernel": 3}
X3D = {"kind": "x3d", "size": 19, "widths": (8, 12), "depths": (1, 2), "stem_width": 4}
X3D |= {"head": (6, 10), "pool": 4}
COSLOW = {"kind": "slow", "size": 17, "widths": (8, 8, 12), "depths": (1, 1, 2), "stem_width": 4}
COSLOW |= {"head": (), "pool": 3}
MOVINET = {"size": 22, "stem": 8, "outputs": [8, 12], "head": 16, "hidden": 8, "window": 4}
MOVINET |= {"blocks": [[[16, 1, 5]], [[24, 3, 3], [16, 5, 3]]]}
DETECTOR = {"classes": 3, "stages": [[8, 1], [12, 2], [16, 1]], "width": 8}
DETECTOR |= {"frontend.box": [64, 96]}
FAMILIES = {
    "cooadtr": TOKENS,
    "pre-norm": {**TOKENS, "norm_first": True, "activation": "gelu_tanh", "positions": "fixed"},
    "cotrans": {**TOKENS, "qkv_bias": False, "out_bias": False, "final_norm": False},
    "relu": {**TOKENS, "activation": "relu"},
    "deepcot": {**TOKENS, "depth": 2, "positions": "none", "skip": True},
    "stack": {**TOKENS, "depth": 3},
    "rotary": {**TOKENS, "depth": 2, "positions": "rotary"},
    "oadtr": {
        **TOKENS,
        "depth": 2,
        "decoder_depth": 2,
        "decoder_feedforward": 12,
        "num_queries": 3,
    },
    "oadtr-fixed": {
        **TOKENS,
        "depth": 1,
        "decoder_depth": 1,
        "decoder_feedforward": 12,
        "positions": "fixed",
    },
    "oadtr-bare": {**TOKENS, "depth": 2, "decoder_depth": 0, "class_token": 2},
    "oadtr-last": {**TOKENS, "depth": 2, "decoder_depth": 0, "class_token": 0},
    "miniroad": {"input_width": 12, "embed_dim": 16, "hidden": 8},
    "costgcn": {**JOINTS, "padding": "causal", "statistics": True, "strides": [1, 2, 1]},
    "costgcn-s1": {**JOINTS, "padding": "none", "conv_first": True},
    "cox3d": X3D,
    "cox3d-copies": {**X3D, "start": "replicate"},
    "coslow": COSLOW,
    "movinet": MOVINET,
    "yamnet": {"widths": (4,) * 14},
    "efficientat": {"width": 0.1, "hop_frames": 40, "window_frames": 210},
}
SHAPES = {
    "cox3d": (3, 19, 19),
    "coslow": (3, 17, 17),
    "movinet": (3, 22, 22),
    "yamnet": (48, 64),
    "efficientat": (40, 128),
}
ARCHITECTURES = {
    "pre-norm": "cooadtr",
    "relu": "cotrans",
    "stack": "cooadtr",
    "rotary": "deepcot",
    "oadtr-fixed": "oadtr",
    "oadtr-bare": "oadtr",
    "oadtr-last": "oadtr",
    "costgcn-s1": "costgcn",
    "cox3d-copies": "cox3d",
}


def _random(architecture, options, path):
    card, network, frontend = random_model(architecture, "x", options, None, 0)
    if hasattr(network, "encoder"):
        for parameter in network.parameters():  # large enough that the attention is uneven
            parameter.data *= 1.5
    if architecture in ("yamnet", "efficientat"):
        network.classifier.weight.data *= 0.01  # logits of hundreds round by more than 1e-5
    if getattr(network, "reading", None) is not None:
        nn.init.normal_(network.reading.weight, std=0.1)
    save_model(path, card, network, frontend)
    return network.eval()


class _Onnx:
    """A step in ONNX Runtime with its state."""

    def __init__(self, path, names):
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
        inputs = self._session.get_inputs()
        self._inputs = {i.name: np.zeros(_sizes(i.shape), kinds[i.type]) for i in inputs}
        self._outputs = [o.name for o in self._session.get_outputs()]
        assert list(self._inputs) == names

    def step(self, x):
        given = self._session.run(None, {**self._inputs, "x": x.numpy()})
        found = dict(zip(self._outputs, given, strict=True))
        self._inputs = {k: found.get(f"next_{k}") for k in self._inputs}
        return found


def _sizes(shape):
    return [size if isinstance(size, int) else 1 for size in shape]  # names are free


class _Program:
    """A step as a program of torch with its state."""

    def __init__(self, path):
        program = torch.export.load(path)
        self._step, (self._inputs,) = program.module(), program.example_inputs[0]

    def step(self, x):
        found = self._step({**self._inputs, "x": x})
        self._inputs = {k: found.get(f"next_{k}", x) for k in self._inputs}
        return {k: v.numpy() for k, v in found.items()}


QUICK = ("cooadtr", "costgcn")
LONG = ("oadtr", "oadtr-fixed", "cox3d-copies", "movinet", "yamnet", "efficientat")
_MARKS = pytest.mark.slow, pytest.mark.long


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=[] if name in QUICK else [_MARKS[name in LONG]])
        for name in FAMILIES
    ],
)
def test_500_steps_agree(family, tmp_path):
    path, out = tmp_path / "x.safetensors", tmp_path / "step.onnx"
    options = {"num_classes": 5, **FAMILIES[family]}
    network = _random(ARCHITECTURES.get(family, family), options, path)
    exported = _Onnx(out, export_step(str(path), out))
    joints = (12,) if "input_width" in options else (2, 4, 3)
    shape = SHAPES.get(ARCHITECTURES.get(family, family), joints)
    state, rows = network.init_state(1), torch.randn(500, 1, *shape)
    several = family in ("yamnet", "efficientat")  # kinds at once
    _agree(exported, rows, lambda x: network.forward_step(x, state), multilabel=several)


@pytest.mark.long
@pytest.mark.parametrize("family", ["stack", "costgcn", "rotary", "oadtr", "movinet", "coslow"])
def test_programs_of_torch_agree(family, tmp_path):
    path, out = tmp_path / "x.safetensors", tmp_path / "step.pt2"
    options = {"num_classes": 5, **FAMILIES[family]}
    network = _random(ARCHITECTURES.get(family, family), options, path)
    export_step(str(path), out)
    joints = (12,) if "input_width" in options else (2, 4, 3)
    shape = SHAPES.get(family, joints)
    state, rows = network.init_state(1), torch.randn(20, 1, *shape)
    _agree(_Program(out), rows, lambda x: network.forward_step(x, state))
    extra = {"facts.json": ""}
    torch.export.load(out, extra_files=extra)
    assert "random 4" in extra["facts.json"]


def _agree(exported, rows, step, tolerance=1e-5, multilabel=False):
    with torch.inference_mode():
        for row in rows:
            found, expected = exported.step(row), step(row)
            assert expected is None or found.get("ready", 1) == 1
            if expected is None:  # the window is not full, or it is not reached
                assert found.get("ready", 0) == 0
                continue
            logits = expected.logits
            np.testing.assert_allclose(
                found["logits"], logits.numpy(), rtol=tolerance, atol=tolerance
            )
            probabilities = (logits.sigmoid() if multilabel else logits.softmax(-1)).numpy()
            np.testing.assert_allclose(found["probabilities"], probabilities, atol=tolerance)
            if expected.anticipation is not None:
                ahead = expected.anticipation[0].softmax(-1).numpy()
                np.testing.assert_allclose(found["anticipation"], ahead, atol=tolerance)


@pytest.mark.parametrize(
    ("end", "whole"),
    [("onnx", False), ("onnx", True), pytest.param("pt2", True, marks=pytest.mark.long)],
)
def test_boxes_and_scores_of_a_picture_agree(end, whole, tmp_path):
    """A program has the size of the frontend, ONNX any size."""
    path, out = tmp_path / "x.safetensors", tmp_path / f"x.{end}"
    network, frontend = _random("nanodet", DETECTOR, path), Pixels((64, 96), 32)
    names = export_step(str(path), out, whole=whole)
    exported = _Onnx(out, names) if end == "onnx" else _Program(out)
    for size in ((96, 64), (32, 160), (64, 64))[: 3 if end == "onnx" else 1]:
        picture = torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8)
        normalised = frontend(picture)
        with torch.inference_mode():
            (rows,) = network(normalised)
        found = exported.step(picture.float() if whole else normalised)
        boxes = boxes_at(rows[:, 3:], torch.arange(len(rows)), size)
        close = {"rtol": 1e-4, "atol": 1e-4}
        np.testing.assert_allclose(found["logits"][0], rows[:, :3], **close)
        np.testing.assert_allclose(found["probabilities"][0], rows[:, :3].sigmoid(), **close)
        np.testing.assert_allclose(found["boxes"][0], boxes, rtol=1e-4, atol=1e-3)


def _save_linear(path, network, frontend):
    given = {"input_width": 1280, "num_classes": 5, "window": network.window, "unit": network.unit}
    card = Card("x", IMAGE_CLASSIFICATION, "linear", given, tuple("abcde"), 4.0)
    card = replace(
        card, frontend="efficientnet-lite", frontend_arguments={"width": 0.25, "size": 53}
    )
    save_model(path, card, network, frontend)


@pytest.mark.parametrize("end", ["onnx", pytest.param("pt2", marks=pytest.mark.long)])
def test_joints_of_a_crop_agree(end, tmp_path):
    path, out = tmp_path / "x.safetensors", tmp_path / f"x.{end}"
    network = BlazePose(**LITE).eval()
    save_model(path, Card("pose", "pose estimation", "blazepose", LITE, (), 0.0), network)
    names = export_step(str(path), out)
    exported = _Onnx(out, names) if end == "onnx" else _Program(out)
    crop = torch.rand(1, 3, 256, 256)
    with torch.inference_mode():
        expected = network(crop)
    found = exported.step(crop)
    for name, value in expected._asdict().items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("end", "window", "unit"),
    [
        ("onnx", 1, False),
        ("onnx", 3, True),
        pytest.param("pt2", 2, True, marks=pytest.mark.long),
    ],
)
def test_classes_and_features_of_pictures_agree(end, window, unit, tmp_path):
    path, out = tmp_path / "x.safetensors", tmp_path / f"x.{end}"
    network, frontend = LinearClassifier(1280, 5, window, unit), EfficientNetLite(0.25, size=53)
    _save_linear(path, network.eval(), frontend.eval())
    names = export_step(str(path), out, whole=True)
    exported = _Onnx(out, names) if end == "onnx" else _Program(out)
    state = network.init_state()
    for _ in range(5):
        picture = torch.randint(0, 256, (1, 3, 53, 53), dtype=torch.uint8)
        with torch.inference_mode():
            features = frontend.features(picture)
            expected = network.forward_step(features, state).logits
        found = exported.step(picture.float())
        np.testing.assert_allclose(found["features"], features, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found["logits"], expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found["probabilities"], expected.softmax(-1), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("audio", {"token_width": 12, "widths": (4,) * 7, "feature_width": 8}),
        ("efficientat", {"width": 0.1, "hop_frames": 25, "window_frames": 150}),
        (
            "efficientat",
            {"width": 0.1, "hop_frames": 25, "window_frames": 100, "sample_rate_hz": 16_000},
        ),
        (
            "joined-audio",
            {
                "parts": {
                    "audio": {"token_width": 12, "widths": (4,) * 7, "feature_width": 8},
                    "efficientat": {
                        "width": 0.1,
                        "hop_frames": 25,
                        "window_frames": 100,
                        "sample_rate_hz": 16_000,
                    },
                }
            },
        ),
    ],
)
def test_frontends_of_sound_agree(name, options, tmp_path):
    path, out = tmp_path / "x.safetensors", tmp_path / "step.onnx"
    front = load_frontend(name, **options).eval()
    sizes = {**TOKENS, "input_width": front.token_width, "num_classes": 5}
    card, network, _ = random_model("cotrans", "x", sizes)
    labels = tuple(f"class {k}" for k in range(5))
    card = replace(card, frontend=name, frontend_arguments=options, labels=labels)
    save_model(path, card, network.eval(), front)
    exported = _Onnx(out, export_step(str(path), out, whole=True))
    state, seen = network.init_state(1), front.init_state(1)
    rows = 0.3 * torch.randn(12, 1, front.block)
    _agree(exported, rows, lambda x: network.forward_step(front.forward_step(x, seen), state), 1e-4)


@pytest.mark.parametrize("name", ["cosounds", "cooadtr"])
def test_a_whole_model_agrees(name, tmp_path):
    out = tmp_path / "step.onnx"
    exported = _Onnx(out, export_step(name, out, whole=True))
    stored = read_model(name)
    network, frontend = (module.eval() for module in build(stored.card, stored.tensors))
    state, seen = network.init_state(1), frontend.init_state(1)
    if name == "cosounds":
        x = 0.3 * torch.randn(40, 1, frontend.block)
    else:
        x = torch.randint(0, 256, (20, 1, 3, *frontend.box[::-1])).float()
    temperature = stored.card.temperature
    with torch.inference_mode():
        for row in x:
            logits = network.forward_step(frontend.forward_step(row, seen), state).logits
            found = exported.step(row)
            np.testing.assert_allclose(found["logits"], logits.numpy(), rtol=1e-3, atol=1e-3)
            expected = (logits / temperature).softmax(-1).numpy()
            np.testing.assert_allclose(found["probabilities"], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "options", "message"),
    [
        ("deepcot", {"attention": "soft"}, "not a softmax"),
        ("costgcn", {**JOINTS, "padding": "same"}, "pads the features"),
        (
            "costgcn",
            {**JOINTS, "padding": "none", "strides": [1, 2, 1], "kernel": 5},
            "strides in time",
        ),
        ("coagcn", {**JOINTS, "padding": "causal", "widths": [8, 8, 8]}, "another one in each"),
        ("conystrom", {"num_landmarks": 4}, "landmarks"),
        ("x3d", {**X3D, "window": 4}, "whole window anew"),
        ("coi3d", {**COSLOW, "kind": "i3d"}, "halve the frames"),
    ],
)
def test_what_is_not_exported_has_a_reason(architecture, options, message, tmp_path):
    path = tmp_path / "x.safetensors"
    sizes = {} if {"joints", "kind"} & options.keys() else TOKENS
    _random(architecture, {**sizes, "num_classes": 3, **options}, path)
    with pytest.raises(ModelError, match=message):
        export_step(str(path), tmp_path / "step.onnx")
    assert not (tmp_path / "step.onnx").exists()


def test_only_the_mean_of_features_is_exported():
    assert why_not_linear(LinearClassifier(8, 3, 4, spread=True))
    assert why_not_linear(LinearClassifier(8, 3, 4, changes=True))
    assert not why_not_linear(LinearClassifier(8, 3, 4, unit=True))


def test_other_names_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"must end in .onnx or .pt2"):
        export_step("cooadtr", tmp_path / "step.txt")


def test_token_gated_networks_have_no_step_as_a_graph(tmp_path):
    with pytest.raises(ModelError, match="computes what has changed"):
        export_step("eventful-vitdet", tmp_path / "step.onnx")
