"""Temporal encoders of ViViT: over a window of class tokens, or with one window per block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from costream.models.eventful.backbone import PositionEncoding
from costream.nn import ring
from costream.nn.block import EncoderConfig
from costream.nn.deepcot import DeepEncoder, DeepState
from costream.nn.eventful.block import EventfulBlock
from costream.nn.eventful.counts import Operations
from costream.nn.position import PositionState, RecyclingPositions
from costream.nn.state import State, zeros


@dataclass
class TemporalWindowState(State):
    """The newest rows of every stream, in a ring."""

    steps: Tensor  # int64 [B]
    rows: Tensor  # [B, n, D]


class _Blocks(nn.Module):
    """A table of positions and blocks, with the parameter names of the published weights."""

    def __init__(self, dim: int, heads: int, depth: int, rows: int, mlp_ratio: int) -> None:
        super().__init__()
        self.position_encoding = PositionEncoding(dim, (1, rows))
        self.blocks = nn.ModuleList(
            EventfulBlock(dim, heads, None, mlp_ratio=mlp_ratio) for _ in range(depth)
        )

    def forward(self, x: Tensor, operations: Operations | None) -> Tensor:
        """Return rows [B, m, D], at the first m positions, encoded."""
        x = (x + self.position_encoding.encoding[:, : x.shape[1]])[:, None]
        if operations is not None:
            operations.add += x.numel()
        for block in self.blocks:
            x = block(x, operations)
        return x[:, 0]


class WindowTemporal(nn.Module):
    """An ordinary encoder of the newest ``window`` rows, recomputed at each step.

    A class token precedes them, and its output is that of the window. Positions are those in
    the window, so every row has another position after each step and nothing can be reused. The
    first windows are shorter, and begin at the first position as well.
    """

    def __init__(self, dim: int, heads: int, depth: int, window: int, mlp_ratio: int) -> None:
        super().__init__()
        self.window, self.dim = window, dim
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.backbone = _Blocks(dim, heads, depth, window + 1, mlp_ratio)
        self.layer_norm = nn.LayerNorm(dim, eps=1e-6)

    @property
    def receptive_field(self) -> int:
        """Rows that an output depends on."""
        return self.window

    def forward(self, x: Tensor, operations: Operations | None = None) -> Tensor:
        """Return the output [B, D] of the last ``window`` of rows [B, S, D]."""
        x = x[:, -self.window :]
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1)
        return cast(Tensor, self.layer_norm(self.backbone(x, operations)[:, 0]))

    def init_state(self, batch_size: int = 1) -> TemporalWindowState:
        """Return the initial state of a batch of streams."""
        rows = zeros(batch_size, self.window, self.dim, like=self.class_token)
        return TemporalWindowState(zeros(batch_size), rows)

    def warmup(self, state: TemporalWindowState) -> tuple[bool, ...]:
        """Return for each stream whether its window is not yet full."""
        return tuple(steps < self.window for steps in state.steps.tolist())

    def forward_step(self, x: Tensor, state: TemporalWindowState, operations: Operations) -> Tensor:
        """Take one row [B, D] of every stream, return the output [B, D] of its window."""
        ring.write(state.rows.transpose(1, 2), ring.advance(state.steps, self.window).slot, x)
        out = torch.empty_like(x)
        steps = state.steps
        filled = steps.clamp(max=self.window)
        for count in sorted(set(filled.tolist())):
            streams = (filled == count).nonzero().flatten()
            # oldest row first
            slots = (steps[streams, None] + torch.arange(-count, 0)) % self.window
            places = streams.to(x.device)
            rows = state.rows[places[:, None], slots.to(x.device)]
            out[places] = self(rows, operations)
        return out

    def count_macs(self) -> int:
        """Return the cost of a step of one stream whose window is full."""
        rows = self.window + 1
        blocks = (cast(EventfulBlock, b).count_macs(1, rows) for b in self.backbone.blocks)
        return rows * self.dim + sum(blocks)

    @property
    def dense_macs(self) -> int:
        """The same as ``count_macs``, because every step recomputes the window."""
        return self.count_macs()


@dataclass
class DeepTemporalState(State):
    """State of positions and encoder for each stream."""

    positions: PositionState
    encoder: DeepState


class DeepTemporal(nn.Module):
    """A DeepCoT stack: each block stores keys and values of its last inputs.

    There is no class token, the output is that of the newest row, and positions are recycled, so
    a step costs one row in place of ``window`` + 1. Its ``forward`` over a clip, and stepping
    through the clip, are the same; it differs from ``WindowTemporal``, whose weights do not fit.
    See ``nn.deep``: this network has to be trained in this form.
    """

    def __init__(self, dim: int, heads: int, depth: int, window: int, mlp_ratio: int) -> None:
        super().__init__()
        self.positions = RecyclingPositions(window, dim)
        config = EncoderConfig(
            *(dim, heads, mlp_ratio * dim, depth, window), norm_first=True, final_norm=True
        )
        self.encoder = DeepEncoder(config)

    @property
    def receptive_field(self) -> int:
        """Rows that an output depends on."""
        return self.encoder.receptive_field

    def forward(self, x: Tensor, operations: Operations | None = None) -> Tensor:
        """Return the output [B, D] after the last of rows [B, S, D]."""
        if operations is not None:
            self._count(len(x) * x.shape[1], operations)
        return self.encoder(self.positions(x), last=1)[:, 0]  # type: ignore[no-any-return]

    def init_state(self, batch_size: int = 1) -> DeepTemporalState:
        """Return the initial state of a batch of streams."""
        positions = self.positions.init_state(batch_size)
        return DeepTemporalState(positions, self.encoder.init_state(batch_size))

    def warmup(self, state: DeepTemporalState) -> tuple[bool, ...]:
        """Return for each stream whether its receptive field is not yet full."""
        return self.encoder.warmup(state.encoder)

    def forward_step(self, x: Tensor, state: DeepTemporalState, operations: Operations) -> Tensor:
        """Take one row [B, D] of every stream, return the newest output, [B, D]."""
        self._count(len(x), operations)
        x = self.positions.forward_step(x, state.positions)
        return self.encoder.forward_step(x, state.encoder)

    def count_macs(self) -> int:
        """Return the cost of a step of one stream whose windows are full."""
        return self.encoder.count_macs()

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of the ordinary encoder over one window, which this replaces."""
        return self.encoder.dense_macs

    def _count(self, rows: int, operations: Operations) -> None:
        """Count rows as if every window were full."""
        weights = 2 * rows * self.encoder.depth * self.encoder.window * self.encoder.embed_dim
        operations.product += weights
        operations.linear += rows * self.encoder.count_macs() - weights


TEMPORAL = {"window": WindowTemporal, "deepcot": DeepTemporal}
