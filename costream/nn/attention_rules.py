"""Rules of conversion for attention over time: a window of it, at each step for the newest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn import layers
from costream.nn.attention import SingleOutputAttention
from costream.nn.block import EncoderConfig
from costream.nn.deepcot import DeepEncoder
from costream.nn.operation import Change, ConversionError, Operation
from costream.nn.parts import Part


def attention(op: Operation) -> Change | None:
    """``F.scaled_dot_product_attention`` over time."""
    axis, window, scale = op.axis, op.window, op.kwargs.get("scale")
    if axis != op.clip.dim() - 2:
        return None
    if len(op.args) < 3:
        raise ConversionError("keys and values have names", hint="give them by position")
    _check_mask(op.argument(3, "attn_mask"), hides=False)
    if op.argument(4, "dropout_p") or op.kwargs.get("enable_gqa"):
        raise ConversionError("it has dropout or groups", hint="no dropout_p, no enable_gqa")

    def make(root: nn.Module) -> Part:
        part = layers.WindowedAttention(window, scale=scale)
        part.axis = axis
        return part

    return _windowed(op, make, several=3)


def _windowed(
    op: Operation,
    make: Callable[[nn.Module], Part],
    each: str = "",
    stacked: bool = False,
    several: int = 1,
) -> Change:
    """Return the change to attention to a window, which has to be allowed.

    ``each``: what attends to a separate window; ``stacked``: whether there are several in a row.
    """
    op.need("windowed attention", f"it attends to all {op.frames} steps of the clip")
    return Change(
        make,
        f"window of {op.window} steps{each}",
        "windowed attention",
        newest_agrees=not stacked and op.window >= op.frames,
        several=several,
    )


def _check_mask(mask: Tensor | None, hides: bool) -> None:
    """Raise ConversionError for a mask of attention, but one that hides later steps alone.

    ``hides``: True in it hides.
    """
    if mask is None:
        return
    causal = torch.ones_like(mask, dtype=torch.bool).triu(1)
    if mask.is_floating_point():
        causal = torch.zeros_like(mask).masked_fill(causal, -torch.inf)
    elif not hides:
        causal = ~causal
    if not torch.equal(mask, causal):
        raise ConversionError(
            "it has a mask", hint="leave it out: a step attends to the window before it"
        )


def multihead(op: Operation) -> Change | None:
    """``nn.MultiheadAttention``, as self-attention over time."""
    layer: Any = op.module
    path, axis, window = op.target, op.axis, op.window
    if axis != int(layer.batch_first):
        return None
    others = op.argument(1, "key"), op.argument(2, "value")
    if any(x is not op.clip for x in others) or not layer._qkv_same_embed_dim:
        raise ConversionError("it is not self-attention", hint="queries, keys, values of one input")
    if layer.bias_k is not None or layer.add_zero_attn:
        raise ConversionError("it adds a step to the clip", hint="no add_bias_kv, no add_zero_attn")
    _check_mask(op.argument(3, "key_padding_mask"), hides=True)
    _check_mask(op.argument(5, "attn_mask"), hides=True)
    return _windowed(
        op, lambda root: layers.Rows(_attention_of(root.get_submodule(path), window), axis)
    )


def _attention_of(layer: Any, window: int) -> SingleOutputAttention:
    """Return attention to a window that shares the weights of ``nn.MultiheadAttention``."""
    bias = layer.in_proj_bias is not None
    own = SingleOutputAttention(
        layer.embed_dim, layer.num_heads, window, qkv_bias=bias, out_bias=bias
    )
    own._parameters = {"in_proj_weight": layer.in_proj_weight, "in_proj_bias": layer.in_proj_bias}
    own.out_proj = layer.out_proj
    return own.train(layer.training)


def encoder(op: Operation) -> Change | None:
    """``nn.TransformerEncoder`` and its layer, over time."""
    module: Any = op.module
    path, axis, window = op.target, op.axis, op.window
    first = module.layers[0] if isinstance(module, nn.TransformerEncoder) else module
    if axis != int(first.self_attn.batch_first):
        return None
    _check_mask(op.argument(1, "mask", op.kwargs.get("src_mask")), hides=True)
    _check_mask(op.argument(2, "src_key_padding_mask"), hides=True)
    return _windowed(
        op,
        lambda root: layers.Rows(_encoder_of(root.get_submodule(path), window), axis),
        " a layer",
        stacked=first is not module and len(module.layers) > 1,
    )


def _encoder_of(module: Any, window: int) -> DeepEncoder:
    """Return a DeepCoT encoder that shares the weights of ``nn.TransformerEncoder``."""
    whole = isinstance(module, nn.TransformerEncoder)
    blocks: list[Any] = list(module.layers) if whole else [module]
    first, norm = blocks[0], module.norm if whole else None
    names = {F.gelu: "gelu", F.relu: "relu", torch.relu: "relu"}
    if first.activation not in names:
        raise ConversionError("its activation is not supported", hint="use 'gelu' or 'relu'")
    for k, block in enumerate(blocks):
        if (block.norm_first, block.activation) != (first.norm_first, first.activation):
            raise ConversionError(f"layer {k} differs from the first one in norm or activation")
    attention = first.self_attn
    config = EncoderConfig(
        attention.embed_dim, attention.num_heads, first.linear1.out_features, len(blocks), window,
        norm_first=first.norm_first, activation=names[first.activation],
        qkv_bias=attention.in_proj_bias is not None, out_bias=attention.out_proj.bias is not None,
        final_norm=norm is not None,
    )  # fmt: skip
    encoder = DeepEncoder(config)
    encoder.norm = norm
    for own, block in zip(encoder._blocks, blocks, strict=True):
        own.self_attn = _attention_of(block.self_attn, window)
        for name in ("linear1", "linear2", "norm1", "norm2"):
            setattr(own, name, getattr(block, name))
    return encoder.train(module.training)
