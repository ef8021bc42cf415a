"""Importer of OadTR checkpoints (Wang et al., Online Action Detection with Transformers, 2021).

Their ``args`` namespace contains the heads, the window and the class names; without it, they are
the published ones. Learned positions are a table of window + 1 rows. The fixed ones add, at batch
size one, row 0 of their table to every token, and the network here does so for every stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from costream.core.label_sets import class_names
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import has_tensors, importer
from costream.weights_io.tensor_rules import (
    ImportedNetwork,
    TensorRule,
    apply,
    linear,
    matrix,
    norm,
    shape_of,
)

KEYS = (
    "num_heads",
    "decoder_heads",
    "window",
    "input_width",
    "embed_dim",
    "feedforward",
    "depth",
    "num_classes",
    "num_queries",
    "decoder_depth",
    "decoder_feedforward",
)
PAPER = "https://arxiv.org/abs/2106.11149"
# The authors' settings. Their features have a row for every 6 frames at 24 frames per second.
_PUBLISHED = {"num_heads": 8, "decoder_heads": 4, "rate_hz": 4.0}
_WINDOW = {"window": 64}  # where the positions do not determine it
_ALIASES = {"num_heads": "num_heads", "decoder_num_heads": "decoder_heads", "enc_layers": "window"}
# In the file, but the network's output does not depend on them.
_UNUSED = (
    "position_encoding.position_ids",
    "decoder_position_encoding.position_ids",
    "decoder_position_encoding.pe.weight",
    "decoder_position_encoding.pe",
)


@importer(
    "oadtr",
    summary="official OadTR",
    detect=has_tensors("linear_encoding.weight", "decoder_cls_token"),
    keys=KEYS,
    order=1,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and contradictory settings."""
    tensors = foreign.tensors
    settings.adopt(foreign.args, _ALIASES)
    settings.suggest(_PUBLISHED)
    learned = "position_encoding.pe.weight" in tensors
    arguments = _arguments(tensors, settings, learned)
    rules = [*_encoder_rules(arguments, tensors, learned), *_decoder_rules(arguments)]
    return ImportedNetwork(
        "oadtr",
        arguments,
        apply(rules, tensors, _UNUSED),
        arguments["num_classes"],
        class_names(foreign.args, arguments["num_classes"]),
        PAPER,
    )


def _arguments(
    tensors: Mapping[str, Tensor], settings: ImportSettings, learned: bool
) -> dict[str, Any]:
    d, width = shape_of(tensors, "linear_encoding.weight", 2)
    nets = {name.split(".")[2] for name in tensors if name.startswith("encoder.net.")}
    layers = {name.split(".")[2] for name in tensors if name.startswith("decoder.layers.")}
    if learned:
        rows = shape_of(tensors, "position_encoding.pe.weight", 2)[0]
        window = settings.check("window", rows - 1)
    else:
        settings.suggest(_WINDOW)
        window = settings.require("window")
    feedforward = shape_of(tensors, "encoder.net.1.fn.fn.net.0.weight", 2)[0]
    decoder_feedforward = shape_of(tensors, "decoder.layers.0.conv1.weight", 3)[0]
    return {
        "input_width": settings.check("input_width", width),
        "num_classes": settings.check("num_classes", shape_of(tensors, "classifier.weight", 2)[0]),
        "embed_dim": settings.check("embed_dim", d),
        "depth": settings.check("depth", len(nets) // 2),
        "num_heads": settings.heads("num_heads", d),
        "feedforward": settings.check("feedforward", feedforward),
        "window": window,
        "positions": "learned" if learned else "fixed",
        "num_queries": settings.check("num_queries", shape_of(tensors, "decoder_cls_token", 3)[1]),
        "decoder_depth": settings.check("decoder_depth", len(layers)),
        "decoder_heads": settings.heads("decoder_heads", d),
        "decoder_feedforward": settings.check("decoder_feedforward", decoder_feedforward),
        "qkv_bias": "encoder.net.0.fn.fn.qkv.bias" in tensors,
        "out_bias": "encoder.net.0.fn.fn.proj.bias" in tensors,
    }


def _encoder_rules(
    a: Mapping[str, Any], tensors: Mapping[str, Tensor], learned: bool
) -> list[TensorRule]:
    d, ff = a["embed_dim"], a["feedforward"]
    rules = linear("input_projection", "linear_encoding", d, a["input_width"])
    rules.append(TensorRule("class_token", ("cls_token",), (1, 1, d)))
    table = "position_encoding.pe.weight" if learned else "position_encoding.pe"
    if learned:
        rules.append(TensorRule("positions.table", (table,), (a["window"] + 1, d)))
    else:
        rows = shape_of(tensors, table, 3)[0]
        rules.append(
            TensorRule("positions.table", (table,), (rows, 1, d), lambda pe: pe[0][0].clone())
        )
    for i in range(a["depth"]):
        to, attention, forward = (
            f"encoder.layers.{i}",
            *(f"encoder.net.{2 * i + k}.fn" for k in (0, 1)),
        )
        rules += norm(f"{to}.norm1", f"{attention}.norm", d)
        qkv = linear("", f"{attention}.fn.qkv", 3 * d, d, bias=a["qkv_bias"])
        rules += [
            TensorRule(f"{to}.self_attn.in_proj_{r.ours.removeprefix('.')}", r.theirs, r.shape)
            for r in qkv
        ]
        proj = f"{attention}.fn.proj"
        rules += linear(f"{to}.self_attn.out_proj", proj, d, d, bias=a["out_bias"])
        rules += norm(f"{to}.norm2", f"{forward}.norm", d)
        rules += linear(f"{to}.linear1", f"{forward}.fn.net.0", ff, d)
        rules += linear(f"{to}.linear2", f"{forward}.fn.net.3", d, ff)
    return [*rules, *norm("encoder.norm", "pre_head_ln", d)]


def _decoder_rules(a: Mapping[str, Any]) -> list[TensorRule]:
    d, ff, classes = a["embed_dim"], a["decoder_feedforward"], a["num_classes"]
    rules = [TensorRule("decoder_queries", ("decoder_cls_token",), (1, a["num_queries"], d))]
    for j in range(a["decoder_depth"]):
        at = f"decoder.layers.{j}"
        for ours, theirs in (
            ("self_attn", "self_attention"),
            ("multihead_attn", "cross_attention"),
        ):
            to = f"{at}.{ours}"
            names = [f"{at}.{theirs}.{part}_projection" for part in ("query", "key", "value")]
            rules.append(
                TensorRule(f"{to}.in_proj_weight", tuple(f"{n}.weight" for n in names), (d, d))
            )
            rules.append(TensorRule(f"{to}.in_proj_bias", tuple(f"{n}.bias" for n in names), (d,)))
            rules += linear(f"{to}.out_proj", f"{at}.{theirs}.out_projection", d, d)
        for ours, theirs, rows, columns in (
            ("linear1", "conv1", ff, d),
            ("linear2", "conv2", d, ff),
        ):
            # Convolutions of kernel size one are linear layers.
            weight = (rows, columns, 1)
            rules.append(
                TensorRule(f"{at}.{ours}.weight", (f"{at}.{theirs}.weight",), weight, matrix)
            )
            rules.append(TensorRule(f"{at}.{ours}.bias", (f"{at}.{theirs}.bias",), (rows,)))
        for part in ("norm1", "norm2", "norm3"):
            rules += norm(f"{at}.{part}", f"{at}.{part}", d)
    rules += norm("decoder.norm", "decoder.norm", d)
    rules += linear("head", "mlp_head", classes, 2 * d)
    return rules + linear("anticipation_head", "classifier", classes, d)
