"""CoOadTR checkpoints (Hedegaard et al., Continual Transformers, ICLR 2023), one or two blocks.

A ``Sequential`` of: 0 input projection, 1 recycling positions, 3 encoder, 4 LayerNorm, 5 head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from costream.checkpoints import continual_017
from costream.checkpoints.blocks import block_rules, read_sizes
from costream.checkpoints.config import Config
from costream.checkpoints.foreign import Foreign
from costream.checkpoints.labels import class_names
from costream.checkpoints.rules import Imported, Rule, apply, linear, norm, shape_of

KEYS = (
    "num_heads",
    "window",
    "input_width",
    "embed_dim",
    "feedforward",
    "depth",
    "num_positions",
    "num_classes",
)
PAPER = "https://arxiv.org/abs/2201.06268"
_ENCODER = "3."
_ALIASES = {"num_heads": "num_heads", "enc_layers": "window"}


def detect(tensors: Mapping[str, Tensor]) -> bool:
    """Tell whether the names are those of CoOadTR."""
    return any(f"{_ENCODER}{at}in_proj_weight" in tensors for at in ("0.1.", "0.0.1."))


def convert(foreign: Foreign, config: Config) -> Imported:
    """Give the network. The window is not in the tensors: the position table may be longer."""
    tensors = foreign.tensors
    config.learn(foreign.settings, _ALIASES)
    blocks = continual_017.find_blocks(tensors, _ENCODER)
    sizes = read_sizes(tensors, blocks[0])
    d, width = shape_of(tensors, "0.weight", 2)
    learned = "1.pe.weight" in tensors
    table = "1.pe.weight" if learned else "1.pe.pattern"
    rows = shape_of(tensors, table, 2)[0]
    classes = shape_of(tensors, "5.weight", 2)[0]
    arguments: dict[str, Any] = {
        "input_width": config.agree("input_width", width),
        "num_classes": config.agree("num_classes", classes),
        "embed_dim": config.agree("embed_dim", d),
        "depth": config.agree("depth", len(blocks)),
        "num_heads": config.heads("num_heads", d),
        "feedforward": config.agree("feedforward", sizes.feedforward),
        "window": config.need("window"),
        "positions": "learned" if learned else "fixed",
        "num_positions": config.agree("num_positions", rows),
        "qkv_bias": sizes.qkv_bias,
        "out_bias": sizes.out_bias,
    }
    rules = [
        *linear("input_projection", "0", d, width),
        Rule("positions.table", (table,), (rows, d)),
        *block_rules(blocks, sizes, "encoder."),
        *norm("encoder.norm", "4.fn", d),
        *linear("head", "5", classes, d),
    ]
    names = class_names(foreign.settings, classes)
    return Imported("cooadtr", arguments, apply(rules, tensors), classes, names, PAPER)
