"""Importer of YOLOS from the model hub's files (names of the package ``transformers``)."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.core.records import OBJECT_DETECTION
from costream.models.eventful.yolos import COCO_CATEGORIES, PAPER, PATCH, PICTURES
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import has_tensors, importer
from costream.weights_io.tensor_rules import (
    ImportedNetwork,
    TensorRule,
    apply,
    linear,
    norm,
    shape_of,
)

_EMBEDDINGS = "vit.embeddings"
_TABLE = f"{_EMBEDDINGS}.position_embeddings"
_MIDDLE = "vit.encoder.mid_position_embeddings"
_FIRST, _LAST = f"{_EMBEDDINGS}.cls_token", f"{_EMBEDDINGS}.detection_tokens"
_PARTS = ("first", "patches.encoding", "last")  # of a TokenTable
_HEAD_DIM = 64
# Number of patches in the tables -> height and width: 800 x 1333 and 512 x 864 pixels.
TABLES = {4150: (50, 83), 1728: (32, 54)}


@importer(
    "yolos",
    summary="YOLOS of the Hugging Face hub",
    detect=has_tensors(_LAST, _TABLE),
    keys=("num_heads", "norm_eps"),
    order=19,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for tensors that are missing, left over or misshapen."""
    # transformers 5 puts the tables between blocks into a module of their own.
    tensors = {k.replace("interpolation.mid_", "mid_"): v for k, v in foreign.tensors.items()}
    _, detections, dim = shape_of(tensors, _LAST, 3)
    _, rows, _ = shape_of(tensors, _TABLE, 3)
    patches = rows - 1 - detections
    if patches not in TABLES:
        raise ModelError(f"the checkpoint does not fit: {_TABLE} has {rows} rows")
    columns = shape_of(tensors, "class_labels_classifier.layers.2.weight", 2)[0]
    if columns != COCO_CATEGORIES[-1] + 2:
        raise ModelError(f"the checkpoint has {columns - 1} classes, which are not those of COCO")
    depth = 1 + max(
        (int(m[1]) for m in (re.match(r"vit\.encoder\.layer\.(\d+)\.", k) for k in tensors) if m),
        default=-1,
    )
    middle = _MIDDLE in tensors
    # The hub's config.json says 1e-12, which is not what the authors trained with.
    settings.suggest({"norm_eps": 1e-6})
    heads = settings.get("num_heads") or max(1, dim // _HEAD_DIM)
    if dim % heads:
        settings.reject(f"num_heads={heads} does not divide the token width {dim}")
    named = apply(
        _rules(dim, depth, columns, detections, patches, middle),
        _with_positions(tensors, dim, depth, rows, detections),
        ["vit.pooler.dense.weight", "vit.pooler.dense.bias"],
    )
    short, long = PICTURES.get(dim, (800, 1333))
    return ImportedNetwork(
        "yolos",
        {
            "categories": COCO_CATEGORIES,
            "dim": dim,
            "heads": heads,
            "depth": depth,
            "detections": detections,
            "position_size": list(TABLES[patches]),
            "middle": middle,
            "norm_eps": settings.get("norm_eps"),
        },
        named,
        len(COCO_CATEGORIES),
        paper=PAPER,
        task=OBJECT_DETECTION,
        frontend="resized",
        frontend_arguments={"short": short, "long": long, "patch": PATCH},
        rate_hz=30.0,
    )


def _with_positions(
    tensors: Mapping[str, Tensor], dim: int, depth: int, rows: int, detections: int
) -> dict[str, Tensor]:
    """Return the tensors with the tables cut up; tokens without patches have theirs added."""
    out = dict(tensors)
    tables: dict[str, tuple[int, ...]] = {_TABLE: (1, rows, dim)}
    if _MIDDLE in out:
        tables[_MIDDLE] = (depth - 1, 1, rows, dim)
    for name, shape in tables.items():
        if tuple(out[name].shape) != shape:
            message = f"{name} is {tuple(out[name].shape)}, not {shape}"
            raise ModelError(f"the checkpoint does not fit: {message}")
    table = out.pop(_TABLE)
    out[_TABLE] = table[:, 1 : rows - detections]
    for name, own in ((_FIRST, table[:, :1]), (_LAST, table[:, rows - detections :])):
        if name in out and out[name].shape == own.shape:
            out[name] = out[name] + own
    counts = [1, rows - 1 - detections, detections]
    for k, middle in enumerate(out.pop(_MIDDLE, torch.empty(0))):
        named = zip(_PARTS, middle.split(counts, 1), strict=True)
        out |= {f"{_MIDDLE}.{k}.{part}": own for part, own in named}
    return out


def _rules(
    dim: int, depth: int, columns: int, detections: int, patches: int, middle: bool
) -> list[TensorRule]:
    """Return the rules of all tensors, after ``_with_positions``."""
    conv = f"{_EMBEDDINGS}.patch_embeddings.projection"
    rules = [
        TensorRule("embedding.conv.weight", (f"{conv}.weight",), (dim, 3, PATCH, PATCH)),
        TensorRule("embedding.conv.bias", (f"{conv}.bias",), (dim,)),
    ]
    counts = (1, patches, detections)
    tables: dict[str, tuple[str, ...]] = {"start": (_FIRST, _TABLE, _LAST)}
    if middle:
        tables |= {
            f"middle.{k}": tuple(f"{_MIDDLE}.{k}.{part}" for part in _PARTS)
            for k in range(depth - 1)
        }
    for ours, names in tables.items():
        rules += [
            TensorRule(f"{ours}.{part}", (name,), (1, count, dim))
            for part, name, count in zip(_PARTS, names, counts, strict=True)
        ]
    for k in range(depth):
        own, their = f"blocks.{k}", f"vit.encoder.layer.{k}"
        for end, shape in (("weight", (dim, dim)), ("bias", (dim,))):
            attention = f"{their}.attention.attention"
            three = tuple(f"{attention}.{name}.{end}" for name in ("query", "key", "value"))
            rules.append(TensorRule(f"{own}.qkv.{end}", three, shape))
        rules += norm(f"{own}.input_layer_norm", f"{their}.layernorm_before", dim)
        rules += linear(f"{own}.projection", f"{their}.attention.output.dense", dim, dim)
        rules += norm(f"{own}.mlp_layer_norm", f"{their}.layernorm_after", dim)
        rules += linear(f"{own}.mlp_1", f"{their}.intermediate.dense", 4 * dim, dim)
        rules += linear(f"{own}.mlp_2", f"{their}.output.dense", dim, 4 * dim)
    rules += norm("norm", "vit.layernorm", dim)
    heads = {"scores": ("class_labels_classifier", columns), "corners": ("bbox_predictor", 4)}
    for ours, (theirs, out) in heads.items():
        for k in range(3):
            width = out if k == 2 else dim
            rules += linear(f"{ours}.{2 * k}", f"{theirs}.layers.{k}", width, dim)
    return rules
