"""Steps of token classifiers with an encoder, as graphs: one block, stacks, and DeepCoT.

Windows are shifted by a row in each step in place of being written in a ring, which gives the same
sums in another order.
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from costream.models.exporting.graph import StepGraph
from costream.models.oad.cooadtr import TokenClassifier
from costream.nn.attention import (
    MultiheadAttention,
    RetroactiveAttention,
    SingleOutputAttention,
)
from costream.nn.block import ACTIVATIONS, EncoderBlock
from costream.nn.deepcot import DeepEncoder
from costream.nn.encoder import Encoder

_HIDDEN = -1e30  # logit of a slot that has no row yet
_KNOWN = (SingleOutputAttention, RetroactiveAttention, MultiheadAttention)


def why_not_tokens(network: nn.Module) -> str:
    """Return why the step of a network is not exported; '' if it is."""
    if not isinstance(network, TokenClassifier):
        return "only encoders over tokens and graph convolutions of skeletons are"
    encoder = network.encoder
    if not isinstance(encoder, Encoder | DeepEncoder):
        return "its attention has landmarks, whose state is not a window"
    if getattr(encoder, "rotary", None) is not None:
        return "its positions are rotations by an angle that float32 does not hold"
    if any(type(b) is not EncoderBlock or type(b.self_attn) not in _KNOWN for b in encoder._blocks):
        return "its attention is not a softmax, or its blocks have no norms"
    return ""


def token_width(network: Any) -> int:
    """Return the width of the tokens of a token classifier."""
    layer = network.input_projection
    return int(network.encoder.embed_dim if layer is None else layer.in_features)


def add_tokens(graph: StepGraph, network: Any, x: str) -> str:
    """Add the step of a token classifier for a token [1, D]; return its logits [1, K]."""
    layer = network.input_projection
    if layer is not None:
        x = graph.linear(x, layer.weight, layer.bias)
    if network.positions is not None:
        table = network.positions.table
        row = graph.add("Mod", graph.steps_before(), graph.whole([len(table)]))
        x = graph.add("Add", x, graph.add("Gather", graph.constant(table), row, axis=0))
    blocks, norm = network.encoder._blocks, network.encoder.norm
    if isinstance(network.encoder, Encoder) and len(blocks) > 1:
        x = _stack(graph, blocks, x)
    else:
        for k, block in enumerate(blocks):
            q, *window = _project(graph, block, x, 1)
            size = block.self_attn.window
            keys, values = _kept(graph, block, window, f"_{k}")
            x = _finish(graph, block, _attend(graph, block, q, keys, values, 1, size), x)
    if norm is not None:
        x = graph.norm(x, norm)
    return x if network.head is None else graph.linear(x, network.head.weight, network.head.bias)


def _stack(graph: StepGraph, blocks: Any, x: str) -> str:
    """Add blocks over one window: every row changes with the newest; return that, [1, d]."""
    first, *middle, last = blocks
    n, width = first.self_attn.window, first.self_attn.embed_dim
    # Queries are state too: a row is projected once.
    parts = _project(graph, first, x, 1)
    q, keys, values = _kept(graph, first, parts, "_0", ("queries", "keys", "values"))
    rows = graph.keep("rows", x, (n, width), 0, 1)
    rows = graph.slice(rows, 0, 1, n + 1)
    y = _finish(graph, first, _attend(graph, first, q, keys, values, n, n), rows)
    for block in middle:
        q, keys, values = _project(graph, block, y, n)
        y = _finish(graph, block, _attend(graph, block, q, keys, values, n, n), y)
    q, keys, values = _project(graph, last, y, n)
    newest = graph.slice(q, 1, n - 1, n)
    attended = _attend(graph, last, newest, keys, values, 1, n)
    return _finish(graph, last, attended, graph.slice(y, 0, n - 1, n))


def _project(graph: StepGraph, block: Any, x: str, rows: int) -> list[str]:
    """Return queries, keys / sqrt(e) and values [h, rows, e] of rows [rows, d]."""
    attention = block.self_attn
    h, e = attention.num_heads, attention.head_dim
    seen = graph.norm(x, block.norm1) if block.norm_first else x
    projected = graph.linear(seen, attention.in_proj_weight, attention.in_proj_bias)
    heads = graph.add("Transpose", graph.reshape(projected, rows, 3, h, e), perm=[1, 2, 0, 3])
    q, key, value = (graph.add("Squeeze", part, graph.whole([0])) for part in graph.split(heads, 3))
    return [q, graph.add("Mul", key, graph.constant(1 / math.sqrt(e))), value]


def _kept(
    graph: StepGraph,
    block: Any,
    rows: list[str],
    end: str,
    names: tuple[str, ...] = ("keys", "values"),
) -> list[str]:
    """Return windows [h, n, e] that end with these rows, each a state of its name."""
    attention = block.self_attn
    h, e, n = attention.num_heads, attention.head_dim, attention.window
    windows = []
    for name, row in zip(names, rows, strict=True):
        joined = graph.keep(f"{name}{end}", row, (h, n, e), 1, 1)
        windows.append(graph.slice(joined, 1, 1, n + 1))
    return windows


def _attend(graph: StepGraph, block: Any, q: str, keys: str, values: str, rows: int, n: int) -> str:
    """Return [rows, d] for queries [h, rows, e] and a window of n keys and values."""
    attention = block.self_attn
    logits = graph.add("MatMul", q, graph.add("Transpose", keys, perm=[0, 2, 1]))
    first = graph.add("Sub", graph.whole([n - 1]), graph.steps_before())  # slot of the first row
    filled = graph.add("GreaterOrEqual", graph.whole(range(n)), first)
    logits = graph.add("Where", filled, logits, graph.constant(_HIDDEN))
    out = graph.add("MatMul", graph.add("Softmax", logits, axis=-1), values)
    out = graph.add("Transpose", out, perm=[1, 0, 2])
    out = graph.reshape(out, rows, attention.num_heads * attention.head_dim)
    return graph.linear(out, attention.out_proj.weight, attention.out_proj.bias)


def _finish(graph: StepGraph, block: Any, attended: str, x: str) -> str:
    y = graph.add("Add", attended, x)
    if not block.norm_first:
        y = graph.norm(y, block.norm1)
    z = graph.norm(y, block.norm2) if block.norm_first else y
    z = graph.linear(z, block.linear1.weight, block.linear1.bias)
    z = _activate(graph, block, z)
    z = graph.linear(z, block.linear2.weight, block.linear2.bias)
    z = graph.add("Add", z, y)
    return z if block.norm_first else graph.norm(z, block.norm2)


def _activate(graph: StepGraph, block: Any, x: str) -> str:
    kind = next(name for name, act in ACTIVATIONS.items() if act is block.activate)
    if kind == "none":
        return x
    if kind == "relu":
        return graph.add("Relu", x)
    return graph.add("Gelu", x, approximate="tanh" if kind == "gelu_tanh" else "none")
