"""Importer of MoViNet-Stream from the PyTorch port MoViNet-pytorch.

Batch norms (eps 1e-3) are folded into the convolutions before them, and the learned factor of each
block into its projection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.models.video.movinet.network import PAPER, RATE_HZ, SIZES, MoViNet, crop_arguments
from costream.models.video.movinet.trunk import WINDOW
from costream.nn.video3d.sizes import TASK
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import has_tensors, importer
from costream.weights_io.tensor_rules import (
    COUNTER,
    ImportedNetwork,
    TensorRule,
    apply,
    fold_norm,
    normed_convolution,
    shape_of,
)

_EPS = 1e-3  # of the batch norms
_BLOCK = re.compile(r"blocks\.b(\d+)_l(\d+)\.deep\.conv_1\.conv2d\.weight$")
_CONVOLUTIONS = {
    "expand": "expand.conv_1",
    "space": "deep.conv_1",
    "time": "deep.conv_2",
    "project": "project.conv_1",
    "shortcut": "res.1.conv_1",
}
_PLAIN = {"squeeze": "se.fc1.conv_1.conv2d", "excite": "se.fc2.conv_1.conv2d"}


@importer(
    "movinet",
    summary="MoViNet-A0, A1 or A2 Stream of MoViNet-pytorch",
    detect=has_tensors("conv1.conv_1.conv2d.weight", "conv7.conv_1.conv2d.weight"),
    keys=("num_classes", "window"),
    order=18,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for tensors that are missing, left over or misshapen."""
    tensors = foreign.tensors
    classes = settings.check(
        "num_classes", shape_of(tensors, "classifier.3.conv_1.conv2d.weight", 4)[0]
    )
    window = settings.get("window") or WINDOW
    sizes, names = _sizes(tensors)
    with torch.device("meta"):  # only shapes are needed
        net = MoViNet(classes, **sizes)
    shapes = {name: tuple(value.shape) for name, value in net.state_dict().items()}
    normed = {"stem": "conv1.conv_1", "head": "conv7.conv_1"}
    plain: dict[str, str] = {}
    for k, name in enumerate(names):
        ours_of = {part: f"blocks.{k}.{part}" for part in (*_CONVOLUTIONS, *_PLAIN)}
        normed |= {
            ours_of[part]: f"{name}.{theirs}"
            for part, theirs in _CONVOLUTIONS.items()
            if f"{ours_of[part]}.weight" in shapes
        }
        plain |= {ours_of[part]: f"{name}.{theirs}" for part, theirs in _PLAIN.items()}
    plain |= {"hidden": "classifier.0.conv_1.conv2d", "classifier": "classifier.3.conv_1.conv2d"}
    rules = []
    for ours, theirs in normed.items():
        shape = shapes[f"{ours}.weight"]
        stored = (*shape, 1) if len(shape) == 3 else shape
        rules += normed_convolution(ours, f"{theirs}.conv2d", f"{theirs}.norm", shape, stored)
    for ours, theirs in plain.items():
        shape = shapes[f"{ours}.weight"]
        rules.append(TensorRule(f"{ours}.weight", (f"{theirs}.weight",), (*shape, 1, 1)))
        rules.append(TensorRule(f"{ours}.bias", (f"{theirs}.bias",), shape[:1]))
    rules += [
        TensorRule(f"blocks.{k}.alpha", (f"{name}.alpha",), ()) for k, name in enumerate(names)
    ]
    named = apply(rules, tensors, [name for name in tensors if name.endswith(COUNTER)])
    out: dict[str, Tensor] = {}
    for ours in normed:
        is_last = ours.endswith(".project")
        alpha = named[f"{ours.removesuffix('project')}alpha"].double() if is_last else 1.0
        out |= fold_norm(ours, named, _EPS, alpha)
    for ours in plain:
        out[f"{ours}.weight"] = named[f"{ours}.weight"].flatten(1)
        out[f"{ours}.bias"] = named[f"{ours}.bias"]
    return ImportedNetwork(
        "movinet",
        {"num_classes": classes, **sizes, "window": window},
        {name: value.reshape(shapes[name]) for name, value in out.items()},
        classes,
        paper=PAPER,
        task=TASK,
        frontend="crop",
        frontend_arguments=crop_arguments(sizes["size"]),
        rate_hz=RATE_HZ,
        delay_steps=(window - 1) / 2,
    )


def _sizes(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments that the tensors determine, and the blocks' names in order."""
    places = sorted((int(m[1]), int(m[2])) for m in map(_BLOCK.match, tensors) if m)
    stages = max((stage for stage, _ in places), default=-1) + 1
    blocks: list[list[list[int]]] = [[] for _ in range(stages)]
    outputs = [0] * stages
    names = [f"blocks.b{stage}_l{k}" for stage, k in places]
    for (stage, _), name in zip(places, names, strict=True):
        width, _, side, _ = shape_of(tensors, f"{name}.deep.conv_1.conv2d.weight", 4)
        over_time = f"{name}.deep.conv_2.conv2d.weight"
        kernel = shape_of(tensors, over_time, 4)[2] if over_time in tensors else 1
        blocks[stage].append([width, kernel, side])
        outputs[stage] = shape_of(tensors, f"{name}.project.conv_1.conv2d.weight", 4)[0]
    found = {
        "stem": shape_of(tensors, "conv1.conv_1.conv2d.weight", 4)[0],
        "outputs": outputs,
        "blocks": blocks,
        "head": shape_of(tensors, "conv7.conv_1.conv2d.weight", 4)[0],
    }
    for arguments in SIZES.values():
        if {**arguments, **found} == arguments:
            hidden = shape_of(tensors, "classifier.0.conv_1.conv2d.weight", 4)[0]
            return {**arguments, "hidden": hidden}, names
    sizes = ", ".join(SIZES)
    raise ModelError(f"the checkpoint does not fit: its blocks are not those of {sizes}")
