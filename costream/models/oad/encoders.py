"""Encoders without a classifier as networks of weight files."""

from __future__ import annotations

from typing import Any

from costream.models.spec import register_model
from costream.nn.block import EncoderConfig
from costream.nn.deepcot import DeepEncoder
from costream.nn.encoder import Encoder


@register_model(
    "encoder",
    order=9,
    arguments={"embed_dim": 1024, "num_heads": 8, "feedforward": 1024, "depth": 1, "window": 64},
    task="encoder",
    rate_hz=0.0,
)
class PlainEncoder(Encoder):
    """An ``nn.encoder.Encoder`` by itself."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(EncoderConfig(**arguments))


@register_model(
    "deepcot-encoder",
    order=10,
    arguments={"embed_dim": 192, "num_heads": 16, "feedforward": 192, "depth": 2, "window": 120},
    task="encoder",
    rate_hz=0.0,
)
class PlainDeepEncoder(DeepEncoder):
    """An ``nn.deepcot.DeepEncoder`` by itself."""

    def __init__(
        self,
        *,
        rotary: bool = False,
        attention: str = "softmax",
        residual: str = "norm",
        **arguments: Any,
    ) -> None:
        config = EncoderConfig(**arguments)
        super().__init__(config, rotary=rotary, attention=attention, residual=residual)
