"""The temporal encoders of ViViT: over a window of class tokens, or each block with its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from costream.models.vitdet_backbone import PositionEncoding
from costream.nn import ring
from costream.nn.deep import DeepEncoder, DeepState
from costream.nn.eventful import EventfulBlock
from costream.nn.operations import Operations
from costream.nn.position import PositionState, RecyclingPositions
from costream.nn.state import State, zeros


@dataclass
class WindowState(State):
    """The newest rows of every stream, in a ring."""

    steps: Tensor  # int64 [B]
    rows: Tensor  # [B, n, D]


class _Blocks(nn.Module):
    """Blocks behind a table of positions, under the names of the published weights."""

    def __init__(self, dim: int, heads: int, depth: int, rows: int, mlp_ratio: int) -> None:
        super().__init__()
        self.position_encoding = PositionEncoding(dim, (1, rows))
        self.blocks = nn.ModuleList(
            EventfulBlock(dim, heads, None, mlp_ratio=mlp_ratio) for _ in range(depth)
        )

    def forward(self, x: Tensor, operations: Operations | None) -> Tensor:
        """Give rows [B, m, D] encoded, which stand at the first m positions."""
        x = (x + self.position_encoding.encoding[:, : x.shape[1]])[:, None]
        if operations is not None:
            operations.add += x.numel()
        for block in self.blocks:
            x = block(x, operations)
        return x[:, 0]


class WindowTemporal(nn.Module):
    """An ordinary encoder of the newest ``window`` rows, computed anew at each step.

    A class token comes before them, and its output is that of the window. Positions are those in
    the window, so every row stands elsewhere after each step and nothing can be kept. The first
    windows are shorter, and begin at the first position as well.
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
        """Give the output [B, D] of the last ``window`` of rows [B, S, D]."""
        x = x[:, -self.window :]
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1)
        return cast(Tensor, self.layer_norm(self.backbone(x, operations)[:, 0]))

    def init_state(self, batch_size: int = 1) -> WindowState:
        """Give the state of streams that have seen nothing."""
        rows = zeros(batch_size, self.window, self.dim, like=self.class_token)
        return WindowState(zeros(batch_size), rows)

    def warmup(self, state: WindowState) -> tuple[bool, ...]:
        """Say for each stream whether its window is not yet full."""
        return tuple(steps < self.window for steps in state.steps.tolist())

    def forward_step(self, x: Tensor, state: WindowState, operations: Operations) -> Tensor:
        """Take one row [B, D] of every stream, give the output [B, D] of its window."""
        ring.write(state.rows.transpose(1, 2), ring.advance(state.steps, self.window).slot, x)
        out = torch.empty_like(x)
        steps = state.steps
        filled = steps.clamp(max=self.window)
        for count in sorted(set(filled.tolist())):
            streams = (filled == count).nonzero().flatten()
            # from the oldest row on
            slots = (steps[streams, None] + torch.arange(-count, 0)) % self.window
            places = streams.to(x.device)
            rows = state.rows[places[:, None], slots.to(x.device)]
            out[places] = self(rows, operations)
        return out

    def count_macs(self) -> int:
        """Give what a step costs one stream whose window is full."""
        rows = self.window + 1
        blocks = (cast(EventfulBlock, b).count_macs(1, rows) for b in self.backbone.blocks)
        return rows * self.dim + sum(blocks)

    @property
    def dense_macs(self) -> int:
        """Give what a window costs that is computed anew, which is what a step does."""
        return self.count_macs()


@dataclass
class DeepTemporalState(State):
    """What is kept of every stream."""

    positions: PositionState
    encoder: DeepState


class DeepTemporal(nn.Module):
    """A DeepCoT stack: blocks that each keep keys and values of their own last inputs.

    There is no class token, the output is that of the newest row, and positions are recycled, so
    a step costs one row in place of ``window`` + 1. Its ``forward`` over a clip, and stepping
    through the clip, are the same; they are not ``WindowTemporal``, whose weights do not fit it.
    See ``nn.deep``: this network has to be trained as it is.
    """

    def __init__(self, dim: int, heads: int, depth: int, window: int, mlp_ratio: int) -> None:
        super().__init__()
        self.positions = RecyclingPositions(window, dim)
        self.encoder = DeepEncoder(
            dim, heads, mlp_ratio * dim, depth, window, norm_first=True, final_norm=True
        )

    @property
    def receptive_field(self) -> int:
        """Rows that an output depends on."""
        return self.encoder.receptive_field

    def forward(self, x: Tensor, operations: Operations | None = None) -> Tensor:
        """Give the output [B, D] after the last of rows [B, S, D]."""
        if operations is not None:
            self._count(len(x) * x.shape[1], operations)
        return self.encoder(self.positions(x), last=1)[:, 0]  # type: ignore[no-any-return]

    def init_state(self, batch_size: int = 1) -> DeepTemporalState:
        """Give the state of streams that have seen nothing."""
        positions = self.positions.init_state(batch_size)
        return DeepTemporalState(positions, self.encoder.init_state(batch_size))

    def warmup(self, state: DeepTemporalState) -> tuple[bool, ...]:
        """Say for each stream whether it has not yet seen as many rows as an output draws on."""
        return self.encoder.warmup(state.encoder)

    def forward_step(self, x: Tensor, state: DeepTemporalState, operations: Operations) -> Tensor:
        """Take one row [B, D] of every stream, give the newest output, [B, D]."""
        self._count(len(x), operations)
        x = self.positions.forward_step(x, state.positions)
        return self.encoder.forward_step(x, state.encoder)

    def count_macs(self) -> int:
        """Give what a step costs one stream whose windows are full."""
        return self.encoder.count_macs()

    @property
    def dense_macs(self) -> int:
        """Give what the ordinary encoder over one window costs, which this replaces."""
        return self.encoder.dense_macs

    def _count(self, rows: int, operations: Operations) -> None:
        """Count rows as if every window were full."""
        weights = 2 * rows * self.encoder.depth * self.encoder.window * self.encoder.embed_dim
        operations.product += weights
        operations.linear += rows * self.encoder.count_macs() - weights
