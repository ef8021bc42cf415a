"""Importer of ``torch.nn.TransformerEncoder``: a state dict or a module in memory."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.models.imported_card import imported_card
from costream.models.oad.encoder_blocks import (
    ENCODER_KEYS,
    EncoderBlockNames,
    apply_stack_setting,
    encoder,
)
from costream.weights_io.card import Card
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import has_tensors, importer
from costream.weights_io.tensor_rules import ImportedNetwork

SUMMARY = "torch.nn.TransformerEncoder"
KEYS = (*ENCODER_KEYS, "norm_first")


@importer(
    "torch",
    summary="torch.nn.TransformerEncoder",
    detect=has_tensors("layers.0.self_attn.in_proj_weight", "layers.0.linear1.weight"),
    keys=KEYS,
    order=15,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the encoder; heads, window, activation and norm_first must come from ``settings``."""
    tensors = foreign.tensors
    depth = len({name.split(".")[1] for name in tensors if name.startswith("layers.")})
    if not depth:
        raise ModelError("the checkpoint does not fit: missing: layers.0.self_attn.in_proj_weight")
    blocks = [
        EncoderBlockNames(
            f"{at}.self_attn", f"{at}.norm1", f"{at}.linear1", f"{at}.linear2", f"{at}.norm2"
        )
        for at in (f"layers.{i}" for i in range(depth))
    ]
    last = "norm" if "norm.weight" in tensors else None
    norm_first = settings.require("norm_first", False)
    imported = encoder(tensors, blocks, settings, final_norm=last, norm_first=norm_first)
    return apply_stack_setting(imported, settings)


def import_module_encoder(
    module: nn.TransformerEncoder, name: str, window: int, stack: str = "exact"
) -> tuple[Card, dict[str, Tensor]]:
    """Return card and tensors of a ``torch.nn.TransformerEncoder`` in memory.

    Heads, activation and norm order are read from the module; ``window`` is its length in tokens.
    ``stack``: "exact", or "deepcot" for a separate window in each block, see ``nn.deepcot``.

    Raises ModelError for an activation other than ReLU and exact GELU, and for a LayerNorm eps
    other than 1e-5.
    """
    layer = module.layers[0]
    if not isinstance(layer, nn.TransformerEncoderLayer):
        raise ModelError(f"a TransformerEncoder of {type(layer).__name__}, not of encoder layers")
    for part in module.modules():
        if isinstance(part, nn.LayerNorm) and part.eps != 1e-5:
            raise ModelError(f"LayerNorm eps {part.eps}; only 1e-5 is supported")
    settings = {
        "stack": stack,
        "num_heads": str(layer.self_attn.num_heads),
        "window": str(window),
        "activation": _activation(layer),
        "norm_first": str(layer.norm_first).lower(),
    }
    tensors = {name: value.detach().float() for name, value in module.state_dict().items()}
    checkpoint = ForeignCheckpoint(Path("module"), tensors, {})
    imported = convert(checkpoint, ImportSettings(settings, KEYS))
    card = imported_card(name, imported, ImportSettings({}, ()), SUMMARY)
    return card, {f"network.{key}": tensor for key, tensor in imported.tensors.items()}


def _activation(layer: nn.TransformerEncoderLayer) -> str:
    # A function when it was given by name, otherwise the given object.
    function = layer.activation
    if function is F.relu or isinstance(function, nn.ReLU):
        return "relu"
    if function is F.gelu or (isinstance(function, nn.GELU) and function.approximate == "none"):
        return "gelu"
    raise ModelError(f"the activation {function!r} is neither ReLU nor exact GELU")
