"""The official OadTR over a sliding window, as a baseline for CoOadTR.

The ``args`` namespace of a checkpoint contains the heads, the window and the class names; without
it, the published values are used. Learned positions are a table of window + 1 rows. With fixed
positions and batch size one, the authors' code adds row 0 of the table to every token; the network
here does so for every stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from costream.core.label_sets import class_names
from costream.models.oad.cooadtr import THUMOS14, OadOutput
from costream.models.spec import register_model
from costream.nn import ring
from costream.nn.attention import MultiheadAttention
from costream.nn.block import EncoderBlock, EncoderConfig, EncoderStack
from costream.nn.state import State, zeros
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


@dataclass
class OadTRState(State):
    """State of OadTR for each stream."""

    steps: Tensor  # int64 [B]
    rows: Tensor  # [B, n, d], rows after the input projection


@register_model(
    "oadtr",
    summary="online action detection over a sliding window, with anticipation",
    listed=3,
    order=5,
    arguments=THUMOS14,
)
class OadTR(nn.Module):
    """OadTR: Wang et al., "Online Action Detection with Transformers" (ICCV 2021).

    A window of n rows is projected; a class token follows the last one; positions are added;
    a pre-norm encoder gives the memory; a decoder of ``num_queries`` learned queries, one for
    each future step, attends to it. Positions are those in the window, so everything after the
    projection is recomputed at each step; only projected rows are cached, which does not change
    results. While a window is not full, its rows are at its end and the others are masked.

    Smaller forms (Table 1a of Continual Transformers): without a decoder there is no anticipation,
    and the head has no mean of its tokens; a class token may enter later, without a position, or be
    absent, and then the newest row is classified.

    Args:
        input_width: width of a feature row (RGB and flow). ``num_classes``: K.
        positions: "learned", or "fixed": the released code then adds row ``b`` of a sinusoidal
            table to every token of sample ``b`` of a batch; here, row 0 always, as it is when
            a window is evaluated by itself.
        class_token: block of the encoder that the class token enters, from 1; 0: no class token.
        num_queries: A. decoder_depth, decoder_heads, decoder_feedforward: sizes of the decoder;
            ``decoder_depth`` 0: no decoder.
        Further arguments are those of ``EncoderConfig``; ``config`` has the defaults.
    """

    delay = 0
    exact = True
    config: ClassVar[EncoderConfig] = EncoderConfig(
        *(1024, 8, 1024, 3, 64), norm_first=True, qkv_bias=False, final_norm=True, dropout=0.1
    )

    def __init__(
        self,
        input_width: int,
        num_classes: int,
        *,
        positions: str = "learned",
        class_token: int = 1,
        num_queries: int = 8,
        decoder_depth: int = 5,
        decoder_heads: int = 4,
        decoder_feedforward: int = 1024,
        **options: Any,
    ) -> None:
        super().__init__()
        config = replace(self.config, **options)
        d, window, dropout = config.embed_dim, config.window, config.dropout
        if not 0 <= class_token <= config.depth:
            raise ValueError(f"class_token {class_token} is not 0 or one of {config.depth} blocks")
        if decoder_depth < 0 or num_queries < 1:
            raise ValueError(
                f"decoder_depth {decoder_depth} must be at least 0, num_queries {num_queries} 1"
            )
        self.window, self.receptive_field = window, window
        self.input_projection = nn.Linear(input_width, d)
        self.class_token = nn.Parameter(torch.zeros(1, 1, d)) if class_token else None
        self.positions = WindowPositions(window + (class_token == 1), d, positions)
        self.dropout = nn.Dropout(dropout)
        self.encoder = WindowEncoder(config, class_token)
        self.decoder: nn.TransformerDecoder | None = None
        if decoder_depth:
            self.decoder_queries = nn.Parameter(torch.zeros(1, num_queries, d))
            self.decoder = nn.TransformerDecoder(
                nn.TransformerDecoderLayer(
                    d, decoder_heads, decoder_feedforward, dropout, "gelu", batch_first=True
                ),
                decoder_depth,
                nn.LayerNorm(d),
            )
        self.head = nn.Linear(2 * d if decoder_depth else d, num_classes)
        if decoder_depth:
            self.anticipation_head = nn.Linear(d, num_classes)

    def forward(self, x: Tensor, offset: int | Tensor = 0, last: int | None = None) -> OadOutput:
        """Return the output of every step of a clip [B, T, C], as stepping through it would.

        ``offset`` has no effect: positions are relative to the window. ``last``: return only this
        number of last steps.
        """
        last = min(last or x.shape[1], x.shape[1])
        x = x[:, -(last + self.window - 1) :]
        state = self.init_state(x.shape[0])
        return self._slide(torch.cat([state.rows, self.input_projection(x)], 1), state.steps, last)

    def init_state(self, batch_size: int = 1) -> OadTRState:
        """Return the initial state of a batch of streams."""
        table = self.positions.table
        return OadTRState(
            zeros(batch_size), zeros(batch_size, self.window, table.shape[1], like=table)
        )

    def warmup(self, state: OadTRState, ago: int = 0) -> tuple[bool, ...]:
        """Return for each stream whether its window was not yet full ``ago`` steps before."""
        return tuple(t - ago < self.window for t in state.steps.tolist())

    def forward_step(self, x: Tensor, state: OadTRState) -> OadOutput:
        """Take one feature row [B, C] of every stream, return the output after it."""
        logits, anticipation = self.forward_steps(x[:, None], state)
        return OadOutput(logits[:, 0], None if anticipation is None else anticipation[:, 0])

    def forward_steps(self, x: Tensor, state: OadTRState) -> OadOutput:
        """Take T feature rows [B, T, C], return the outputs of T calls of ``forward_step``."""
        rows = torch.cat([state.rows, self.input_projection(x)], 1)
        out = self._slide(rows, state.steps, x.shape[1])
        ring.store(state.rows.transpose(1, 2), rows, state.steps)
        state.steps += x.shape[1]
        return out

    def _slide(self, rows: Tensor, steps: Tensor, last: int) -> OadOutput:
        """Return the outputs of the last windows of rows [B, n + T, d]: ring, then new rows."""
        index, filled = ring.histories(steps, self.window, rows.shape[1] - self.window)
        filled = filled[:, -last:].to(rows.device)
        parts = ring.split(index[:, -last:], filled, len(rows) * (self.window + 1))
        outs = [self._windows(ring.gather(rows, i), f) for i, f in parts]
        ahead = None
        if self.decoder is not None:
            ahead = torch.cat([cast(Tensor, out.anticipation) for out in outs], 1)
        return OadOutput(torch.cat([out.logits for out in outs], 1), ahead)

    def _windows(self, rows: Tensor, filled: Tensor) -> OadOutput:
        """Return logits [B, T, K] and anticipation [B, T, A, K] of windows [B, T, n, d]."""
        shape = rows.shape[:2]
        tokens = rows.flatten(0, 1)
        mask = None if bool(filled.all()) else filled.flatten(0, 1)
        token: Tensor | None = self.class_token
        if token is not None:
            token = token.expand(len(tokens), 1, -1)
            mask = None if mask is None else nn.functional.pad(mask, (0, 1), value=True)
            if self.encoder.entry == 1:  # before positions are added
                tokens, token = torch.cat([tokens, token], 1), None
        memory = self.encoder(self.dropout(self.positions(tokens)), mask, token)
        newest = memory[:, -1]
        if self.decoder is None:
            return OadOutput(self.head(newest).unflatten(0, shape), None)
        future = self._decode(self.decoder, memory, mask)
        now = self.head(torch.cat([newest, future.mean(1)], 1))
        ahead = self.anticipation_head(future)
        return OadOutput(now.unflatten(0, shape), ahead.unflatten(0, shape))

    def _decode(self, decoder: nn.Module, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Return one token for each future step, [B, A, d]; none attends to later ones."""
        queries = self.decoder_queries.expand(len(memory), -1, -1)
        later = torch.ones(queries.shape[1], queries.shape[1], device=memory.device).triu(1).bool()
        missing = None if mask is None else ~mask
        decoded = decoder(queries, memory, later, memory_key_padding_mask=missing)
        return cast(Tensor, decoded)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one step for one stream whose window is full."""
        return self.dense_macs - (self.window - 1) * self.input_projection.weight.numel()

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of the same output when the projection is not cached either."""
        total = self.window * self.input_projection.weight.numel() + self.head.weight.numel()
        total += self.encoder.count_dense_macs(self.window)
        if self.decoder is None:
            return total
        queries = self.decoder_queries.shape[1]
        tokens = self.window + (self.class_token is not None)
        total += queries * self.anticipation_head.weight.numel()
        for layer in self.decoder.layers:
            total += _decoder_macs(cast(nn.TransformerDecoderLayer, layer), queries, tokens)
        return total


class WindowEncoder(EncoderStack):
    """Ordinary blocks that return all rows. Another row enters block ``entry``, from 1; 0: none."""

    def __init__(self, config: EncoderConfig, entry: int = 0) -> None:
        blocks = [
            EncoderBlock(MultiheadAttention(*config.size, **config.attention), config)
            for _ in range(config.depth)
        ]
        super().__init__(config, blocks)
        self.entry = entry

    def forward(
        self, x: Tensor, mask: Tensor | None = None, entering: Tensor | None = None
    ) -> Tensor:
        """Return all rows of ``x`` [B, m, d], followed by the row ``entering`` [B, 1, d].

        ``entering``: None if the row is in ``x`` or there is none. ``mask``: bool, for each
        returned row whether it exists.
        """
        for k, block in enumerate(self._blocks, 1):
            if k == self.entry and entering is not None:
                x = torch.cat([x, entering], 1)
            x = block(x, None if mask is None else mask[:, : x.shape[1]])
        return self.normalise(x)

    def count_dense_macs(self, rows: int) -> int:
        """Return the multiply-accumulates over ``rows`` rows and the entering row."""
        total = super().count_dense_macs(rows)
        for block in self._blocks[self.entry - 1 :] if self.entry else ():
            more = MultiheadAttention.count_macs
            total += more(block.self_attn, rows + 1) - more(block.self_attn, rows)
            total += block.count_macs(1)
        return total


class WindowPositions(nn.Module):
    """Adds a row of a table to each token of a window.

    ``kind``: "learned": one row per token. "fixed": the row [0, 1, 0, 1, ...] for all.
    """

    table: Tensor

    def __init__(self, tokens: int, width: int, kind: str) -> None:
        super().__init__()
        if kind == "learned":
            self.table = nn.Parameter(torch.randn(tokens, width))
        elif kind == "fixed":
            self.register_buffer("table", (torch.arange(width) % 2).float()[None])
        else:
            raise ValueError(f"positions {kind!r} is not learned or fixed")

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` [B, m, d] with positions added."""
        return x + self.table


def _decoder_macs(layer: nn.TransformerDecoderLayer, queries: int, tokens: int) -> int:
    """Return the multiply-accumulates of self-attention, cross-attention and feed-forward."""
    d = layer.norm1.normalized_shape[0]
    among = 4 * queries * d**2 + 2 * queries**2 * d
    cross = 2 * (queries + tokens) * d**2 + 2 * queries * tokens * d
    return among + cross + 2 * queries * layer.linear1.weight.numel()


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
# Tensors of the file that the output does not depend on.
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
