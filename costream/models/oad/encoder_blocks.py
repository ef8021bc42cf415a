"""Key maps of transformer encoder blocks, independent of a checkpoint's own parameter names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.tensor_rules import (
    ImportedNetwork,
    TensorRule,
    apply,
    linear,
    norm,
    shape_of,
)

# The --config keys of an encoder without a classifier.
ENCODER_KEYS = (
    *("num_heads", "window", "activation", "embed_dim", "feedforward", "depth"),
    *("stack", "attention"),
)


@dataclass(frozen=True)
class EncoderBlockNames:
    """Parameter names of one encoder block in a checkpoint, up to ``.weight``."""

    attention: str  # up to .in_proj_weight and .out_proj.weight; rows [Wq; Wk; Wv]
    norm1: str
    linear1: str
    linear2: str
    norm2: str


@dataclass(frozen=True)
class EncoderBlockSizes:
    """Sizes of all blocks, read from the tensors of the first one."""

    embed_dim: int
    feedforward: int
    qkv_bias: bool
    out_bias: bool


def read_sizes(tensors: Mapping[str, Tensor], block: EncoderBlockNames) -> EncoderBlockSizes:
    """Return the sizes and biases of a block; ModelError when a tensor is missing."""
    feedforward, embed_dim = shape_of(tensors, f"{block.linear1}.weight", 2)
    return EncoderBlockSizes(
        embed_dim,
        feedforward,
        qkv_bias=f"{block.attention}.in_proj_bias" in tensors,
        out_bias=f"{block.attention}.out_proj.bias" in tensors,
    )


def block_rules(
    blocks: Sequence[EncoderBlockNames], sizes: EncoderBlockSizes, ours: str = ""
) -> list[TensorRule]:
    """Return the rules that map a stack of blocks to ``{ours}layers.{i}.*``."""
    d, ff = sizes.embed_dim, sizes.feedforward
    rules: list[TensorRule] = []
    for i, block in enumerate(blocks):
        to = f"{ours}layers.{i}"
        theirs = f"{block.attention}.in_proj"
        rules.append(
            TensorRule(f"{to}.self_attn.in_proj_weight", (f"{theirs}_weight",), (3 * d, d))
        )
        if sizes.qkv_bias:
            rules.append(TensorRule(f"{to}.self_attn.in_proj_bias", (f"{theirs}_bias",), (3 * d,)))
        theirs = f"{block.attention}.out_proj"
        rules += linear(f"{to}.self_attn.out_proj", theirs, d, d, bias=sizes.out_bias)
        rules += linear(f"{to}.linear1", block.linear1, ff, d)
        rules += linear(f"{to}.linear2", block.linear2, d, ff)
        rules += norm(f"{to}.norm1", block.norm1, d)
        rules += norm(f"{to}.norm2", block.norm2, d)
    return rules


def encoder(
    tensors: Mapping[str, Tensor],
    blocks: Sequence[EncoderBlockNames],
    settings: ImportSettings,
    *,
    final_norm: str | None,
    norm_first: bool,
) -> ImportedNetwork:
    """Return an encoder without a classifier; ``final_norm``: name of the last LayerNorm, if any.

    Heads, window and activation are not stored in the file and must be given.
    """
    sizes = read_sizes(tensors, blocks[0])
    rules = block_rules(blocks, sizes)
    if final_norm:
        rules += norm("norm", final_norm, sizes.embed_dim)
    arguments: dict[str, Any] = {
        "embed_dim": settings.check("embed_dim", sizes.embed_dim),
        "num_heads": settings.heads("num_heads", sizes.embed_dim),
        "feedforward": settings.check("feedforward", sizes.feedforward),
        "depth": settings.check("depth", len(blocks)),
        "window": settings.require("window"),
        "norm_first": norm_first,
        "activation": settings.require("activation", "relu"),
        "qkv_bias": sizes.qkv_bias,
        "out_bias": sizes.out_bias,
        "final_norm": final_norm is not None,
    }
    return ImportedNetwork("encoder", arguments, apply(rules, tensors), None)


# Conversion of ordinary encoders to DeepCoT: the same weights, but other results.


PAPER = "https://arxiv.org/abs/2511.17693"
# architecture of an ordinary encoder -> that with a memory in each block
_TWINS = {"cooadtr": "deepcot", "cotrans": "deepcot", "encoder": "deepcot-encoder"}


def apply_stack_setting(imported: ImportedNetwork, settings: ImportSettings) -> ImportedNetwork:
    """Return an imported network with the ``stack`` and ``attention`` of ``settings``.

    Raises ModelError for ``attention=soft`` where blocks have no memory of their own, and where
    ``stack=deepcot`` is not possible.
    """
    if settings.get("stack") == "deepcot" and imported.architecture not in _TWINS.values():
        return convert_to_deepcot(imported, settings, trained=False)
    if settings.get("attention") == "soft" and "attention" not in imported.arguments:
        raise ModelError("attention=soft requires DeepCoT", hint="add --config stack=deepcot")
    return imported


def convert_to_deepcot(
    imported: ImportedNetwork, settings: ImportSettings, *, trained: bool
) -> ImportedNetwork:
    """Return an imported encoder or classifier as DeepCoT.

    ``trained``: it was trained as DeepCoT; otherwise ``limits`` describes the difference. With
    ``attention=soft`` the key projections are dropped; the query projections replace them.
    """
    arguments, tensors = dict(imported.arguments), imported.tensors
    if settings.get("attention") == "soft":
        arguments["attention"] = "soft"
        tensors = {name: _without_keys(name, value) for name, value in tensors.items()}
    depth, window = arguments["depth"], arguments["window"]
    changed = depth > 1 and not trained
    note = (
        f"Run as DeepCoT but not trained as such: each of its {depth} blocks has its own window of"
        f" {window} steps, so an output depends on {depth * (window - 1) + 1} steps and differs"
        f" from that of the encoder over {window}. Evaluate it on your own data."
    )
    return dataclasses.replace(
        imported,
        architecture=_TWINS[imported.architecture],
        arguments=arguments,
        tensors=tensors,
        paper=PAPER,
        limits=" ".join(filter(None, (imported.limits, note if changed else ""))),
    )


def _without_keys(name: str, value: Tensor) -> Tensor:
    if not name.endswith((".in_proj_weight", ".in_proj_bias")):
        return value
    queries, _, values = value.chunk(3)
    return torch.cat([queries, values])
