"""Continual building blocks: pure torch, no I/O. Modules hold weights, streams hold state.

``import costream.nn as co``; names are loaded on first use. ``costream help nn`` is a tour.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from costream.nn.attention import RetroactiveAttention, SingleOutputAttention
    from costream.nn.block import EncoderConfig
    from costream.nn.deepcot import DeepEncoder
    from costream.nn.encoder import Encoder
    from costream.nn.layers import (
        GRU,
        LSTM,
        RNN,
        AvgPool1d,
        AvgPool2d,
        AvgPool3d,
        Conv1d,
        Conv2d,
        Conv3d,
        MaxPool1d,
        MaxPool2d,
        MaxPool3d,
        Rows,
        RunningMean,
    )
    from costream.nn.network import (
        Broadcast,
        Conditional,
        Network,
        Parallel,
        Reduce,
        Residual,
        Sequential,
        as_part,
    )
    from costream.nn.parts import Delay, LayerNorm, Linear, Pad, Part, Skip, Stateless
    from costream.nn.position import RecyclingPositions, RotaryPositions
    from costream.nn.state import State

_HOME = {
    "attention": "RetroactiveAttention SingleOutputAttention",
    "block": "EncoderConfig",
    "deepcot": "DeepEncoder",
    "encoder": "Encoder",
    "layers": "AvgPool1d AvgPool2d AvgPool3d Conv1d Conv2d Conv3d GRU LSTM"
    " MaxPool1d MaxPool2d MaxPool3d RNN Rows RunningMean",
    "network": "Broadcast Conditional Network Parallel Reduce Residual Sequential as_part",
    "parts": "Delay LayerNorm Linear Pad Part Skip Stateless",
    "position": "RecyclingPositions RotaryPositions",
    "state": "State",
}
_MODULES = {name: module for module, names in _HOME.items() for name in names.split()}
__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "Broadcast",
    "Conditional",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "DeepEncoder",
    "Delay",
    "Encoder",
    "EncoderConfig",
    "LayerNorm",
    "Linear",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Network",
    "Pad",
    "Parallel",
    "Part",
    "RecyclingPositions",
    "Reduce",
    "Residual",
    "RetroactiveAttention",
    "RotaryPositions",
    "Rows",
    "RunningMean",
    "Sequential",
    "SingleOutputAttention",
    "Skip",
    "State",
    "Stateless",
    "as_part",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'costream.nn' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"costream.nn.{_MODULES[name]}"), name)
