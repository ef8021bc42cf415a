"""Importer of CoOadTR and CoTrans checkpoints (Hedegaard et al., ICLR 2023).

Continual Transformers: a ``Sequential`` of input projection (0), recycling positions (1), dropout
(2, omitted in the audio networks), encoder, LayerNorm and head. The encoder is one of
continual-inference 0.17 or 1.x, or a stack of single-output layers (DeepCoT). CoOadTR and CoTrans
are the same network; the input of CoTrans is the 128 features of VGGish.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from costream.core.errors import ModelError
from costream.core.label_sets import class_names
from costream.models.oad import import_continual_inference as continual_inference
from costream.models.oad.encoder_blocks import (
    EncoderBlockNames,
    block_rules,
    convert_to_deepcot,
    read_sizes,
)
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import importer
from costream.weights_io.tensor_rules import (
    ImportedNetwork,
    TensorRule,
    apply,
    linear,
    norm,
    shape_of,
)

KEYS = (
    "num_heads",
    "window",
    "activation",
    "stack",
    "attention",
    "input_width",
    "embed_dim",
    "feedforward",
    "depth",
    "num_positions",
    "num_classes",
)
PAPER = "https://arxiv.org/abs/2201.06268"
_VGGISH = 128  # features
_AUDIOVISUAL = (7168, 8192)  # features of ActivityNet or Kinetics, with those of sound
_WINDOW = 64  # the published one; learned positions have as many rows, fixed ones 2 x 64 - 1
_GTZAN_WIDTH = 192  # of the paper's audio networks
_GTZAN = {"num_heads": 16, "window": 120}  # not in their tensors
_ALIASES = {"num_heads": "num_heads", "enc_layers": "window"}


@dataclass(frozen=True)
class SequentialLayout:
    """Parameter names of the modules after the positions, up to ``.weight``."""

    blocks: list[EncoderBlockNames]
    norm: str
    head: str
    deep: bool  # two blocks or more, each single-output


def detect(tensors: Mapping[str, object]) -> bool:
    """Return whether the names are those of CoOadTR or CoTrans."""
    layout = find_layout(tensors)
    return layout is not None and not layout.deep


@importer(
    "cooadtr", summary="CoOadTR or CoTrans, one or two blocks", detect=detect, keys=KEYS, order=3
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network. The tensors do not determine the window: the table may be longer."""
    layout = require_layout(foreign.tensors)
    if layout.deep:
        raise ModelError("a stack of DeepCoT", hint="import it with --as deepcot")
    return read(foreign, settings, layout)


def require_layout(tensors: Mapping[str, object]) -> SequentialLayout:
    """Return the parameter layout; ModelError when it is not that of such a network."""
    layout = find_layout(tensors)
    if layout is None:
        raise ModelError(
            "the checkpoint does not fit: no encoder at the position of CoOadTR and CoTrans"
        )
    return layout


def read(
    foreign: ForeignCheckpoint, settings: ImportSettings, layout: SequentialLayout
) -> ImportedNetwork:
    """Return the network, whichever memory its blocks have."""
    tensors, blocks = foreign.tensors, layout.blocks
    settings.adopt(foreign.args, _ALIASES)
    sizes = read_sizes(tensors, blocks[0])
    d, width = shape_of(tensors, "0.weight", 2)
    learned = "1.pe.weight" in tensors
    table = "1.pe.weight" if learned else "1.pe.pattern"
    rows = shape_of(tensors, table, 2)[0]
    classes = shape_of(tensors, f"{layout.head}.weight", 2)[0]
    audio = width == _VGGISH
    settings.suggest(_published(width, d, rows))
    arguments: dict[str, Any] = {
        "input_width": settings.check("input_width", width),
        "num_classes": settings.check("num_classes", classes),
        "embed_dim": settings.check("embed_dim", d),
        "depth": settings.check("depth", len(blocks)),
        "num_heads": settings.heads("num_heads", d),
        "feedforward": settings.check("feedforward", sizes.feedforward),
        "window": settings.require("window"),
        "positions": "learned" if learned else "fixed",
        "activation": settings.get("activation") or "gelu",
        "num_positions": settings.check("num_positions", rows),
        "qkv_bias": sizes.qkv_bias,
        "out_bias": sizes.out_bias,
    }
    rules = [
        *linear("input_projection", "0", d, width),
        TensorRule("positions.table", (table,), (rows, d)),
        *block_rules(blocks, sizes, "encoder."),
        *norm("encoder.norm", layout.norm, d),
        *linear("head", layout.head, classes, d),
    ]
    names = class_names(foreign.args, classes)
    return ImportedNetwork(
        "cotrans" if audio else "cooadtr",
        arguments,
        apply(rules, tensors),
        classes,
        names,
        PAPER,
        task="sound classification" if audio else "online action detection",
    )


def _published(width: int, embed_dim: int, rows: int) -> dict[str, Any]:
    """Return the authors' settings for a network of these sizes."""
    if width == _VGGISH:
        return {"rate_hz": 4.0, **(_GTZAN if embed_dim == rows == _GTZAN_WIDTH else {})}
    window = {"window": _WINDOW} if rows in (_WINDOW, 2 * _WINDOW - 1) else {}
    return {"num_heads": 8, **window, "rate_hz": 5.0 if width in _AUDIOVISUAL else 4.0}


def find_layout(tensors: Mapping[str, object]) -> SequentialLayout | None:
    """Return the parameter layout; None when the names are not those of such a network."""
    for position in (2, 3):
        at = f"{position}."
        deep = continual_inference.is_deep(tensors, at)
        if continual_inference.detect_017(tensors, at):
            blocks = continual_inference.find_blocks_017(tensors, at)
        elif continual_inference.detect(tensors, at):
            blocks = continual_inference.find_blocks(tensors, at)
        else:
            continue
        return SequentialLayout(blocks, f"{position + 1}.fn", f"{position + 2}", deep)
    return None


# DeepCoT (Carreto Picon et al., 2025) has the same layout; with one block it is the same network as
# CoTrans.


def _is_deep(tensors: Mapping[str, object]) -> bool:
    """Return whether the names are those of a DeepCoT with two or more blocks."""
    layout = find_layout(tensors)
    return layout is not None and layout.deep


@importer("deepcot", summary="DeepCoT", detect=_is_deep, keys=KEYS, order=4)
def convert_deepcot(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network, as ``convert`` does; ModelError for ``stack=exact``."""
    settings.check("stack", "deepcot")
    layout = require_layout(foreign.tensors)
    imported = read(foreign, settings, layout)
    return convert_to_deepcot(imported, settings, trained=layout.deep)
