"""Encoder layers of other libraries, found by their structure, as blocks of costream.

An encoder is a list of layers with queries, keys and values of one width d, or all three in one
product, an output of width d, two products with a hidden width between them and two layer norms.
Which norm comes first and which activation is used is found by trying: of the possible blocks, one
has to return what the layer returns.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from costream.nn.attention import MultiheadAttention
from costream.nn.block import ACTIVATIONS, EncoderBlock, EncoderConfig
from costream.nn.deepcot import DeepEncoder
from costream.nn.operation import ConversionError

_HEADS = ("num_attention_heads", "num_heads", "n_heads", "nhead")
_TOLERANCE = 1e-4  # relative, of a block against its layer in single precision


@dataclass(frozen=True)
class EncoderLayer:
    """The weights of a layer by what they are for."""

    name: str
    module: nn.Module
    qkv: tuple[nn.Linear, ...]  # three of [d, d], or one of [3 d, d]
    out: nn.Linear
    up: nn.Linear
    down: nn.Linear
    norms: tuple[nn.LayerNorm, ...]
    heads: int
    scales: tuple[Tensor, ...]  # of both branches (layer scale), or none

    @property
    def width(self) -> int:
        """Number of values of a row, d."""
        return self.out.out_features

    def call(self, rows: Tensor) -> Any:
        """Return the layer's result for rows [B, n, d], without a mask."""
        try:
            return self.module(rows)
        except TypeError:
            return self.module(rows, None)

    @property
    def has_bias(self) -> bool:
        """Whether any of the queries, keys and values has a bias."""
        return any(layer.bias is not None for layer in self.qkv)

    def load(self, block: EncoderBlock[Any], norm_order: int) -> None:
        """Copy the weights into a block."""
        attention: Any = block.self_attn
        with torch.no_grad():
            attention.in_proj_weight.copy_(torch.cat([layer.weight for layer in self.qkv]))
            if self.has_bias:
                zero = self.out.weight.new_zeros(self.width)
                bias: list[Tensor] = [zero if m.bias is None else m.bias for m in self.qkv]
                attention.in_proj_bias.copy_(torch.cat(bias))
            pairs = (
                (attention.out_proj, self.out),
                (block.linear1, self.up),
                (block.linear2, self.down),
            )
            for own, given in pairs:
                own.load_state_dict(given.state_dict())
            for own, scale in zip((attention.out_proj, block.linear2), self.scales, strict=False):
                own.weight.mul_(scale[:, None])
                own.bias.mul_(scale)
        block.norm1, block.norm2 = (
            copy.deepcopy(self.norms[k]) for k in (norm_order, 1 - norm_order)
        )


def find_layers(model: nn.Module) -> list[EncoderLayer]:
    """Return the layers of the longest encoder of ``model``; ConversionError without one."""
    found: list[EncoderLayer] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > len(found):
            layers = [_describe(f"{name}.{k}", layer) for k, layer in enumerate(module)]
            if all(layer is not None for layer in layers):
                found = [layer for layer in layers if layer is not None]
    if not found:
        raise ConversionError(
            f"{type(model).__name__} has no list of encoder layers",
            hint="each needs queries, keys, values, an output, two more Linear and two LayerNorm",
        )
    return found


def _describe(name: str, layer: nn.Module) -> EncoderLayer | None:
    """Return the weights of a layer by what they are for, or None for another structure."""
    linears = [(n.rpartition(".")[2], m) for n, m in layer.named_modules() if type(m) is nn.Linear]
    norms = tuple(m for m in layer.modules() if isinstance(m, nn.LayerNorm))
    qkv, heads = _projections(linears), _count_heads(layer)
    rest = [m for _, m in linears if m not in qkv]
    if len(qkv) not in (1, 3) or len(rest) != 3 or len(norms) != 2 or heads is None:
        return None
    out, up, down = rest
    widths = (up.in_features, down.out_features, down.in_features)
    if widths != (out.out_features, out.out_features, up.out_features):  # gated, or another order
        return None
    scales = _layer_scales(layer, [*(m for _, m in linears), *norms], out.out_features)
    return EncoderLayer(name, layer, qkv, out, up, down, norms, heads, scales)


def _projections(linears: Sequence[tuple[str, nn.Linear]]) -> tuple[nn.Linear, ...]:
    """Return the layers named "qkv", or else the last ones whose names begin with q, k and v."""
    fused = tuple(m for n, m in linears if n == "qkv")
    if fused:
        return fused
    by_letter = {n[0]: m for n, m in linears if n[:1] in ("q", "k", "v")}
    return tuple(by_letter[letter] for letter in "qkv" if letter in by_letter)


def _count_heads(layer: nn.Module) -> int | None:
    """Return the number of heads, an attribute of a module of the layer."""
    found = (getattr(m, name, None) for m in layer.modules() for name in _HEADS)
    return next((heads for heads in found if isinstance(heads, int)), None)


def _layer_scales(layer: nn.Module, others: Iterable[nn.Module], width: int) -> tuple[Tensor, ...]:
    """Return the vectors of ``width`` numbers that are no parameters of ``others``."""
    held = {id(p) for m in others for p in m.parameters()}
    return tuple(p for p in layer.parameters() if id(p) not in held and p.shape == (width,))


def match(layer: EncoderLayer) -> tuple[dict[str, Any], int]:
    """Return the options of ``EncoderConfig`` for an equal block, and which norm is the first.

    ConversionError for a layer that no block is equal to.
    """
    x = torch.randn(2, 5, layer.width, device=layer.out.weight.device, dtype=layer.out.weight.dtype)
    with torch.no_grad():
        try:
            wanted = layer.call(x)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConversionError(f"takes more than rows: {error}", where=layer.name) from error
        wanted = wanted[0] if isinstance(wanted, tuple) else wanted
        best: tuple[float, dict[str, Any], int] = (torch.inf, {}, 0)
        for first, order, activation in product((True, False), (0, 1), ACTIVATIONS):
            options = {"norm_first": first, "activation": activation, "qkv_bias": layer.has_bias}
            config = config_of(layer, 1, 1, options)
            block = EncoderBlock(MultiheadAttention(*config.size, **config.attention), config)
            block = block.to(x).eval()
            layer.load(block, order)
            off = float((block(x) - wanted).abs().max() / wanted.abs().max())
            if off < best[0]:
                best = off, options, order
    if best[0] > _TOLERANCE:
        raise ConversionError(
            "is not an encoder layer with softmax attention",
            where=layer.name,
            hint=f"the nearest differs by {best[0]:.1e}",
        )
    return best[1:]


def config_of(
    layer: EncoderLayer, depth: int, window: int, options: dict[str, Any]
) -> EncoderConfig:
    """Return the configuration of a stack of such layers."""
    sizes = (layer.width, layer.heads, layer.up.out_features, depth, window)
    return EncoderConfig(*sizes, **options)


class TransferredEncoder(DeepEncoder):
    """A ``DeepEncoder`` with the weights of another encoder."""

    change: float | None = None  # of the newest output for example rows, relative

    def report(self) -> str:
        """Return what was changed, and how much the output differs for the example rows."""
        lines = [
            f"{self.depth} layers, each attends to the last {self.window} of its inputs:"
            f" an output depends on {self.receptive_field} steps",
            f"positions: {'rotary' if self.rotary else 'as the input rows have them'}",
        ]
        if self.change is not None:
            lines.append(f"newest output against the window recomputed: {self.change:.1e}")
        return "\n".join(lines)


def to_deepcot(
    model: nn.Module,
    window: int,
    *,
    rotary: bool = False,
    soft: bool = False,
    rows: Tensor | None = None,
) -> TransferredEncoder:
    """Return the encoder of a transformer as a DeepCoT: a row in, a row out, at every step.

    The weights are copied. The rows are what the encoder's first layer takes, after the model's
    embedding; absolute positions of a model belong to them, and must repeat in a stream that goes
    on for ever (``RecyclingPositions``).

    Args:
        model: BERT, RoFormer, ViT, AST, wav2vec 2.0 and others of their structure, of transformers
            or timm; see the module.
        window: steps that each layer attends to.
        rotary: rotate queries and keys with the step (RoFormer).
        soft: the attention and the residuals of DeepCoT's analysis: SOFT, whose keys are its
            queries, and branches divided by the depth in place of norms. Needs training.
        rows: [B, T, d], on which the change is measured, see ``report``.

    Raises ConversionError where there are no such layers, or one of another kind.
    """
    layers = find_layers(model)
    options, order = match(layers[0])
    for layer in layers[1:]:
        if match(layer) != (options, order):
            raise ConversionError("differs from the first layer", where=layer.name)
    last = _final_norm(model, layers) if options["norm_first"] else None
    config = config_of(layers[0], len(layers), window, {**options, "final_norm": last is not None})
    plain = TransferredEncoder(config, rotary=rotary)
    for block, layer in zip(plain._blocks, layers, strict=True):
        layer.load(block, order)
    plain.norm = copy.deepcopy(last)
    plain = plain.to(layers[0].out.weight).eval()
    encoder = _soft(plain, rotary) if soft else plain
    if rows is not None:
        with torch.no_grad():
            wanted = recompute(plain, rows[:, -window:])
            own = encoder(rows)[:, -1]
        encoder.change = float((own - wanted).norm() / wanted.norm())
    return encoder


def recompute(encoder: DeepEncoder, rows: Tensor) -> Tensor:
    """Return the newest row [B, d] of ordinary layers over all of ``rows`` [B, n, d]."""
    times = torch.arange(rows.shape[1])
    turns = encoder.rotary.turns(times, rows) if encoder.rotary else None
    for block in encoder._blocks:
        attention, seen = block.self_attn, block.before_attention(rows)
        q, k, v = attention.project(seen, turns).unbind(2)
        rows = block.after_attention(rows, attention._attend(q, k, v, None))
    return encoder.normalise(rows[:, -1])


def _final_norm(model: nn.Module, layers: list[EncoderLayer]) -> nn.LayerNorm | None:
    """Return the layer norm of width d that follows the layers, or is in the same module."""
    parent = layers[0].name.rpartition(".")[0]
    inside = {m for layer in layers for m in layer.module.modules()}
    norms = [
        (name, m)
        for name, m in model.named_modules()
        if isinstance(m, nn.LayerNorm)
        and m not in inside
        and m.normalized_shape == (layers[0].width,)
    ]
    names = [name for name, _ in model.named_modules()]
    after = [m for name, m in norms if names.index(name) > names.index(parent)]
    beside = [m for name, m in norms if name.rpartition(".")[0] == parent.rpartition(".")[0]]
    return next(iter(after or beside), None)


def _soft(plain: TransferredEncoder, rotary: bool) -> TransferredEncoder:
    """Return the encoder with SOFT attention and scaled residuals, and the weights of ``plain``."""
    config = EncoderConfig(**{**plain.config.__dict__, "norm_first": False, "final_norm": False})
    soft = TransferredEncoder(config, rotary=rotary, attention="soft", residual="scaled")
    with torch.no_grad():
        for own, block in zip(soft._blocks, plain._blocks, strict=True):
            d = config.embed_dim
            for name, value in block.self_attn.named_parameters():
                kept = torch.cat([value[:d], value[2 * d :]]) if name.startswith("in_") else value
                own.self_attn.get_parameter(name).copy_(kept)
            own.linear1, own.linear2 = block.linear1, block.linear2
    like: Tensor = plain._blocks[0].linear1.weight
    return soft.to(like).eval()
