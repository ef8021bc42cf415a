"""Importer of YAMNet: the PyTorch port torch_audioset, and the original's Keras HDF5 file.

Batch norms (eps 1e-4, the original has no gamma) are folded into the convolutions before them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.core.records import AUDIO_TAGGING
from costream.models.audio.yamnet import HOP_FRAMES, PAPER, RATE_HZ, STRIDES, YamNet
from costream.weights_io.card import Timeline
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import importer
from costream.weights_io.tensor_rules import (
    COUNTER,
    ImportedNetwork,
    TensorRule,
    apply,
    fold_norm,
    normed_convolution,
    shape_of,
)

_EPS = 1e-4  # of the batch norms
# At 0.3 it named 80 % of 100 clips of ESC-10 correctly, with 6.5 labels a clip in all.
TIMELINE = Timeline(threshold=0.3, min_length_s=0.4, min_gap_s=0.5)
_STEM = "layer1.fused"
_KERAS = re.compile(r"(?:.*/)?(layer\d+)/(?:(depthwise|pointwise)_)?conv/(?:(bn)/)?([a-z_]+):0$")
_KERAS_ENDS = {
    "kernel": "conv.weight",
    "depthwise_kernel": "conv.weight",
    "gamma": "bn.weight",
    "beta": "bn.bias",
    "moving_mean": "bn.running_mean",
    "moving_variance": "bn.running_var",
}


def detect(tensors: Mapping[str, object]) -> bool:
    """Return whether the names are those of YAMNet."""
    return f"{_STEM}.conv.weight" in tensors or any(_is_keras_stem(name) for name in tensors)


@importer(
    "yamnet",
    summary="YAMNet, its PyTorch port or Keras file",
    detect=detect,
    keys=("num_classes",),
    order=17,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for tensors that are missing, left over or misshapen."""
    tensors = dict(foreign.tensors)
    if any(map(_is_keras_stem, tensors)):
        tensors = _from_keras(tensors)
    classes = settings.check("num_classes", shape_of(tensors, "classifier.weight", 2)[0])
    pairs = {"stem": _STEM}
    for k in range(2, len(STRIDES) + 1):
        for kind in ("depthwise", "pointwise"):
            pairs[f"layers.{k - 2}.{kind}"] = f"layer{k}.{kind}_conv"
    widths = [
        shape_of(tensors, f"{theirs}.conv.weight", 4)[0]
        for ours, theirs in pairs.items()
        if not ours.endswith("depthwise")
    ]
    with torch.device("meta"):  # only shapes are needed
        shapes = {k: tuple(v.shape) for k, v in YamNet(classes, widths=widths).state_dict().items()}
    rules = [
        TensorRule(name, (name,), shapes[name]) for name in ("classifier.weight", "classifier.bias")
    ]
    for ours, theirs in pairs.items():
        shape = shapes[f"{ours}.weight"]
        rules += normed_convolution(ours, f"{theirs}.conv", f"{theirs}.bn", shape)
    named = apply(rules, tensors, [name for name in tensors if name.endswith(COUNTER)])
    return ImportedNetwork(
        "yamnet",
        {"num_classes": classes, "hop_frames": HOP_FRAMES, "widths": widths},
        {name: value for ours in pairs for name, value in fold_norm(ours, named, _EPS).items()}
        | {name: named[name] for name in ("classifier.weight", "classifier.bias")},
        classes,
        paper=PAPER,
        task=AUDIO_TAGGING,
        frontend="logmel",
        frontend_arguments={"hop_frames": HOP_FRAMES},
        rate_hz=RATE_HZ,
        delay_steps=0.5,
        timeline=TIMELINE,
    )


def _is_keras_stem(name: str) -> bool:
    return name.endswith("layer1/conv/kernel:0")


def _from_keras(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the Keras file as those of the port."""
    out: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if name.endswith("logits/kernel:0"):
            out["classifier.weight"] = value.t().contiguous()
        elif name.endswith("logits/bias:0"):
            out["classifier.bias"] = value
        elif (match := _KERAS.match(name)) and match[4] in _KERAS_ENDS:
            layer, kind, end = match[1], match[2], _KERAS_ENDS[match[4]]
            if end == "conv.weight" and value.dim() != 4:
                raise ModelError(f"the checkpoint does not fit: {name} is {tuple(value.shape)}")
            if end == "conv.weight":
                value = value.permute((2, 3, 0, 1) if kind == "depthwise" else (3, 2, 0, 1))
            out[f"{layer}.{f'{kind}_conv' if kind else 'fused'}.{end}"] = value
        else:
            out[name] = value
    for name in [name for name in out if name.endswith("bn.bias")]:
        out.setdefault(f"{name.removesuffix('bias')}weight", torch.ones_like(out[name]))
    return out
