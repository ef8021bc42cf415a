"""Networks whose large linear layers have int8 weights; see ``int8``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor, nn

from costream.nn.attention import MultiheadAttention, RetroactiveAttention, SingleOutputAttention
from costream.nn.continual import Call, Continual
from costream.nn.encoder import Encoder
from costream.nn.int8 import LARGE, Int8Linear, quantise
from costream.nn.layers import Rows
from costream.nn.long_memory import LongMemory
from costream.nn.operation import ConversionError

_PACKED = (MultiheadAttention, SingleOutputAttention, RetroactiveAttention)
_Int8: TypeAlias = "tuple[Tensor, Tensor]"  # values and scales


def replace_by_int8(module: nn.Module, find: Callable[[str, Tensor], _Int8 | None]) -> None:
    """Replace the linear layers for whose weights, by name, ``find`` returns int8 ones."""
    # The last block of a stack, and a long memory, multiply with parts of their projections in
    # another order.
    stacks = [m for m in module.modules() if isinstance(m, Encoder) and m.depth > 1]
    whole = {id(stack._last[1]) for stack in stacks}
    whole |= {id(m.reading) for m in module.modules() if isinstance(m, LongMemory)}
    layers: dict[str, Any] = dict(module.named_modules())
    for path, layer in layers.items():
        packed = type(layer) in _PACKED and layer.packed is None and id(layer) not in whole
        if not packed and (type(layer) is not nn.Linear or not path):
            continue
        name = "in_proj_weight" if packed else "weight"
        found = find(f"{path}.{name}".removeprefix("."), getattr(layer, name))
        if found is None:
            continue
        if packed:
            layer.pack(Int8Linear(*found, layer.in_proj_bias))
        else:
            parent, _, own = path.rpartition(".")
            setattr(layers[parent], own, Int8Linear(*found, layer.bias))


def to_int8(module: nn.Module, least: int = LARGE) -> nn.Module:
    """Store the weights of large linear layers as int8, in place, and return the module.

    For inference: a step reads a quarter of the bytes. ``least``: numbers of a weight from which
    on it is stored so; smaller ones stay in the caches of a processor, where it gains nothing. Of a
    network from ``convert`` only the steps and clips change, not the module that it was made of.
    Raises ConversionError for an eventful network, which multiplies rows in the dtype of weights.
    """
    from costream.nn.eventful.block import EventfulBlock
    from costream.nn.eventful.own_attention import GatedRows

    if any(isinstance(m, EventfulBlock | GatedRows) for m in module.modules()):
        raise ConversionError("an eventful network cannot be stored as int8")

    def find(_: str, weight: Tensor) -> tuple[Tensor, Tensor] | None:
        return quantise(weight) if weight.numel() >= least else None

    if not isinstance(module, Continual):
        replace_by_int8(module, find)
        return module
    for part in (node.part for node in module._nodes):
        if isinstance(part, Rows):
            replace_by_int8(part.block, find)
        elif isinstance(part, Call) and type(part.function) is nn.Linear:
            layer = part.function
            if (found := find("", layer.weight)) is not None:
                part.function = Int8Linear(*found, layer.bias)
    return module
