"""Encoder of the PyPI package continual-inference, if it is installed, for comparison."""

from __future__ import annotations

import warnings
from importlib.metadata import PackageNotFoundError, version

from torch import Tensor, nn

from costream.bench.counts import OadSizes, continual_encoder_macs
from costream.bench.timing import Contender, EncoderBench
from costream.nn.encoder import Encoder

_PARTS = ("self_attn", "linear1", "linear2", "norm1", "norm2")


def peer_name() -> str:
    """Return the name and version of the package, or that it is not installed."""
    try:
        return f"continual-inference {version('continual-inference')}"
    except PackageNotFoundError:
        return "continual-inference (not installed)"


def peer(encoder: Encoder, config: EncoderBench) -> Contender | None:
    """Return the package's encoder with our weights; None if not installed or not supported."""
    try:
        import continual
    except ImportError:
        return None
    if config.depth > 2:
        return None  # the package only supports one and two blocks
    activation = nn.GELU() if config.activation == "gelu" else nn.ReLU()
    factory = continual.TransformerEncoderLayerFactory(
        config.embed_dim,
        config.num_heads,
        config.feedforward,
        0.0,
        activation,
        sequence_len=config.window,
    )
    model = continual.TransformerEncoder(factory, num_layers=config.depth).eval()
    own = encoder.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it calls a deprecated function of torch
        model.load_state_dict({key: own[_own_name(key)] for key in model.state_dict()})

    def step(x: Tensor) -> Tensor:
        out = model.forward_step(x)
        return out if isinstance(out, Tensor) else x  # no output until its window is full

    sizes = OadSizes(config.embed_dim, config.feedforward, config.window)
    macs = continual_encoder_macs(config.depth, sizes)
    return Contender(peer_name(), step, macs, lambda: _buffer_bytes(model))


def _own_name(key: str) -> str:
    """Translate ``layers.0.1.fn._ff_block.fn.linear1.bias`` to ``layers.0.linear1.bias``."""
    parts = key.split(".")
    start = next(k for k, part in enumerate(parts) if part in _PARTS)
    return ".".join([*parts[:2], *(part for part in parts[start:] if part != "fn")])


def _buffer_bytes(model: nn.Module) -> int:
    return sum(b.numel() * b.element_size() for b in model.buffers())
