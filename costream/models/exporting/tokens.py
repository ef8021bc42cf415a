"""Steps of networks over tokens, as graphs: one block, stacks, DeepCoT, OadTR and MiniROAD.

Windows are shifted by a row in each step, not written in a ring, which gives the same sums in
another order.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from costream.models.exporting.graph import DOUBLE, FLOAT, StepGraph
from costream.models.oad.cooadtr import TokenClassifier
from costream.models.oad.miniroad import MiniRoad
from costream.models.oad.oadtr import OadTR
from costream.nn.attention import MultiheadAttention, RetroactiveAttention, SingleOutputAttention
from costream.nn.block import ACTIVATIONS, EncoderBlock
from costream.nn.deepcot import DeepEncoder
from costream.nn.encoder import Encoder

_HIDDEN = -1e30  # logit of a slot that has no row yet
_KNOWN = (SingleOutputAttention, RetroactiveAttention, MultiheadAttention)


def why_not_tokens(network: nn.Module) -> str:
    """Return why the step of a network is not exported; '' if it is."""
    if isinstance(network, MiniRoad | OadTR):
        return ""
    if not isinstance(network, TokenClassifier):
        return "'costream help models' names the kinds of networks that are"
    encoder = network.encoder
    if network.memory is not None:
        return "it has a long memory"
    if not isinstance(encoder, Encoder | DeepEncoder):
        return "its attention has landmarks, whose state is not a window"
    if any(type(b) is not EncoderBlock or type(b.self_attn) not in _KNOWN for b in encoder._blocks):
        return "its attention is not a softmax, or its blocks have no norms"
    return ""


def token_width(network: Any) -> int:
    """Return the width of the tokens of a network."""
    layer = network.input_projection
    return int(network.encoder.embed_dim if layer is None else layer.in_features)


def add_tokens(graph: StepGraph, network: Any, x: str) -> str:
    """Add the step of a network for a token [1, D]; return its logits [1, K]."""
    layer, token = network.input_projection, x
    if layer is not None:
        x = graph.linear(x, layer.weight, layer.bias)
    if isinstance(network, MiniRoad):
        return _recurrent(graph, network, x)
    if isinstance(network, OadTR):
        return _window(graph, network, x)
    if network.positions is not None:
        table = network.positions.table
        row = graph.add("Mod", graph.steps_before(), graph.whole([len(table)]))
        x = graph.add("Add", x, graph.add("Gather", graph.constant(table), row, axis=0))
    blocks, norm = network.encoder._blocks, network.encoder.norm
    if isinstance(network.encoder, Encoder) and len(blocks) > 1:
        x = _stack(graph, blocks, x)
    else:
        rotary = getattr(network.encoder, "rotary", None)
        turns = None if rotary is None else _turns(graph, rotary.rates)
        for k, block in enumerate(blocks):
            q, *window = _project(graph, block, x, 1, turns)
            attention, (keys, values) = block.self_attn, _kept(graph, block, window, f"_{k}")
            filled = _filled(graph, attention.window)
            x = _finish(graph, block, _attend(graph, attention, q, keys, values, 1, filled), x)
    if norm is not None:
        x = graph.norm(x, norm)
    if network.head is None:
        return x
    x = graph.linear(x, network.head.weight, network.head.bias)
    if network.skip is None:
        return x
    return graph.add("Add", x, graph.linear(token, network.skip.weight, network.skip.bias))


def _stack(graph: StepGraph, blocks: Any, x: str) -> str:
    """Add blocks over one window: every row changes with the newest; return that, [1, d]."""
    first, *middle, last = blocks
    n, width = first.self_attn.window, first.self_attn.embed_dim
    # Queries are state too: a row is projected once.
    parts = _project(graph, first, x, 1)
    q, keys, values = _kept(graph, first, parts, "_0", ("queries", "keys", "values"))
    rows = graph.keep("rows", x, (n, width), 0, 1)
    rows = graph.slice(rows, 0, 1, n + 1)
    filled = _filled(graph, n)
    y = _finish(graph, first, _attend(graph, first.self_attn, q, keys, values, n, filled), rows)
    for block in middle:
        q, keys, values = _project(graph, block, y, n)
        attended = _attend(graph, block.self_attn, q, keys, values, n, filled)
        y = _finish(graph, block, attended, y)
    q, keys, values = _project(graph, last, y, n)
    newest = graph.slice(q, 1, n - 1, n)
    attended = _attend(graph, last.self_attn, newest, keys, values, 1, filled)
    return _finish(graph, last, attended, graph.slice(y, 0, n - 1, n))


def _turns(graph: StepGraph, rates: Tensor) -> tuple[str, str, str]:
    """Return cosines and sines [e] of this step's angles, and the quarter turn [e, e] of pairs."""
    steps = graph.add("Cast", graph.steps_before(), to=DOUBLE)
    angles = graph.add("Mul", steps, graph.double(rates.repeat_interleave(2)))
    waves = (graph.add(kind, angles) for kind in ("Cos", "Sin"))
    cosine, sine = (graph.add("Cast", wave, to=FLOAT) for wave in waves)
    quarter = torch.kron(torch.eye(len(rates)), torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    return cosine, sine, graph.constant(quarter)


def _turn(graph: StepGraph, rows: str, turns: tuple[str, str, str]) -> str:
    """Return rows [h, 1, e] of this step, their pairs rotated; see ``_turns``."""
    cosine, sine, quarter = turns
    turned = graph.add("Mul", graph.add("MatMul", rows, quarter), sine)
    return graph.add("Add", graph.add("Mul", rows, cosine), turned)


def _project(
    graph: StepGraph, block: Any, x: str, rows: int, turns: tuple[str, str, str] | None = None
) -> list[str]:
    """Return queries, keys / sqrt(e) and values [h, rows, e] of rows [rows, d]."""
    attention = block.self_attn
    h, e = attention.num_heads, attention.head_dim
    seen = graph.norm(x, block.norm1) if block.norm_first else x
    projected = graph.linear(seen, attention.in_proj_weight, attention.in_proj_bias)
    heads = graph.add("Transpose", graph.reshape(projected, rows, 3, h, e), perm=[1, 2, 0, 3])
    q, key, value = (graph.add("Squeeze", part, graph.whole([0])) for part in graph.split(heads, 3))
    if turns is not None:
        q, key = _turn(graph, q, turns), _turn(graph, key, turns)
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


def _filled(graph: StepGraph, n: int, more: int = 0) -> str:
    """Return which of n slots of a window have a row, bool; ``more`` slots behind them all do."""
    first = graph.add("Sub", graph.whole([n - 1]), graph.steps_before())  # slot of the first row
    return graph.add("GreaterOrEqual", graph.whole(range(n + more)), first)


def _attend(
    graph: StepGraph, attention: Any, q: str, keys: str, values: str, rows: int, filled: str = ""
) -> str:
    """Return [rows, d] for queries [h, rows, e] and keys and values [h, n, e].

    ``filled``: see ``_filled``. Without it, a query attends to no later key.
    """
    logits = graph.add("MatMul", q, graph.add("Transpose", keys, perm=[0, 2, 1]))
    if filled:
        logits = graph.add("Where", filled, logits, graph.constant(_HIDDEN))
    else:
        later = torch.full((rows, rows), _HIDDEN).triu(1)
        logits = graph.add("Add", logits, graph.constant(later))
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


def _window(graph: StepGraph, network: OadTR, x: str) -> str:
    """Add OadTR after the projection of a row: encoder and decoder over the window."""
    n, width, token = network.window, network.encoder.embed_dim, network.class_token
    rows = graph.slice(graph.keep("rows", x, (n, width), 0, 1), 0, 1, n + 1)
    filled = _filled(graph, n)
    for k, block in enumerate(network.encoder._blocks, 1):
        if k == network.encoder.entry and token is not None:
            rows = graph.add("Concat", rows, graph.constant(token[0]), axis=0)
            filled, n = _filled(graph, n, more=1), n + 1
        if k == 1:
            rows = graph.add("Add", rows, graph.constant(network.positions.table))
        q, keys, values = _project(graph, block, rows, n)
        attended = _attend(graph, block.self_attn, q, keys, values, n, filled)
        rows = _finish(graph, block, attended, rows)
    if network.encoder.norm is not None:
        rows = graph.norm(rows, network.encoder.norm)
    newest, head = graph.slice(rows, 0, n - 1, n), network.head
    if network.decoder is None:
        return graph.linear(newest, head.weight, head.bias)
    steps = network.decoder_queries.shape[1]
    future = graph.constant(network.decoder_queries[0])
    for layer in network.decoder.layers:
        future = _decode(graph, layer, future, rows, (steps, n), filled)
    future = graph.norm(future, cast(nn.LayerNorm, network.decoder.norm))
    ahead = network.anticipation_head
    later = graph.linear(future, ahead.weight, ahead.bias)
    graph.output("anticipation", graph.add("Softmax", later, axis=-1), (steps, ahead.out_features))
    mean = graph.reduce("ReduceMean", future, (0,), keep=True)
    both = graph.add("Concat", newest, mean, axis=1)
    return graph.linear(both, head.weight, head.bias)


def _decode(
    graph: StepGraph, layer: Any, x: str, memory: str, sizes: tuple[int, int], filled: str
) -> str:
    """Add a layer of a decoder, an ``nn.TransformerDecoderLayer`` with norms after the branches."""
    queries, rows = sizes
    among = _heads(graph, layer.self_attn, (x, x, x), (queries,) * 3)
    seen = _attend(graph, layer.self_attn, *among, queries)
    x = graph.norm(graph.add("Add", x, seen), layer.norm1)
    attention = layer.multihead_attn
    cross = _heads(graph, attention, (x, memory, memory), (queries, rows, rows))
    seen = _attend(graph, attention, *cross, queries, filled)
    x = graph.norm(graph.add("Add", x, seen), layer.norm2)
    y = graph.linear(x, layer.linear1.weight, layer.linear1.bias)
    y = graph.add("Gelu", y, approximate="none")
    y = graph.linear(y, layer.linear2.weight, layer.linear2.bias)
    return graph.norm(graph.add("Add", x, y), layer.norm3)


def _heads(
    graph: StepGraph, attention: Any, given: tuple[str, str, str], sizes: tuple[int, ...]
) -> tuple[str, str, str]:
    """Return queries / sqrt(e), keys and values [h, rows, e] of an ``nn.MultiheadAttention``."""
    h, e = attention.num_heads, attention.head_dim
    weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
    parts = []
    for x, rows, weight, bias in zip(given, sizes, weights, biases, strict=True):
        part = graph.reshape(graph.linear(x, weight, bias), rows, h, e)
        parts.append(graph.add("Transpose", part, perm=[1, 0, 2]))
    q, keys, values = parts
    return graph.add("Mul", q, graph.constant(1 / math.sqrt(e))), keys, values


def _recurrent(graph: StepGraph, network: MiniRoad, x: str) -> str:
    """Add MiniROAD after the projection of a row: a norm and a gated recurrent unit."""
    unit: Any = network.gru
    width = unit.hidden_size
    x = graph.add("Relu", graph.norm(x, network.norm))
    before = graph.input("hidden", (1, width))
    new = graph.linear(x, unit.weight_ih_l0, unit.bias_ih_l0)
    old = graph.linear(before, unit.weight_hh_l0, unit.bias_hh_l0)
    places = range(0, 3 * width, width)
    pairs = [[graph.slice(v, 1, at, at + width) for v in (new, old)] for at in places]
    reset, keep = (graph.add("Sigmoid", graph.add("Add", *pair)) for pair in pairs[:2])
    row, seen = pairs[2]
    found = graph.add("Tanh", graph.add("Add", row, graph.add("Mul", reset, seen)))
    hidden = graph.add("Add", found, graph.add("Mul", keep, graph.add("Sub", before, found)))
    graph.output("next_hidden", hidden, (1, width))
    return graph.linear(graph.add("Relu", hidden), network.head.weight, network.head.bias)
