"""The official OadTR over a sliding window, as a baseline for CoOadTR."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from costream.models.oad.cooadtr import THUMOS14, OadOutput
from costream.models.spec import register_model
from costream.nn import ring
from costream.nn.attention import MultiheadAttention
from costream.nn.block import EncoderBlock, EncoderConfig, EncoderStack
from costream.nn.state import State, zeros


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

    The paper's smaller forms (Table 1a of Continual Transformers): without a decoder, which is
    neither a mean of its tokens in the head nor anticipation; with a class token that enters later
    and has no position, or with none, where the newest row is classified in its place.

    Args:
        input_width: width of a feature row (RGB and flow). ``num_classes``: K.
        positions: "learned", or "fixed": the released code then adds row ``b`` of a sinusoidal
            table to every token of sample ``b`` of a batch; here, row 0 always, as it is when
            a window is evaluated by itself.
        class_token: block of the encoder that the class token enters, from 1; 0: there is none.
        num_queries: A. decoder_depth, decoder_heads, decoder_feedforward: the decoder;
            ``decoder_depth`` 0: there is none.
        Others are those of ``EncoderConfig``, of the encoder; ``config`` has the defaults.
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

        ``offset`` has no effect; it is for compatibility with other networks: positions are those
        in the window. ``last``: only this number of last steps.
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
        """Return for each stream whether its window is not yet full, or was not, steps ``ago``."""
        return tuple(t - ago < self.window for t in state.steps.tolist())

    def forward_step(self, x: Tensor, state: OadTRState) -> OadOutput:
        """Take one feature row [B, C] of every stream, return the output after it."""
        logits, anticipation = self.forward_steps(x[:, None], state)
        return OadOutput(logits[:, 0], None if anticipation is None else anticipation[:, 0])

    def forward_steps(self, x: Tensor, state: OadTRState) -> OadOutput:
        """Take T feature rows [B, T, C], return what T calls of ``forward_step`` would."""
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
        """Return one token for each future step, [B, A, d]; each attends to no later one."""
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
    """Ordinary blocks; returns all rows. One more enters block ``entry``, from 1; 0: none does."""

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
        """Return all rows of ``x`` [B, m, d] and of ``entering`` [B, 1, d], behind them.

        ``entering``: None: the row is in ``x`` or there is none. ``mask``: bool, for each row that
        is returned; False: no row there.
        """
        for k, block in enumerate(self._blocks, 1):
            if k == self.entry and entering is not None:
                x = torch.cat([x, entering], 1)
            x = block(x, None if mask is None else mask[:, : x.shape[1]])
        return self.normalise(x)

    def count_dense_macs(self, rows: int) -> int:
        """Return the multiply-accumulates over ``rows`` rows and the one that enters."""
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
    own = 4 * queries * d**2 + 2 * queries**2 * d
    cross = 2 * (queries + tokens) * d**2 + 2 * queries * tokens * d
    return own + cross + 2 * queries * layer.linear1.weight.numel()
