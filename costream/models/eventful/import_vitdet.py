"""Importer of ViTDet checkpoints of detectron2 ((Cascade) Mask R-CNN) and Eventful Transformers.

Both are the same network; detectron2's tensors are renamed. They also differ in the interpolation
of positions to other image sizes, an argument of the network: detectron2 resizes the tables
linearly, the Eventful Transformers resize the matrices computed from them bicubically. Masks are
not supported; their tensors are dropped, and the card says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from costream.core.errors import ModelError
from costream.core.records import OBJECT_DETECTION
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import importer
from costream.weights_io.tensor_rules import (
    EVENTFUL_PAPER,
    ImportedNetwork,
    apply,
    rename,
    rename_rules,
    rows,
    shape_of,
)

PAPER = "https://arxiv.org/abs/2203.16527"
_DETECTRON2 = "backbone.net.blocks.0.attn.rel_pos_h"
_POSITIONS = "backbone.position_encoding.encoding"
# detectron2's layers of each feature map -> ours; it counts the norms as parts of convolutions
_PYRAMID = (
    {"0": 0, "1": 1, "3": 3, r"4\.norm": 5, "4": 4, r"5\.norm": 7, "5": 6},
    {"0": 0, r"1\.norm": 2, "1": 1, r"2\.norm": 4, "2": 3},
    {r"0\.norm": 1, "0": 0, r"1\.norm": 3, "1": 2},
    {r"1\.norm": 2, "1": 1, r"2\.norm": 4, "2": 3},
)
# detectron2's names -> the Eventful Transformers', which are ours
_RENAMED = (
    (r"backbone\.net\.patch_embed\.proj\.", "embedding.conv."),
    (r"backbone\.net\.pos_embed$", _POSITIONS),
    *(
        (rf"backbone\.net\.blocks\.(\d+)\.{theirs}", rf"backbone.blocks.\1.{ours}")
        for theirs, ours in (
            (r"norm1\.", "input_layer_norm."),
            (r"norm2\.", "mlp_layer_norm."),
            (r"attn\.qkv\.", "qkv."),
            (r"attn\.proj\.", "projection."),
            (r"attn\.rel_pos_h$", "relative_position.y_embedding"),
            (r"attn\.rel_pos_w$", "relative_position.x_embedding"),
            (r"mlp\.fc1\.", "mlp_1."),
            (r"mlp\.fc2\.", "mlp_2."),
        )
    ),
    *(
        (rf"backbone\.simfp_{stage + 2}\.{theirs}\.", f"pyramid.stages.{stage}.{ours}.")
        for stage, layers in enumerate(_PYRAMID)
        for theirs, ours in layers.items()
    ),
)
# Tensors of the mask head, or constants that are in the network's code.
_UNUSED = re.compile(r"roi_heads\.mask_|pixel_(mean|std)$|.*anchor_generator\.")
_KNOWN = re.compile(r"(embedding|backbone|pyramid|proposal_generator|roi_heads)\.")


def detect(tensors: Mapping[str, object]) -> bool:
    """Return whether the names are those of a ViTDet."""
    eventful = "backbone.blocks.0.relative_position.y_embedding" in tensors
    return eventful or _DETECTRON2 in tensors


@importer(
    "vitdet",
    summary="ViTDet of detectron2 or of the Eventful Transformers",
    detect=detect,
    keys=("num_heads",),
    order=11,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and contradictory settings."""
    of_detectron2 = _DETECTRON2 in foreign.tensors
    unused = sorted(name for name in foreign.tensors if _UNUSED.match(name))
    used = {name: value for name, value in foreign.tensors.items() if name not in unused}
    arguments = _arguments({_rename(name): value for name, value in used.items()}, settings)
    arguments["rule"] = "linear" if of_detectron2 else "bicubic"
    # from detectron2's configurations, and from that for video object detection
    arguments["proposals"] = 1000 if of_detectron2 or arguments["cascade"] else 300
    rules = rename_rules(
        used,
        lambda name: ours if _KNOWN.match(ours := _rename(name)) else None,
        lambda ours: _square if ours == _POSITIONS else rows,
    )
    return ImportedNetwork(
        "vitdet",
        arguments,
        apply(rules, foreign.tensors, unused),
        arguments["classes"],
        paper=PAPER if of_detectron2 else EVENTFUL_PAPER,
        task=OBJECT_DETECTION,
        frontend="pixels",
        frontend_arguments=_pixels(arguments),
        limits=f"Boxes only; not used: {', '.join(_summary(unused))}." if unused else "",
    )


def _arguments(tensors: Mapping[str, Tensor], settings: ImportSettings) -> dict[str, Any]:
    dim, _, patch, _ = shape_of(tensors, "embedding.conv.weight", 4)
    numbers = {int(m[1]) for name in tensors if (m := re.match(r"backbone\.blocks\.(\d+)\.", name))}
    depth = len(numbers)
    tables = [_sizes(tensors, number) for number in range(depth)]
    size = max(tables)
    head_dim = shape_of(tensors, "backbone.blocks.0.relative_position.y_embedding", 2)[1]
    if dim % head_dim:
        raise ModelError(f"the checkpoint does not fit: heads of {head_dim} in {dim}")
    cascade = "roi_heads.box_head.0.fc1.weight" in tensors
    stage = ".0" if cascade else ""
    convolution = re.compile(rf"roi_heads\.box_head{re.escape(stage)}\.conv\d+\.weight$")
    rows = shape_of(tensors, _POSITIONS, 3)[1]
    classes = shape_of(tensors, f"roi_heads.box_predictor{stage}.cls_score.weight", 2)[0] - 1
    return {
        "classes": classes,
        "dim": dim,
        "heads": settings.check("num_heads", dim // head_dim),
        "depth": depth,
        "global_blocks": [number for number, table in enumerate(tables) if table == size],
        "size": list(size),
        "window": list(min(tables)),
        "position_size": [math.isqrt(rows)] * 2,
        "mlp_ratio": shape_of(tensors, "backbone.blocks.0.mlp_1.weight", 2)[0] // dim,
        "patch": patch,
        "channels": shape_of(tensors, "pyramid.stages.2.0.weight", 4)[0],
        "width": shape_of(tensors, f"roi_heads.box_head{stage}.fc1.weight", 2)[0],
        "convolutions": sum(bool(convolution.match(name)) for name in tensors),
        "cascade": cascade,
    }


def _pixels(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the image frontend: the size that the positions were trained for."""
    (height, width), patch = arguments["size"], arguments["patch"]
    return {"box": [width * patch, height * patch], "patch": patch}


def _sizes(tensors: Mapping[str, Tensor], number: int) -> tuple[int, int]:
    """Return the number of tokens, down and across, that a block has positions for."""
    tables = (f"backbone.blocks.{number}.relative_position.{axis}_embedding" for axis in "yx")
    down, across = ((shape_of(tensors, name, 2)[0] + 1) // 2 for name in tables)
    return down, across


def _rename(name: str) -> str:
    return rename(name, _RENAMED) or name


def _square(parts: Sequence[Tensor]) -> Tensor:
    """Return positions [1, n n, D] without that of a leading class token."""
    rows = parts[0].shape[1]
    return parts[0][:, rows - math.isqrt(rows) ** 2 :]


def _summary(names: Sequence[str]) -> list[str]:
    """Return the names of modules instead of those of each of their tensors."""
    parts = (name.split(".") for name in names)
    return sorted({".".join(part[:2]) if len(part) > 2 else ".".join(part) for part in parts})
