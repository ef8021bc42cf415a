"""TeSTra and LSTR: a window of rows, and a memory of all rows before it.

Checkpoints are those of the authors' code (Zhao and Krähenbühl, ECCV 2022, and Xu et al., NeurIPS
2021, whose tensors have the same names). The last rows of a stream are the window. Of those before
it every ``memory_every``-th one, counted back from the window, is remembered, the older the less.
So there are as many memories as that, each of which every window of its turn reads; row 0 begins
each of them, as the authors' padding does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.core.label_sets import class_names
from costream.models.oad.cooadtr import THUMOS14, OadOutput
from costream.models.spec import register_model
from costream.nn.state import State, zeros
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

_PERIOD = 10_000.0  # of the slowest sine of the positions, over 2 pi
_ROWS = 2048  # of windows that are decoded at once
_SAMPLES = 512  # remembered rows in the authors' evaluation


@dataclass
class TeSTraState(State):
    """State of streams."""

    steps: Tensor  # int64 [B], rows seen
    rows: Tensor  # [B, n, 2 d]: the last rows, projected for the window and for the memories
    weights: Tensor  # [B, E, h, M]: logarithms of the sums of the weights of each memory
    means: Tensor  # [B, E, h, M, e]: of the values with these weights


class Queries(NamedTuple):
    """The queries of the memories, which no row changes."""

    rows: Tensor  # [M, d]
    heads: Tensor  # [h, M, e], projected


@register_model(
    "testra",
    summary="online action detection, a window and a memory of all before it",
    listed=4,
    order=7,
    arguments=THUMOS14,
)
class TeSTra(nn.Module):
    """A decoder over a window, which also attends to a compressed memory of the rows before it.

    Zhao and Krähenbühl, "Real-time online video detection with temporal smoothing transformers"
    (TeSTra, ECCV 2022); with ``memory_decay`` 1 and no more rows than its memory holds, also Xu
    et al., "Long short-term transformer for online action detection" (LSTR, NeurIPS 2021). M
    learned queries attend to the remembered rows with weights exp(q k) decay^age, other queries to
    the result, and the window to the result of those and to itself. A step takes constant time
    and memory: the weighted means are updated, and the window is decoded, of its last layer the
    newest row alone.

    The authors evaluate with the last 512 remembered rows; here older ones have their weights, too,
    below 2e-7 together at a decay of 0.97. Their streaming code keeps a maximum of logits that may
    overflow, and counts row 0 twice in one memory; this does neither.

    Args:
        input_width: width of a feature row. ``num_classes``: K.
        embed_dim: d. ``num_heads``: h. ``feedforward``: width of feed-forward layers.
        window: rows of the window. ``memory``: M, queries of the remembered rows.
        refined: queries of the second stage. ``depth``: its layers. ``decoder_depth``: of the
            decoder.
        memory_every, memory_decay: every how many rows one is remembered, and the decay for each.
        dropout: in training.
        projection: makes the layers before the rectifiers of rows, of their width and d.

    ValueError for other decays than those above 0, up to 1, and for sizes below 1.
    """

    delay = 0
    exact = True
    context = 0  # rows before the window that are decoded with it
    samples = _SAMPLES
    positions: Tensor

    def __init__(  # noqa: PLR0913 - the sizes of the network
        self,
        input_width: int,
        num_classes: int,
        *,
        embed_dim: int = 1024,
        num_heads: int = 16,
        feedforward: int = 1024,
        window: int = 32,
        memory: int = 16,
        refined: int = 32,
        depth: int = 2,
        decoder_depth: int = 2,
        memory_every: int = 4,
        memory_decay: float = 0.97,
        dropout: float = 0.2,
        projection: Callable[[int, int], nn.Module] = nn.Linear,
    ) -> None:
        super().__init__()
        if min(window, memory, refined, depth, decoder_depth, memory_every) < 1:
            raise ValueError("window, memory, refined, depths and memory_every must be at least 1")
        if not 0 < memory_decay <= 1:
            raise ValueError(f"memory_decay {memory_decay} must be above 0 and up to 1")
        if embed_dim % num_heads or embed_dim % 2:
            raise ValueError(f"embed_dim {embed_dim} is odd, or not a multiple of {num_heads}")
        self.window, self.every, self.decay = window, memory_every, memory_decay
        self.num_heads = num_heads

        sizes = (embed_dim, num_heads, feedforward, dropout)
        self.remembered = projection(input_width, embed_dim)
        self.input_projection = projection(input_width, embed_dim)
        self.queries = nn.Parameter(torch.randn(memory, embed_dim))
        self.compress, self.compress_norm = decoder_layer(*sizes), nn.LayerNorm(embed_dim)
        self.refining = nn.Parameter(torch.randn(refined, embed_dim))
        self.refine = nn.ModuleList(decoder_layer(*sizes) for _ in range(depth))
        self.refine_norm = nn.LayerNorm(embed_dim)
        self.decoder = nn.ModuleList(decoder_layer(*sizes) for _ in range(decoder_depth))
        self.decoder_norm = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes)
        self.register_buffer("positions", sines(window, embed_dim))

    @property
    def horizon(self) -> int:
        """Rows before the window that have 95 % of the weight, at equal products; 1024 at most."""
        ages = math.log(0.05) / min(-1e-9, math.log(self.decay))
        return self.every * min(_SAMPLES // 2, math.ceil(ages))

    def forward(self, x: Tensor, offset: int | Tensor = 0, last: int | None = None) -> OadOutput:
        """Return the output of every step of a clip [B, T, C], as stepping through it would.

        Memories are computed from all rows, as in the paper's equation 5. ``offset`` has no effect:
        positions are relative to the window. ``last``: return only this number of last steps.
        """
        steps = torch.arange(x.shape[1])[-(last or x.shape[1]) :]
        rows = F.relu(self.input_projection(x))
        keys, values = self._keys_values(F.relu(self.remembered(x)))  # [B, T, h, e]
        queries = self._queries()
        logits = torch.einsum("hme,bthe->bhmt", queries.heads, keys)
        ages = self._ages(steps, x.shape[1]).to(x.device)  # [S, T], inf where not remembered
        bias = torch.where(ages.isinf(), -math.inf, ages * math.log(self.decay)).to(logits.dtype)
        out = []
        size = self._together(len(x))
        for now, part in zip(torch.split(steps, size), torch.split(bias, size), strict=True):
            weights = (logits[:, None] + part[:, None, None]).softmax(-1)
            weights = F.dropout(weights, self.compress.dropout.p, self.training)
            means = torch.einsum("bshmt,bthe->bshme", weights, values)
            begin = (now - self.window + 1).clamp(min=0)
            index = begin[:, None] + torch.arange(-self.context, self.window)
            windows = rows[:, index.clamp(0, x.shape[1] - 1).to(x.device)]
            newest = (now - begin).expand(len(x), -1)
            out.append(self._decode(windows, newest, self._compressed(means, queries)))
        return _joined(out)

    def init_state(self, batch_size: int = 1) -> Any:
        """Return the initial state of a batch of streams."""
        (m, d), like = self.queries.shape, self.head.weight
        shape = (batch_size, self.every, self.num_heads, m)
        rows = zeros(batch_size, self.window + self.every, 2 * d, like=like)
        means = zeros(*shape, d // self.num_heads, like=like)
        return TeSTraState(zeros(batch_size), rows, zeros(*shape, like=like), means)

    def warmup(self, state: Any, ago: int = 0) -> tuple[bool, ...]:
        """Return for each stream whether its window was not yet full ``ago`` steps before."""
        return tuple(t - ago < self.window for t in state.steps.tolist())

    def forward_step(self, x: Tensor, state: Any) -> OadOutput:
        """Take one feature row [B, C] of every stream, return the output after it."""
        logits, anticipation = self.forward_steps(x[:, None], state)
        return OadOutput(logits[:, 0], None if anticipation is None else anticipation[:, 0])

    def forward_steps(self, x: Tensor, state: Any) -> OadOutput:
        """Take T feature rows [B, T, C], return the outputs of T calls of ``forward_step``."""
        rows = torch.cat([F.relu(self.input_projection(x)), F.relu(self.remembered(x))], -1)
        queries, size = self._queries(), self._together(len(x))
        out = []
        for part in torch.split(rows, size, 1) if x.shape[1] else ():
            parts = [self._advance(row, state, queries) for row in part.unbind(1)]
            windows, newest, means = (torch.stack(p, 1) for p in zip(*parts, strict=True))
            out.append(self._decode(windows, newest, self._compressed(means, queries)))
        return _joined(out) if out else OadOutput(x.new_zeros(*x.shape[:2], 0), None)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one step for one stream whose window is full."""
        return self._macs(1, 1)

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of the same output from all samples (TeSTra: 512) and the window."""
        return self._macs(self.samples, self.window + self.context)

    def _macs(self, remembered: int, projected: int) -> int:
        """Return the operations for so many remembered rows, and rows projected for the window."""
        refined, n = len(self.refining), self.window
        total = self._memory_macs(remembered, projected) + self._layer_macs(1, n, refined + n)
        total += (len(self.decoder) - 1) * self._layer_macs(n, n, refined + n)
        return total + self.head.weight.numel()

    def _memory_macs(self, remembered: int, projected: int) -> int:
        """Return the operations of ``_macs`` up to the memory that windows attend to."""
        (m, d), refined = self.queries.shape, len(self.refining)
        forward = 2 * self.compress.linear1.weight.numel()
        width = sum(p.numel() for p in self.remembered.parameters() if p.dim() == 2)
        total = (remembered + projected) * width + remembered * (2 * d * d + 2 * m * d)
        total += m * (4 * d * d + 2 * m * d) + m * (2 * d * d + forward)  # queries, compress
        return total + len(self.refine) * self._layer_macs(refined, refined, m)

    def _layer_macs(self, rows: int, own: int, others: int) -> int:
        """Return the operations of ``rows`` that attend to ``own`` of theirs, then ``others``."""
        d, forward = self.queries.shape[1], 2 * self.compress.linear1.weight.numel()
        products = 2 * rows * (own + others) * d + (4 * rows + 2 * own + 2 * others) * d * d
        return products + rows * forward

    def _together(self, batch_size: int) -> int:
        """Return how many steps are decoded at once, which bounds memory."""
        return max(1, _ROWS // (batch_size * (self.window + len(self.refining))))

    def _queries(self) -> Queries:
        layer, rows = self.compress, self.queries
        own = layer.self_attn(rows, rows, rows, need_weights=False)[0]
        rows = layer.norm1(rows + layer.dropout1(own))
        d, attention = rows.shape[1], layer.multihead_attn
        q = F.linear(rows, attention.in_proj_weight[:d], attention.in_proj_bias[:d])
        q = torch.unflatten(q, 1, (self.num_heads, -1)).transpose(0, 1)
        return Queries(rows, q / math.sqrt(q.shape[-1]))

    def _keys_values(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values [..., h, e] of projected rows [..., d]."""
        d, attention = rows.shape[-1], self.compress.multihead_attn
        both = F.linear(rows, attention.in_proj_weight[d:], attention.in_proj_bias[d:])
        keys, values = torch.unflatten(both, -1, (2, self.num_heads, -1)).unbind(-3)
        return keys, values

    def _ages(self, steps: Tensor, count: int) -> Tensor:
        """Return how many remembered rows ago each of ``count`` rows is; inf: not remembered."""
        begin = (steps - self.window + 1).clamp(min=0)[:, None]
        ago = (begin - torch.arange(count)).double()
        ages = torch.where((ago > 0) & (ago % self.every == 0), ago / self.every - 1, math.inf)
        ages[:, 0] = ((begin[:, 0] - 1) // self.every).clamp(min=0)
        return ages

    def _advance(self, row: Tensor, state: Any, queries: Queries) -> tuple[Tensor, Tensor, Tensor]:
        """Take a projected row [B, 2 d] of every stream.

        Return its window [B, n, d], the place of the newest row in it, int64 [B], and the means
        [B, h, M, e] of its memory.
        """
        now, slots, d = state.steps.clone(), state.rows.shape[1], row.shape[1] // 2
        streams = torch.arange(len(row))
        state.rows[streams, now % slots] = row.detach()
        begin = (now - self.window + 1).clamp(min=0)
        leaving = begin - self.every
        left = state.rows[streams, torch.where(now > 0, leaving, 0) % slots, d:]
        keys, values = self._keys_values(left)
        logits = torch.einsum("hme,bhe->bhm", queries.heads, keys)
        turn = begin % self.every
        old, means = state.weights[streams, turn], state.means[streams, turn]
        total = torch.logaddexp(old + math.log(self.decay), logits)
        share = torch.exp(logits - total).unsqueeze(-1)
        mixed = means + share * (values.unsqueeze(2) - means)
        first, push = now == 0, leaving > 0
        state.weights[first] = logits[first, None].detach()
        state.means[first] = values[first, None, :, None].detach()
        state.weights[streams[push], turn[push]] = total[push].detach()
        state.means[streams[push], turn[push]] = mixed[push].detach()
        state.steps += 1
        index = (begin[:, None] + torch.arange(self.window)) % slots
        windows = state.rows[streams[:, None], index, :d]
        return windows, now - begin, state.means[streams, turn]

    def _compressed(self, means: Tensor, queries: Queries) -> Tensor:
        """Return the memory [B, S, R, d] that windows attend to, for means [B, S, h, M, e]."""
        layer = self.compress
        read = layer.multihead_attn.out_proj(means.transpose(2, 3).flatten(3)).flatten(0, 1)
        y = layer.norm2(queries.rows + layer.dropout2(read))
        memory = self.compress_norm(layer.norm3(y + _feedforward(layer, y)))
        y = self.refining.expand(len(memory), -1, -1)
        for refine in self.refine:
            y = attend(cast(nn.TransformerDecoderLayer, refine), y, y, memory)
        refined: Tensor = self.refine_norm(y)
        return torch.unflatten(refined, 0, means.shape[:2])

    def _decode(self, windows: Tensor, newest: Tensor, memory: Tensor) -> OadOutput:
        """Return logits [B, S, K] of the newest rows of windows [B, S, n, d]."""
        n, memory = self.window, memory.flatten(0, 1)
        rows = (windows + self.positions).flatten(0, 1)
        at = newest.flatten().to(rows.device)
        seen = torch.cat([memory, rows], 1)
        later = torch.ones(n, n, dtype=torch.bool, device=rows.device).triu(1)
        wide = F.pad(later, (memory.shape[1], 0))
        *before, last = cast(list[nn.TransformerDecoderLayer], list(self.decoder))
        y = rows
        for layer in before:
            y = attend(layer, y, y, seen, later, wide)
        heads = torch.arange(len(rows), device=rows.device)
        hidden = later[at].repeat_interleave(self.num_heads, 0)[:, None]
        own, others = hidden, F.pad(hidden, (memory.shape[1], 0))
        newest_row = attend(last, y[heads, at][:, None], y, seen, own, others)
        logits = self.head(self.decoder_norm(newest_row[:, 0]))
        return OadOutput(torch.unflatten(logits, 0, windows.shape[:2]), None)


def decoder_layer(
    embed_dim: int, num_heads: int, feedforward: int, dropout: float
) -> nn.TransformerDecoderLayer:
    """Return a layer of these sizes."""
    sizes = (embed_dim, num_heads, feedforward, dropout)
    return nn.TransformerDecoderLayer(*sizes, F.relu, batch_first=True)


def _joined(outs: list[OadOutput]) -> OadOutput:
    """Return the outputs of successive steps as one."""
    ahead = [out.anticipation for out in outs if out.anticipation is not None]
    logits = torch.cat([out.logits for out in outs], 1)
    return OadOutput(logits, torch.cat(ahead, 1) if ahead else None)


def attend(
    layer: nn.TransformerDecoderLayer,
    y: Tensor,
    own: Tensor,
    others: Tensor,
    mask: Tensor | None = None,
    wide: Tensor | None = None,
) -> Tensor:
    """Return rows ``y`` after a layer, which attend to ``own`` and then to ``others``.

    ``mask``, ``wide``: which of these each row must not see.
    """
    read = layer.self_attn(y, own, own, attn_mask=mask, need_weights=False)[0]
    y = layer.norm1(y + layer.dropout1(read))
    read = layer.multihead_attn(y, others, others, attn_mask=wide, need_weights=False)[0]
    y = layer.norm2(y + layer.dropout2(read))
    out: Tensor = layer.norm3(y + _feedforward(layer, y))
    return out


def _feedforward(layer: nn.TransformerDecoderLayer, y: Tensor) -> Tensor:
    hidden = layer.dropout(F.relu(layer.linear1(y)))
    out: Tensor = layer.dropout3(layer.linear2(hidden))
    return out


def sines(rows: int, width: int) -> Tensor:
    """Return the positions [rows, width] of Vaswani et al. (2017)."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(_PERIOD) / width))
    angles = torch.arange(rows)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


PAPER = "https://arxiv.org/abs/2209.09236"
# The authors' settings for THUMOS14: 8 s of window, and a row of each second before it, at 4 rows
# a second. They are not in the tensors.
PUBLISHED_WIDTH = 1024  # of their networks
_PUBLISHED = {
    "num_heads": 16,
    "window": 32,
    "memory_every": 4,
    "memory_decay": 0.97,
    "rate_hz": 4.0,
}


@importer(
    "testra",
    summary="TeSTra or LSTR, online action detection",
    detect=has_tensors(
        "enc_queries.0.weight",
        "feature_head_long.input_linear.0.weight",
        without=("gen_query.weight",),  # CMeRT has it
    ),
    keys=("num_heads", "window", "memory_every", "memory_decay", "input_width", "num_classes"),
    order=25,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and contradictory settings.

    Anticipation and the classifiers of verbs and nouns have unused tensors.
    """
    tensors = foreign.tensors
    d, width = shape_of(tensors, "feature_head_long.input_linear.0.weight", 2)
    settings.suggest(_PUBLISHED if d == PUBLISHED_WIDTH else {"rate_hz": _PUBLISHED["rate_hz"]})
    arguments = read_sizes(tensors, settings, d, width)
    arguments["memory_decay"] = settings.require("memory_decay")
    window = arguments["window"]
    rules = [
        *linear("remembered", "feature_head_long.input_linear.0", d, width),
        *linear("input_projection", "feature_head_work.input_linear.0", d, width),
        positions_rule(tensors, window, f"window {window}"),
        *stage_rules(arguments),
    ]
    classes = arguments["num_classes"]
    names = class_names(foreign.args, classes)
    converted = apply(rules, tensors)
    return ImportedNetwork("testra", arguments, converted, classes, names, PAPER)


def read_sizes(
    tensors: Mapping[str, Tensor], settings: ImportSettings, d: int, width: int
) -> dict[str, Any]:
    """Return the arguments of a network of width d, for rows of ``width`` values."""
    classes = shape_of(tensors, "classifier.weight", 2)[0]
    return {
        "input_width": settings.check("input_width", width),
        "num_classes": settings.check("num_classes", classes),
        "embed_dim": d,
        "num_heads": settings.heads("num_heads", d),
        "feedforward": shape_of(tensors, "enc_modules.0.layers.0.linear1.weight", 2)[0],
        "window": settings.require("window"),
        "memory": shape_of(tensors, "enc_queries.0.weight", 2)[0],
        "refined": shape_of(tensors, "enc_queries.1.weight", 2)[0],
        "depth": count_parts(tensors, "enc_modules.1.layers"),
        "decoder_depth": count_parts(tensors, "dec_modules.layers"),
        "memory_every": settings.require("memory_every"),
    }


def count_parts(tensors: Mapping[str, Tensor], at: str) -> int:
    """Return how many numbered parts there are at a name."""
    start = f"{at}."
    return len({name[len(start) :].split(".")[0] for name in tensors if name.startswith(start)})


def positions_rule(tensors: Mapping[str, Tensor], rows: int, what: str) -> TensorRule:
    """Return the rule of the first rows of the positions; ModelError if there are fewer."""
    table = shape_of(tensors, "pos_encoding.pe", 3)
    if rows > table[0]:
        raise ModelError(f"{what}: the checkpoint has positions of {table[0]} rows")
    return TensorRule("positions", ("pos_encoding.pe",), table, lambda pe: pe[0][:rows, 0])


def stage_rules(a: Mapping[str, Any]) -> list[TensorRule]:
    """Return the rules of memory, decoder and classifier of a network with these arguments."""
    d, feedforward = a["embed_dim"], a["feedforward"]
    rules = [
        TensorRule("queries", ("enc_queries.0.weight",), (a["memory"], d)),
        TensorRule("refining", ("enc_queries.1.weight",), (a["refined"], d)),
        *norm("compress_norm", "enc_modules.0.norm", d),
        *norm("refine_norm", "enc_modules.1.norm", d),
        *norm("decoder_norm", "dec_modules.norm", d),
        *linear("head", "classifier", a["num_classes"], d),
    ]
    layers = [("compress", "enc_modules.0.layers.0")]
    layers += [(f"refine.{k}", f"enc_modules.1.layers.{k}") for k in range(a["depth"])]
    layers += [(f"decoder.{k}", f"dec_modules.layers.{k}") for k in range(a["decoder_depth"])]
    for ours, theirs in layers:
        rules += layer_rules(ours, theirs, d, feedforward)
    return rules


def layer_rules(ours: str, theirs: str, d: int, feedforward: int) -> list[TensorRule]:
    """Return the rules of a decoder layer of width d."""
    rules: list[TensorRule] = []
    for part in ("self_attn", "multihead_attn"):
        at, to = f"{theirs}.{part}", f"{ours}.{part}"
        weight, bias = f"{at}.in_proj_weight", f"{at}.in_proj_bias"
        rules.append(TensorRule(f"{to}.in_proj_weight", (weight,), (3 * d, d)))
        rules.append(TensorRule(f"{to}.in_proj_bias", (bias,), (3 * d,)))
        rules += linear(f"{to}.out_proj", f"{at}.out_proj", d, d)
    rules += linear(f"{ours}.linear1", f"{theirs}.linear1", feedforward, d)
    rules += linear(f"{ours}.linear2", f"{theirs}.linear2", d, feedforward)
    for k in (1, 2, 3):
        rules += norm(f"{ours}.norm{k}", f"{theirs}.norm{k}", d)
    return rules
