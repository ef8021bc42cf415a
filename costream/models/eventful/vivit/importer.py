"""Importer of ViViT checkpoints (factorised encoder) of TAdaConv and the Eventful Transformers.

Both are the same network; TAdaConv's tensors are renamed. Its networks for EPIC-KITCHENS have a
second classifier for nouns, which is dropped. The Eventful Transformers include temporal encoders
and classifiers that were fine-tuned on gated tokens: such a file replaces tensors of the network,
see ``overlay``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.core.formatting import listed
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import importer
from costream.weights_io.tensor_rules import (
    EVENTFUL_PAPER,
    ImportedNetwork,
    apply,
    rename,
    rename_rules,
    shape_of,
)

_HEAD = 64  # width of a head where the number of heads is not given
_RATES_HZ = {97: 30.0, 400: 12.5}  # by the classes: EPIC-KITCHENS-100 and Kinetics-400
_BLOCK = r"\.(\d+)\."
# TAdaConv's names -> the Eventful Transformers', which are ours
_RENAMED = (
    (r"backbone\.stem\.conv1\.", "embedding.conv."),
    (r"backbone\.cls_token$", "spatial_model.class_token"),
    (r"backbone\.pos_embd$", "spatial_model.backbone.position_encoding.encoding"),
    (r"backbone\.norm\.", "spatial_model.layer_norm."),
    (r"backbone\.cls_token_out$", "temporal_model.class_token"),
    (r"backbone\.temp_embd$", "temporal_model.backbone.position_encoding.encoding"),
    (r"backbone\.norm_out\.", "temporal_model.layer_norm."),
    (r"head\.linear1?\.", "classifier."),
    *(
        (rf"backbone\.{layers}{_BLOCK}{theirs}\.", rf"{part}.backbone.blocks.\1.{ours}.")
        for layers, part in (("layers", "spatial_model"), ("layers_temporal", "temporal_model"))
        for theirs, ours in (
            ("norm", "input_layer_norm"),
            (r"attn\.to_qkv", "qkv"),
            (r"attn\.proj", "projection"),
            ("norm_ffn", "mlp_layer_norm"),
            (r"ffn\.net\.0", "mlp_1"),
            (r"ffn\.net\.3", "mlp_2"),
        )
    ),
)
_UNUSED = re.compile(r"head\.linear2\.")
_KNOWN = re.compile(r"(embedding|spatial_model|temporal_model|classifier)\.")
_TUNED = ("temporal_model.", "classifier.")


def detect(tensors: Mapping[str, object]) -> bool:
    """Return whether the names are those of a ViViT or of its temporal encoder."""
    return "temporal_model.class_token" in tensors or "backbone.cls_token_out" in tensors


def overlay(parts: Sequence[ForeignCheckpoint]) -> list[ForeignCheckpoint]:
    """Return a network followed by its tuned temporal encoder as one checkpoint.

    Other files are returned unchanged. Raises ModelError when the second file belongs to another
    network, or its other tensors differ from those of the first.
    """
    if len(parts) != 2 or not all(detect(part.tensors) for part in parts):
        return list(parts)
    base, tuned = ({_rename(name): t for name, t in part.tensors.items()} for part in parts)
    unknown = sorted(name for name in tuned if name not in base)
    other = sorted(
        name
        for name in tuned.keys() - set(unknown)
        if not name.startswith(_TUNED) and not torch.equal(tuned[name], base[name])
    )
    wrong = unknown or other
    if wrong:
        raise ModelError(
            f"is not a tuned temporal encoder of {parts[0].path.name}: {listed(wrong)}",
            where=parts[1].path,
            hint="give the file of the entire network first",
        )
    return [ForeignCheckpoint(parts[0].path, base | tuned, parts[0].args | parts[1].args)]


@importer(
    "vivit",
    summary="ViViT, factorised encoder, of TAdaConv or of the Eventful Transformers",
    detect=detect,
    keys=("num_heads",),
    merge=overlay,
    order=14,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and contradictory settings."""
    unused = sorted(name for name in foreign.tensors if _UNUSED.match(name))
    used = {name: value for name, value in foreign.tensors.items() if name not in unused}
    arguments = _arguments({_rename(name): value for name, value in used.items()}, settings)
    rules = rename_rules(used, lambda name: ours if _KNOWN.match(ours := _rename(name)) else None)
    frames = arguments["tubelet"] * arguments["window"]
    return ImportedNetwork(
        "vivit",
        arguments,
        apply(rules, foreign.tensors, unused),
        arguments["num_classes"],
        paper=EVENTFUL_PAPER,
        task="action recognition",
        frontend="crops",
        frontend_arguments={"size": arguments["size"][0] * arguments["patch"]},
        limits=f"Not used: {listed(unused)}." if unused else "",
        delay_steps=(frames - 1) / 2,
    )


def _arguments(tensors: Mapping[str, Tensor], settings: ImportSettings) -> dict[str, Any]:
    dim, _, tubelet, patch, _ = shape_of(tensors, "embedding.conv.weight", 5)
    rows = shape_of(tensors, "spatial_model.backbone.position_encoding.encoding", 3)[1]
    steps = shape_of(tensors, "temporal_model.backbone.position_encoding.encoding", 3)[1]
    side = math.isqrt(rows - 1)
    if side**2 != rows - 1:
        raise ModelError(f"the checkpoint does not fit: {rows - 1} tokens are not a square")
    if dim % _HEAD == 0:
        settings.suggest({"num_heads": dim // _HEAD})
    hidden = shape_of(tensors, "spatial_model.backbone.blocks.0.mlp_1.weight", 2)[0]
    classes = shape_of(tensors, "classifier.weight", 2)[0]
    if classes in _RATES_HZ:
        settings.suggest({"rate_hz": _RATES_HZ[classes]})
    return {
        "num_classes": classes,
        "dim": dim,
        "heads": settings.heads("num_heads", dim),
        "depth": _depth(tensors, "spatial_model"),
        "size": [side, side],
        "window": steps - 1,
        "temporal_depth": _depth(tensors, "temporal_model"),
        "tubelet": tubelet,
        "patch": patch,
        "mlp_ratio": hidden // dim,
    }


def _depth(tensors: Mapping[str, Tensor], part: str) -> int:
    pattern = re.compile(rf"{part}\.backbone\.blocks{_BLOCK}")
    return len({m[1] for name in tensors if (m := pattern.match(name))})


def _rename(name: str) -> str:
    return rename(name, _RENAMED) or name
