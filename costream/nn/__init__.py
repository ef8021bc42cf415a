"""Continual building blocks: pure torch, no I/O. Modules hold weights, streams hold state.

``import costream.nn as co``; names are loaded on first use. ``costream help nn`` is a tour.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from costream.nn.adapters.adapting import adapt, adapter_state, count_learnt, fuse, load_adapter
    from costream.nn.adapters.low_rank import LoRA, SPLoRA
    from costream.nn.adapters.pruning import Pruner, gradual
    from costream.nn.attention import RetroactiveAttention, SingleOutputAttention
    from costream.nn.block import EncoderConfig
    from costream.nn.conditional import Conditional
    from costream.nn.continual import Continual, ConversionReport
    from costream.nn.conversion import convert
    from costream.nn.deepcot import DeepEncoder
    from costream.nn.encoder import Encoder
    from costream.nn.encoder_layers import to_deepcot
    from costream.nn.eventful.convolutional import EventfulConvolutions
    from costream.nn.eventful.policies import AboveThreshold, TopShare, TopTokens
    from costream.nn.eventful.transfer import policy_within, to_eventful
    from costream.nn.int8_layers import to_int8
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
        RunningMax,
        RunningMean,
        WindowedAttention,
    )
    from costream.nn.long_memory import LongMemory
    from costream.nn.network import (
        Broadcast,
        Parallel,
        PartGraph,
        Reduce,
        Residual,
        Sequential,
        as_part,
    )
    from costream.nn.operation import APPROXIMATIONS, ConversionError
    from costream.nn.parts import Delay, LayerNorm, Linear, Pad, Part, Skip, Stateless
    from costream.nn.position import RecyclingPositions, RotaryPositions
    from costream.nn.query_attention import QueryAttention
    from costream.nn.recurrence import Scan, scan
    from costream.nn.state import State
    from costream.nn.stepwise import stepwise_momentum

_HOME = {
    "adapters.adapting": "adapt adapter_state count_learnt fuse load_adapter",
    "adapters.low_rank": "LoRA SPLoRA",
    "adapters.pruning": "Pruner gradual",
    "attention": "RetroactiveAttention SingleOutputAttention",
    "block": "EncoderConfig",
    "conditional": "Conditional",
    "continual": "Continual ConversionReport",
    "conversion": "convert",
    "deepcot": "DeepEncoder",
    "encoder": "Encoder",
    "encoder_layers": "to_deepcot",
    "int8_layers": "to_int8",
    "eventful.convolutional": "EventfulConvolutions",
    "eventful.policies": "AboveThreshold TopShare TopTokens",
    "eventful.transfer": "policy_within to_eventful",
    "layers": "AvgPool1d AvgPool2d AvgPool3d Conv1d Conv2d Conv3d GRU LSTM"
    " MaxPool1d MaxPool2d MaxPool3d RNN Rows RunningMax RunningMean WindowedAttention",
    "long_memory": "LongMemory",
    "network": "Broadcast Parallel PartGraph Reduce Residual Sequential as_part",
    "operation": "APPROXIMATIONS ConversionError",
    "parts": "Delay LayerNorm Linear Pad Part Skip Stateless",
    "position": "RecyclingPositions RotaryPositions",
    "query_attention": "QueryAttention",
    "recurrence": "Scan scan",
    "state": "State",
    "stepwise": "stepwise_momentum",
}
_MODULES = {name: module for module, names in _HOME.items() for name in names.split()}
__all__ = [
    "APPROXIMATIONS",
    "GRU",
    "LSTM",
    "RNN",
    "AboveThreshold",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "Broadcast",
    "Conditional",
    "Continual",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConversionError",
    "ConversionReport",
    "DeepEncoder",
    "Delay",
    "Encoder",
    "EncoderConfig",
    "EventfulConvolutions",
    "LayerNorm",
    "Linear",
    "LoRA",
    "LongMemory",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Pad",
    "Parallel",
    "Part",
    "PartGraph",
    "Pruner",
    "QueryAttention",
    "RecyclingPositions",
    "Reduce",
    "Residual",
    "RetroactiveAttention",
    "RotaryPositions",
    "Rows",
    "RunningMax",
    "RunningMean",
    "SPLoRA",
    "Scan",
    "Sequential",
    "SingleOutputAttention",
    "Skip",
    "State",
    "Stateless",
    "TopShare",
    "TopTokens",
    "WindowedAttention",
    "adapt",
    "adapter_state",
    "as_part",
    "convert",
    "count_learnt",
    "fuse",
    "gradual",
    "load_adapter",
    "policy_within",
    "scan",
    "stepwise_momentum",
    "to_deepcot",
    "to_eventful",
    "to_int8",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'costream.nn' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"costream.nn.{_MODULES[name]}"), name)
