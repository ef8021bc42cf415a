"""Weight files with int8 matrices, and the layers that stay int8 in memory.

Such a file holds an int8 tensor and ``NAME_scale`` in place of each weight matrix, and its card
has the entry ``int8``. Large linear layers, whose time is spent reading weights from memory, stay
int8. Smaller weights fit the caches of a processor and become float32 when they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.nn.int8 import LARGE, dequantise, quantise
from costream.nn.int8_layers import replace_by_int8
from costream.weights_io.card import Card

SCALE = "_scale"
_LEAST = 256  # numbers; smaller weights stay float32


def to_int8(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a weight file with int8 weight matrices, row by row."""
    out = dict(tensors)
    for name in sorted(matrices(tensors)):
        out[name], out[name + SCALE] = quantise(tensors[name])
    return out


def matrices(tensors: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the weight matrices in a file of float tensors that become int8."""
    return {
        name
        for name, tensor in tensors.items()
        if "weight" in name.rpartition(".")[2] and tensor.dim() > 1 and tensor.numel() >= _LEAST
    }


def to_float(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a weight file without int8 ones: each with its scales as float32.

    Raises ModelError for an int8 tensor without scales that fit its rows.
    """
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        scale = tensors.get(name + SCALE)
        if name.endswith(SCALE) and name.removesuffix(SCALE) in tensors:
            continue
        if tensor.dtype != torch.int8 and scale is None:
            out[name] = tensor
        elif tensor.dtype != torch.int8 or scale is None or scale.shape != tensor.shape[:1]:
            raise ModelError(f"the scales of {name} do not fit its rows")
        else:
            out[name] = dequantise(tensor, scale)
    return out


def without_int8(card: Card, tensors: Mapping[str, Tensor]) -> tuple[Card, dict[str, Tensor]]:
    """Return card and tensors of the same weights in float32."""
    facts = {k: v for k, v in card.compression.items() if k != "int8"}
    return replace(card, compression=facts), to_float(tensors)


def keep_int8(module: nn.Module, prefix: str, tensors: Mapping[str, Tensor]) -> None:
    """Put the int8 weights of a file into the large layers of a module that has its weights."""

    def stored(name: str, _weight: Tensor) -> tuple[Tensor, Tensor] | None:
        values = tensors.get(prefix + name)
        if values is None or values.dtype != torch.int8 or values.numel() < LARGE:
            return None
        return values, tensors[prefix + name + SCALE]

    replace_by_int8(module, stored)
