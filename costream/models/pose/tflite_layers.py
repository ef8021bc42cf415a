"""Convolutions of TFLite files, in the order in which they are computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.importer import Detect

_KINDS = ("conv", "depthwise")


def has_constants(*shapes: tuple[int, ...]) -> Detect:
    """Return a ``detect`` for TFLite files with constants of all of these shapes."""

    def found(tensors: Mapping[str, object]) -> bool:
        here = {
            tuple(getattr(tensor, "shape", ()))
            for name, tensor in tensors.items()
            if name.startswith("tflite.")
        }
        return here.issuperset(shapes)

    return found


def convolutions_before(
    foreign: ForeignCheckpoint, outputs: Iterable[int]
) -> list[tuple[Tensor, Tensor]]:
    """Return weight [O, I / groups, h, w] and bias [O] of those that these tensors depend on.

    ``outputs``: numbers of tensors. ModelError for another file, and without weights.
    """
    wanted, used = set(outputs), []
    for operator in reversed(graph_of(foreign)["operators"]):
        if wanted.intersection(operator["outputs"]):
            wanted.update(operator["inputs"])
            used.append(operator)
    found = []
    for operator in reversed(used):
        if operator["kind"] not in _KINDS:
            continue
        _, weight, bias = (foreign.tensors.get(f"tflite.{k}") for k in operator["inputs"])
        if weight is None or bias is None or weight.dim() != 4:
            raise ModelError("a convolution without weights")
        axes = (0, 3, 1, 2) if operator["kind"] == "conv" else (3, 0, 1, 2)
        found.append((weight.permute(axes).contiguous(), bias))
    return found


def graph_of(foreign: ForeignCheckpoint) -> Mapping[str, Any]:
    """Return ``outputs`` and ``operators`` of a TFLite file. ModelError for another file."""
    graph: Mapping[str, Any] = foreign.args
    if "operators" not in graph:
        raise ModelError("not a TFLite file, from which joints are read")
    return graph


def fits(layers: Sequence[nn.Conv2d], found: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Return whether convolutions have the shapes of layers; a bias that a layer lacks is 0."""
    return len(layers) == len(found) and all(
        weight.shape == layer.weight.shape and (layer.bias is not None or not bias.any())
        for layer, (weight, bias) in zip(layers, found, strict=True)
    )


def named_tensors(
    network: nn.Module, layers: Sequence[nn.Conv2d], found: Sequence[tuple[Tensor, Tensor]]
) -> dict[str, Tensor]:
    """Return convolutions by the names of a network's layers; float16 where that is exact."""
    names = {layer: name for name, layer in network.named_modules()}
    tensors = {}
    for layer, (weight, bias) in zip(layers, found, strict=True):
        for end, value in (("weight", weight), ("bias", bias)):
            if getattr(layer, end) is None:
                continue
            half = value.half()
            tensors[f"{names[layer]}.{end}"] = half if torch.equal(half.float(), value) else value
    return tensors
