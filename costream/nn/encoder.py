"""Transformer encoders over a sliding window, computed continually.

Only the newest output of an encoder over a window is needed. Figure 1 of Continual Transformers
(Hedegaard et al., ICLR 2023): a single block is single-output; in a stack the first block is
retroactive, the last single-output, and those between are ordinary, because a new row changes all
their rows. The parameters, and the result, are those of the ordinary encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from costream.nn import ring
from costream.nn.attention import (
    AttentionState,
    MultiheadAttention,
    RetroactiveAttention,
    RetroactiveState,
    SingleOutputAttention,
)
from costream.nn.block import EncoderBlock
from costream.nn.fast import layer_norm
from costream.nn.state import State, zeros

_CHUNK_ROWS = 4096  # rows of windows passed through a stack at once: bounds memory


@dataclass
class EncoderState(State):
    """State of an encoder over a window."""

    attention: AttentionState


@dataclass
class StackState(EncoderState):
    """State of a stack of blocks, the first of which is retroactive."""

    attention: RetroactiveState
    rows: Tensor  # [B, n, d]: input rows, in slot order, for the first residual


class Encoder(nn.Module):
    """Transformer encoder over n rows, with the parameter names of ``nn.TransformerEncoder``.

    Args:
        embed_dim: d. ``num_heads``: h. ``feedforward``: hidden width. ``depth``: blocks L.
        window: n. ``norm_first``: pre-norm blocks. ``activation``: "gelu" (exact) or "relu".
        qkv_bias, out_bias: biases of the attention projections.
        final_norm: a LayerNorm after the last block. ``dropout``: in training.
    """

    delay = 0
    stride = 1

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        feedforward: int,
        depth: int,
        window: int,
        *,
        norm_first: bool = False,
        activation: str = "gelu",
        qkv_bias: bool = True,
        out_bias: bool = True,
        final_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if depth < 1 or window < 1:
            raise ValueError(f"depth {depth} and window {window} must be at least 1")
        self.embed_dim, self.depth, self.window = embed_dim, depth, window
        size = (embed_dim, num_heads)
        bias: dict[str, Any] = {"qkv_bias": qkv_bias, "out_bias": out_bias, "dropout": dropout}
        attention: list[MultiheadAttention] = [SingleOutputAttention(*size, window, **bias)]
        if depth > 1:
            attention.insert(0, RetroactiveAttention(*size, window, **bias))
        attention[1:1] = [MultiheadAttention(*size, **bias) for _ in range(depth - 2)]
        blocks = [EncoderBlock(a, feedforward, norm_first, activation, dropout) for a in attention]
        self.layers = nn.ModuleList(blocks)
        # Also as plain attributes, which are read 1 us faster than modules.
        self._blocks: tuple[EncoderBlock[Any], ...] = tuple(blocks)
        self._newest = (blocks[-1], cast(SingleOutputAttention, attention[-1]))
        self.norm = nn.LayerNorm(embed_dim) if final_norm else None

    @property
    def receptive_field(self) -> int:
        """Rows that an output depends on."""
        return self.window

    def forward(self, x: Tensor, last: int | None = None) -> Tensor:
        """Return the newest output of the window that ends at each row of a clip [B, T, d].

        The first n - 1 windows are shorter. ``last``: return only this many last rows,
        [B, last, d]. One block takes the clip in one pass; a stack takes every window.
        """
        last = min(last or x.shape[1], x.shape[1])
        x = x[:, -(last + self.window - 1) :]
        if self.depth > 1:
            state = cast(StackState, self.init_state(x.shape[0]))
            return self._slide(*self._extend(x, state), state.attention.steps, last)
        (block,) = self._blocks
        y = block.leave(x, block.self_attn(block.enter(x)))
        return self._normalise(y[:, -last:])

    def init_state(self, batch_size: int = 1) -> EncoderState:
        """Return the initial state of ``batch_size`` streams."""
        attention = self._blocks[0].self_attn.init_state(batch_size)
        if self.depth == 1:
            return EncoderState(attention)
        rows = zeros(batch_size, self.window, self.embed_dim, like=attention.keys)
        return StackState(attention, rows)

    def warmup(self, state: EncoderState, ago: int = 0) -> tuple[bool, ...]:
        """Return for each stream whether its window was not yet full ``ago`` steps ago."""
        return tuple(t - ago < self.window for t in state.attention.steps.tolist())

    def forward_step(self, x: Tensor, state: EncoderState) -> Tensor:
        """Take one row [B, d] of every stream, return the newest output, [B, d]."""
        if not isinstance(state, StackState):
            block, attention = self._newest
            attended = attention.forward_step(block.enter(x), state.attention)
            return self._normalise(block.leave(x, attended))
        first, fill = self._blocks[0], ring.advance(state.attention.steps, self.window)
        changed = first.self_attn.step_filled(first.enter(x), state.attention, fill)
        ring.write(state.rows.transpose(1, 2), fill.slot, x)
        y = first.leave(state.rows[:, : fill.length], changed)
        return self._finish(y, fill.slot, fill.mask)

    def forward_steps(self, x: Tensor, state: EncoderState) -> Tensor:
        """Take T rows [B, T, d], return what T calls of ``forward_step`` would, [B, T, d]."""
        if not isinstance(state, StackState):
            (block,) = self._blocks
            attended = block.self_attn.forward_steps(block.enter(x), state.attention)
            return self._normalise(block.leave(x, attended))
        projected, rows = self._extend(x, state)
        out = self._slide(projected, rows, state.attention.steps, x.shape[1])
        self._blocks[0].self_attn.store(projected, state.attention)
        ring.store(state.rows.transpose(1, 2), rows, state.attention.steps)
        state.attention.steps += x.shape[1]
        return out

    def count_macs(self, rows: int | None = None) -> int:
        """Return the multiply-accumulates of one step of a stream over ``rows`` rows, or n."""
        n = rows or self.window
        first, last = self._blocks[0], self._blocks[-1]
        newest = last.self_attn.count_macs(n, changed=self.depth > 1) + last.count_macs(1)
        if self.depth == 1:
            return int(newest)
        middle = sum(b.self_attn.count_macs(n) + b.count_macs(n) for b in self._blocks[1:-1])
        return int(first.self_attn.count_macs(n) + first.count_macs(n) + middle + newest)

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of recomputing every block over the whole window."""
        n, block = self.window, self._blocks[0]
        attention = MultiheadAttention.count_macs(block.self_attn, n)
        return self.depth * (attention + block.count_macs(n))

    def _extend(self, x: Tensor, state: StackState) -> tuple[Tensor, Tensor]:
        """Return the rings' rows followed by those of ``x``, projected ones and inputs."""
        projected = self._blocks[0].self_attn.extend(self._blocks[0].enter(x), state.attention)
        return projected, torch.cat([state.rows, x], 1)

    def _slide(self, projected: Tensor, rows: Tensor, steps: Tensor, last: int) -> Tensor:
        """Return the newest output [B, last, d] of each of the last windows of these rows."""
        index, filled = ring.windows(steps, self.window, rows.shape[1] - self.window)
        size = max(1, _CHUNK_ROWS // (len(rows) * self.window))
        indices = torch.split(index[:, -last:], size, 1)
        masks = torch.split(filled[:, -last:], size, 1)
        parts = zip(indices, masks, strict=True)
        return torch.cat([self._windows(projected, rows, i, f) for i, f in parts], 1)

    def _windows(self, projected: Tensor, rows: Tensor, index: Tensor, filled: Tensor) -> Tensor:
        """Return [B, T, d] for the windows of rows at ``index`` [B, T, n], each separately."""
        changed = self._blocks[0].self_attn.attend_windows(projected, index, filled)
        y = self._blocks[0].leave(ring.gather(rows, index), changed).flatten(0, 1)
        newest = index.argmax(2).flatten()
        return torch.unflatten(self._finish(y, newest, filled.flatten(0, 1)), 0, index.shape[:2])

    def _finish(self, y: Tensor, newest: int | Tensor, mask: Tensor | None) -> Tensor:
        """Pass rows [B, n, d] of the first block of a stack through the others, return [B, d]."""
        _, *middle, block = self._blocks
        for ordinary in middle:
            y = ordinary(y, mask)
        seen = block.enter(y)
        attended = block.self_attn.attend_changed(seen, ring.read(seen, newest), mask)
        return self._normalise(block.leave(ring.read(y, newest), attended))

    def _normalise(self, x: Tensor) -> Tensor:
        return x if self.norm is None else layer_norm(self, "norm", x)
