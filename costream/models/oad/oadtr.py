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

    Args:
        input_width: width of a feature row (RGB and flow). ``num_classes``: K.
        positions: "learned", or "fixed": the released code then adds row ``b`` of a sinusoidal
            table to every token of sample ``b`` of a batch; here, row 0 always, as it is when
            a window is evaluated by itself.
        num_queries: A. decoder_depth, decoder_heads, decoder_feedforward: the decoder.
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
        num_queries: int = 8,
        decoder_depth: int = 5,
        decoder_heads: int = 4,
        decoder_feedforward: int = 1024,
        **options: Any,
    ) -> None:
        super().__init__()
        config = replace(self.config, **options)
        d, window, dropout = config.embed_dim, config.window, config.dropout
        self.window, self.receptive_field = window, window
        self.input_projection = nn.Linear(input_width, d)
        self.class_token = nn.Parameter(torch.zeros(1, 1, d))
        self.positions = WindowPositions(window + 1, d, positions)
        self.dropout = nn.Dropout(dropout)
        self.encoder = WindowEncoder(config)
        self.decoder_queries = nn.Parameter(torch.zeros(1, num_queries, d))
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(
                d, decoder_heads, decoder_feedforward, dropout, "gelu", batch_first=True
            ),
            decoder_depth,
            nn.LayerNorm(d),
        )
        self.head = nn.Linear(2 * d, num_classes)
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
        token = self.class_token
        return OadTRState(
            zeros(batch_size), zeros(batch_size, self.window, token.shape[2], like=token)
        )

    def warmup(self, state: OadTRState, ago: int = 0) -> tuple[bool, ...]:
        """Return for each stream whether its window is not yet full, or was not, steps ``ago``."""
        return tuple(t - ago < self.window for t in state.steps.tolist())

    def forward_step(self, x: Tensor, state: OadTRState) -> OadOutput:
        """Take one feature row [B, C] of every stream, return the output after it."""
        logits, anticipation = self.forward_steps(x[:, None], state)
        return OadOutput(logits[:, 0], cast(Tensor, anticipation)[:, 0])

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
        pairs = [self._windows(ring.gather(rows, i), f) for i, f in parts]
        logits, anticipation = (torch.cat(column, 1) for column in zip(*pairs, strict=True))
        return OadOutput(logits, anticipation)

    def _windows(self, rows: Tensor, filled: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [B, T, K] and anticipation [B, T, A, K] of windows [B, T, n, d]."""
        batch, count = rows.shape[:2]
        seen = nn.functional.pad(filled.flatten(0, 1), (0, 1), value=True)
        token = self.class_token.expand(batch * count, 1, -1)
        tokens = self.positions(torch.cat([rows.flatten(0, 1), token], 1))
        mask = None if bool(filled.all()) else seen
        memory = self.encoder(self.dropout(tokens), mask)
        future = self._decode(memory, mask)
        now = self.head(torch.cat([memory[:, -1], future.mean(1)], 1))
        shape = (batch, count)
        return now.unflatten(0, shape), self.anticipation_head(future).unflatten(0, shape)

    def _decode(self, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Return one token for each future step, [B, A, d]; each attends to no later one."""
        queries = self.decoder_queries.expand(len(memory), -1, -1)
        later = torch.ones(queries.shape[1], queries.shape[1], device=memory.device).triu(1).bool()
        missing = None if mask is None else ~mask
        decoded = self.decoder(queries, memory, later, memory_key_padding_mask=missing)
        return cast(Tensor, decoded)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one step for one stream whose window is full."""
        return self.dense_macs - (self.window - 1) * self.input_projection.weight.numel()

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of the same output when the projection is not cached either."""
        tokens, queries = self.window + 1, self.decoder_queries.shape[1]
        heads = self.head.weight.numel() + queries * self.anticipation_head.weight.numel()
        total = self.window * self.input_projection.weight.numel() + heads
        total += self.encoder.count_dense_macs(tokens)
        for layer in self.decoder.layers:
            total += _decoder_macs(cast(nn.TransformerDecoderLayer, layer), queries, tokens)
        return total


class WindowEncoder(EncoderStack):
    """Ordinary blocks; returns all rows."""

    def __init__(self, config: EncoderConfig) -> None:
        blocks = [
            EncoderBlock(MultiheadAttention(*config.size, **config.attention), config)
            for _ in range(config.depth)
        ]
        super().__init__(config, blocks)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return all rows of ``x`` [B, m, d]. ``mask``: bool [B, m], False: no row there."""
        for block in self._blocks:
            x = block(x, mask)
        return self.normalise(x)


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
