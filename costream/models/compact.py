"""Tensors of weight files in few bytes: float16, and int8 where nothing is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from costream.models.int8 import SCALE, matrices
from costream.nn.int8 import dequantise, quantise
from costream.weights_io.card import Card
from costream.weights_io.file import read_header

_SAME = 1e-6  # relative difference of scales that were computed again
_ROUNDED = 1e-3  # largest error of float16, relative to the largest number


def is_compact(path: Path) -> bool:
    """Return whether a weight file has float16 or int8 tensors. Raises ModelError."""
    return any(info.dtype in ("F16", "I8") for info in read_header(path).tensors.values())


@torch.no_grad()
def round_weights(module: nn.Module) -> None:
    """Round the weights of a module to the values that ``compact`` stores, in place."""
    for parameter in module.parameters():
        parameter.copy_(_half(parameter).to(parameter.dtype))


def compact(card: Card, tensors: Mapping[str, Tensor]) -> tuple[Card, dict[str, Tensor]]:
    """Return a card and the tensors of its file: weights that are int8 as such, others float16.

    A weight is int8 if it equals its int8 form. Vectors and other types remain as they are.
    """
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        values, scale = quantise(tensor) if name in matrices({name: tensor}) else (None, None)
        if values is not None and scale is not None and _equals(tensor, values, scale):
            out[name], out[name + SCALE] = values, scale
        else:
            out[name] = _half(tensor)
    count = sum(name.endswith(SCALE) for name in out.keys() - tensors.keys())
    if count:
        card = replace(card, compression={**card.compression, "int8": {"tensors": count}})
    return card, out


def compact_adapter(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of an adapter file, matrices as float16."""
    return {name: _half(tensor) for name, tensor in tensors.items()}


def _equals(tensor: Tensor, values: Tensor, scale: Tensor) -> bool:
    return bool(torch.allclose(dequantise(values, scale), tensor.float(), rtol=_SAME, atol=0.0))


def _half(tensor: Tensor) -> Tensor:
    """Return a float32 matrix as float16, unless its range is not that of float16."""
    if tensor.dtype != torch.float32 or tensor.dim() < 2 or not tensor.numel():
        return tensor
    rounded = tensor.half()
    error = (rounded.float() - tensor).abs().max()
    return rounded if bool(error <= _ROUNDED * tensor.abs().max()) else tensor
