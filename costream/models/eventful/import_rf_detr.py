"""Importer of RF-DETR: files of the package ``rfdetr``, and of ``transformers``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.core.records import OBJECT_DETECTION
from costream.models.eventful.rf_detr import LONG, PAPER
from costream.models.eventful.yolos import COCO_CATEGORIES
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

_BACKBONE = "backbone.0.encoder.encoder"
_EMBEDDINGS = f"{_BACKBONE}.embeddings"
_PATCHES = f"{_EMBEDDINGS}.patch_embeddings.projection"
_TABLE, _CLASS = f"{_EMBEDDINGS}.position_embeddings", f"{_EMBEDDINGS}.cls_token"
_PROJECTOR = "backbone.0.projector.stages.0"
_DECODER = "transformer.decoder"
_PATCH, _WINDOWS, _POINTS, _HEAD_DIM, _SELF_DIM = 16, 2, 2, 64, 32
_QKV = {"q": "query", "k": "key", "v": "value"}
# Names of transformers -> those of rfdetr, one after the other.
_RENAMED = (
    (r"^model\.", ""),
    (r"^backbone\.backbone\.", f"{_BACKBONE}."),
    (r"^backbone\.projector\.layer_norm", f"{_PROJECTOR}.1"),
    (r"^backbone\.projector\.projector_layer\.(.*)\.norm\.", rf"{_PROJECTOR}.0.\1.bn."),
    (r"^backbone\.projector\.projector_layer\.", f"{_PROJECTOR}.0."),
    (r"(stages\.0\.0\.)bottlenecks", r"\1m"),
    (r"(stages\.0\.0\..*)conv([12])\.", r"\1cv\2."),
    (r"attention\.([qkv])_proj", lambda m: f"attention.attention.{_QKV[m[1]]}"),
    (r"attention\.o_proj", "attention.output.dense"),
    (r"^decoder\.", f"{_DECODER}."),
    (r"(decoder\.layers\.\d+)\.self_attn_layer_norm", r"\1.norm1"),
    (r"(decoder\.layers\.\d+)\.cross_attn_layer_norm", r"\1.norm2"),
    (r"(decoder\.layers\.\d+)\.layer_norm", r"\1.norm3"),
    (r"(decoder\.layers\.\d+)\.mlp\.fc", r"\1.linear"),
    (r"self_attn\.o_proj", "self_attn.out_proj"),
    (r"decoder\.layernorm", "decoder.norm"),
    (r"^(enc_out)", r"transformer.\1"),
    (r"^reference_point_embed", "refpoint_embed"),
)
_is_of_query = re.compile(r"(model\.)?query_feat\.weight$").match
_is_of_place = re.compile(r".*decoder\.layers\.0\.cross_attn\.sampling_offsets\.weight$").match


@importer(
    "rf-detr",
    summary="RF-DETR (nano, small, medium) of Roboflow",
    keys=(),
    detect=lambda tensors: any(map(_is_of_query, tensors)) and any(map(_is_of_place, tensors)),
    order=20,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for tensors that are missing, left over or misshapen."""
    tensors = _renamed(foreign.tensors)
    dim, _, patch, _ = shape_of(tensors, f"{_PATCHES}.weight", 4)
    if patch != _PATCH:
        raise ModelError(
            f"the checkpoint has patches of {patch} pixels, not {_PATCH}",
            hint="RF-DETR nano, small and medium can be imported",
        )
    _, rows, _ = shape_of(tensors, _TABLE, 3)
    side = round((rows - 1) ** 0.5)
    columns, channels = shape_of(tensors, "class_embed.weight", 2)
    if columns != COCO_CATEGORIES[-1] + 1:
        raise ModelError(f"the checkpoint has {columns - 1} classes, which are not those of COCO")
    _, width, *_ = shape_of(tensors, f"{_PROJECTOR}.0.cv1.conv.weight", 4)
    depth = _count(tensors, rf"{re.escape(_BACKBONE)}\.encoder\.layer\.(\d+)\.")
    parts = width // dim
    if width % dim or not depth or depth % parts or side**2 != rows - 1:
        raise ModelError("the checkpoint does not fit: it has another backbone")
    layers = _count(tensors, rf"{re.escape(_DECODER)}\.layers\.(\d+)\.")
    groups = _count(tensors, r"transformer\.enc_output\.(\d+)\.")
    queries = shape_of(tensors, "query_feat.weight", 2)[0] // max(1, groups)
    first = f"{_DECODER}.layers.0"
    weights = shape_of(tensors, f"{first}.cross_attn.attention_weights.weight", 2)[0]
    hidden = shape_of(tensors, f"{first}.linear1.weight", 2)[0]
    pairs = _count(tensors, rf"{re.escape(_PROJECTOR)}\.0\.m\.(\d+)\.")
    named = apply(
        [
            *_backbone(dim, depth, side),
            *_projector(width, channels, pairs),
            TensorRule("decoder.queries", ("query_feat.weight",), (queries, channels)),
            TensorRule("decoder.offsets", ("refpoint_embed.weight",), (queries, 4)),
            *_decoder(channels, columns, layers, weights, hidden),
        ],
        _prepared(tensors, dim, depth, channels, layers, queries),
        [
            f"{_EMBEDDINGS}.mask_token",
            "_kp_active_mask",
            *(k for k in tensors if re.match(r"transformer\.enc_out\w*\.(?!0\.)\d+\.", k)),
        ],
    )
    return ImportedNetwork(
        "rf-detr",
        {
            "categories": COCO_CATEGORIES,
            "dim": dim,
            "heads": max(1, dim // _HEAD_DIM),
            "depth": depth,
            "patch": _PATCH,
            "windows": _WINDOWS,
            "outputs": [depth // parts * (k + 1) for k in range(parts)],
            "position_size": side,
            "channels": channels,
            "layers": layers,
            "queries": queries,
            "self_heads": max(1, channels // _SELF_DIM),
            "cross_heads": weights // _POINTS,
            "points": _POINTS,
            "hidden": hidden,
        },
        named,
        len(COCO_CATEGORIES),
        paper=PAPER,
        task=OBJECT_DETECTION,
        frontend="resized",
        frontend_arguments={
            "short": side * _PATCH,
            "long": max(LONG, side * _PATCH),
            "patch": _PATCH * _WINDOWS,
            "square": True,
        },
        rate_hz=30.0,
    )


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under the names of the package ``rfdetr``."""
    out = {}
    for name, tensor in tensors.items():
        for pattern, theirs in _RENAMED:
            name = re.sub(pattern, theirs, name)
        out[name] = tensor
    for name in [k for k in out if ".self_attn.q_proj." in k]:
        three = [out.pop(name.replace("q_proj", f"{part}_proj"), None) for part in "qkv"]
        if all(isinstance(part, Tensor) for part in three):
            out[name.replace("q_proj.", "in_proj_")] = torch.cat(three)  # type: ignore[arg-type]
    return out


def _count(tensors: Mapping[str, Tensor], pattern: str) -> int:
    """Return one more than the largest number in names that begin like this."""
    found = (re.match(pattern, name) for name in tensors)
    return 1 + max((int(match[1]) for match in found if match), default=-1)


def _prepared(
    tensors: Mapping[str, Tensor], dim: int, depth: int, channels: int, layers: int, queries: int
) -> dict[str, Tensor]:
    """Return the tensors as ours are: scales multiplied into weights, training's groups left out.

    Tensors that are missing or misshapen stay as they are, for ``apply`` to report.
    """
    out = dict(tensors)

    def has(name: str, *shape: int) -> bool:
        return name in out and out[name].shape == shape

    for k in range(depth):
        block = f"{_BACKBONE}.encoder.layer.{k}"
        for scale, layer in (("1", "attention.output.dense"), ("2", "mlp.fc2")):
            factor = f"{block}.layer_scale{scale}.lambda1"
            names = [f"{block}.{layer}.{end}" for end in ("weight", "bias")]
            if has(factor, dim) and all(n in out and len(out[n]) == dim for n in names):
                scales = out.pop(factor)
                out[names[0]] = out[names[0]] * scales[:, None]
                out[names[1]] = out[names[1]] * scales
    if _TABLE in out and has(_CLASS, 1, 1, dim):
        out[_CLASS] = (out[_CLASS] + out[_TABLE][:, :1])[None]
        out[_TABLE] = out[_TABLE][:, 1:]
    for name in ("query_feat.weight", "refpoint_embed.weight"):
        if name in out:
            out[name] = out[name][:queries]
    for k in range(layers):
        own = f"{_DECODER}.layers.{k}.self_attn"
        for end, shape in (("weight", (3 * channels, channels)), ("bias", (3 * channels,))):
            if has(f"{own}.in_proj_{end}", *shape):
                rows = out.pop(f"{own}.in_proj_{end}")
                out[f"{own}.query_key.{end}"] = rows[: 2 * channels]
                out[f"{own}.value.{end}"] = rows[2 * channels :]
    return out


def _backbone(dim: int, depth: int, side: int) -> list[TensorRule]:
    rules = [
        TensorRule("embedding.conv.weight", (f"{_PATCHES}.weight",), (dim, 3, _PATCH, _PATCH)),
        TensorRule("embedding.conv.bias", (f"{_PATCHES}.bias",), (dim,)),
        TensorRule("class_token", (_CLASS,), (1, 1, 1, dim)),
        TensorRule("position.encoding", (_TABLE,), (1, side**2, dim)),
        *norm("norm", f"{_BACKBONE}.layernorm", dim),
    ]
    for k in range(depth):
        own, their = f"blocks.{k}", f"{_BACKBONE}.encoder.layer.{k}"
        for end, shape in (("weight", (dim, dim)), ("bias", (dim,))):
            three = tuple(f"{their}.attention.attention.{n}.{end}" for n in _QKV.values())
            rules.append(TensorRule(f"{own}.qkv.{end}", three, shape))
        rules += norm(f"{own}.input_layer_norm", f"{their}.norm1", dim)
        rules += linear(f"{own}.projection", f"{their}.attention.output.dense", dim, dim)
        rules += norm(f"{own}.mlp_layer_norm", f"{their}.norm2", dim)
        rules += linear(f"{own}.mlp_1", f"{their}.mlp.fc1", 4 * dim, dim)
        rules += linear(f"{own}.mlp_2", f"{their}.mlp.fc2", dim, 4 * dim)
    return rules


def _projector(width: int, channels: int, pairs: int) -> list[TensorRule]:
    half, theirs = channels // 2, f"{_PROJECTOR}.0"
    convolutions: list[tuple[str, str, Sequence[int]]] = [
        ("reduce", "cv1", (2 * half, width, 1, 1)),
        ("merge", "cv2", (channels, (2 + pairs) * half, 1, 1)),
    ]
    for k in range(pairs):
        both = [(f"pairs.{k}.{n}", f"m.{k}.cv{n + 1}", (half, half, 3, 3)) for n in (0, 1)]
        convolutions += both
    rules = norm("projector.norm", f"{_PROJECTOR}.1", channels)
    for ours, own, shape in convolutions:
        name = f"projector.{ours}"
        rules.append(TensorRule(f"{name}.weight", (f"{theirs}.{own}.conv.weight",), tuple(shape)))
        rules += norm(f"{name}.norm", f"{theirs}.{own}.bn", shape[0])
    return rules


def _decoder(
    channels: int, columns: int, layers: int, weights: int, hidden: int
) -> list[TensorRule]:
    rules = [
        *linear("decoder.token", "transformer.enc_output.0", channels, channels),
        *norm("decoder.token_norm", "transformer.enc_output_norm.0", channels),
        *linear("decoder.token_scores", "transformer.enc_out_class_embed.0", columns, channels),
        *_mlp("decoder.token_corners", "transformer.enc_out_bbox_embed.0", channels, 4, 3),
        *_mlp("decoder.position", f"{_DECODER}.ref_point_head", channels, channels, 2, 2),
        *norm("decoder.norm", f"{_DECODER}.norm", channels),
        *linear("decoder.scores", "class_embed", columns, channels),
        *_mlp("decoder.corners", "bbox_embed", channels, 4, 3),
    ]
    for k in range(layers):
        own, their = f"decoder.layers.{k}", f"{_DECODER}.layers.{k}"
        attention, cross = f"{their}.self_attn", f"{their}.cross_attn"
        rules += linear(f"{own}.query_key", f"{attention}.query_key", 2 * channels, channels)
        rules += linear(f"{own}.value", f"{attention}.value", channels, channels)
        rules += linear(f"{own}.out", f"{attention}.out_proj", channels, channels)
        rules += linear(f"{own}.places", f"{cross}.sampling_offsets", 2 * weights, channels)
        rules += linear(f"{own}.weights", f"{cross}.attention_weights", weights, channels)
        rules += linear(f"{own}.map_value", f"{cross}.value_proj", channels, channels)
        rules += linear(f"{own}.map_out", f"{cross}.output_proj", channels, channels)
        rules += linear(f"{own}.up", f"{their}.linear1", hidden, channels)
        rules += linear(f"{own}.down", f"{their}.linear2", channels, hidden)
        for n in range(3):
            rules += norm(f"{own}.norms.{n}", f"{their}.norm{n + 1}", channels)
    return rules


def _mlp(
    ours: str, theirs: str, width: int, out: int, layers: int, first: int = 1
) -> list[TensorRule]:
    """Return the rules of linear layers; the input is ``first`` times as wide as between them."""
    rules = []
    for k in range(layers):
        rows = out if k == layers - 1 else width
        columns = first * width if k == 0 else width
        rules += linear(f"{ours}.{2 * k}", f"{theirs}.layers.{k}", rows, columns)
    return rules
