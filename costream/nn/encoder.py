"""Transformer encoders over a sliding window, computed continually.

Only the newest output of an encoder over a window is needed. Figure 1 of Continual Transformers
(Hedegaard et al., ICLR 2023): a single block is single-output; in a stack the first block is
retroactive, the last single-output, and those between are ordinary, because a new row changes all
their rows. Parameters and results are the same as the ordinary encoder's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from costream.nn import ring
from costream.nn.attention import (
    AttentionState,
    MultiheadAttention,
    RetroactiveAttention,
    RetroactiveState,
    SingleOutputAttention,
)
from costream.nn.block import EncoderBlock, EncoderConfig, EncoderStack
from costream.nn.choices import prefers_compiled
from costream.nn.fast import linear
from costream.nn.state import State, zeros

if TYPE_CHECKING:
    from costream.nn.encoder_kernels import StackStep


@dataclass
class EncoderState(State):
    """State of an encoder over a window."""

    attention: AttentionState


@dataclass
class StackState(EncoderState):
    """State of a stack of blocks, the first of which is retroactive."""

    attention: RetroactiveState
    rows: Tensor  # [B, n, d]: input rows, in slot order, for the first residual


class _CompiledStack(NamedTuple):
    """The compiled form of a stack, and which of its two parts are faster than PyTorch."""

    step: StackStep
    rows_pay: bool
    newest_pays: bool


class Encoder(EncoderStack):
    """Transformer encoder over a window of n rows."""

    def __init__(self, config: EncoderConfig) -> None:
        size, window, options = config.size, config.window, config.attention
        last = SingleOutputAttention(*size, window, **options)
        attention: list[MultiheadAttention] = [last]
        if config.depth > 1:
            attention.insert(0, RetroactiveAttention(*size, window, **options))
        attention[1:1] = [MultiheadAttention(*size, **options) for _ in range(config.depth - 2)]
        super().__init__(config, [EncoderBlock(layer, config) for layer in attention])
        self._last = (self._blocks[-1], last)

    def forward(self, x: Tensor, last: int | None = None) -> Tensor:
        """Return the newest output of the window that ends at each row of a clip [B, T, d].

        The first n - 1 windows are shorter. ``last``: return only this many last rows,
        [B, last, d]. One block takes the clip in one pass; a stack takes every window.
        """
        last = self.count_last(x, last)
        x = x[:, -(last + self.window - 1) :]
        if self.depth > 1:
            state = cast(StackState, self.init_state(x.shape[0]))
            return self._slide(*self._extend(x, state), state.attention.steps, last)
        return self.normalise(self._blocks[0](x)[:, -last:])

    def init_state(self, batch_size: int = 1) -> EncoderState:
        """Return the initial state of ``batch_size`` streams."""
        attention = self._blocks[0].self_attn.init_state(batch_size)
        if self.depth == 1:
            return EncoderState(attention)
        rows = zeros(batch_size, self.window, self.embed_dim, like=attention.keys)
        return StackState(attention, rows)

    def graph_key(self, x: Tensor, state: EncoderState) -> bool | None:
        """Return whether windows are filling; None for several rows a step.

        See ``cuda_graph.GraphedStep``.
        """
        return None if x.dim() == 3 else any(self.warmup(state))

    def forward_step(self, x: Tensor, state: EncoderState) -> Tensor:
        """Take one row [B, d] of every stream, return the newest output, [B, d]."""
        if not isinstance(state, StackState):
            return self.normalise(self._blocks[0].forward_step(x, state.attention))
        first = self._blocks[0]
        fill = ring.advance(state.attention.steps, self.window)
        attended = first.self_attn.attend_filled(first.before_attention(x), state.attention, fill)
        ring.write(state.rows.transpose(1, 2), fill.slot, x)
        rows = state.rows[:, : fill.length]
        compiled = self._compiled(x, state)
        if compiled is not None and compiled.rows_pay:
            y = compiled.step.rows(rows, attended)
        else:
            y = first.after_attention(rows, linear(first.self_attn, "out_proj", attended))
        if compiled is None or not compiled.newest_pays:
            return self._finish(y, fill.slot, fill.mask)
        for ordinary in self._blocks[1:-1]:
            y = ordinary(y)
        return self.normalise(compiled.step.newest(y, cast(int, fill.slot)))

    def forward_steps(self, x: Tensor, state: EncoderState) -> Tensor:
        """Take T rows [B, T, d], return what T calls of ``forward_step`` would, [B, T, d]."""
        if not isinstance(state, StackState):
            return self.normalise(self._blocks[0].forward_steps(x, state.attention))
        if not x.shape[1]:
            return x.clone()
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

    def _extend(self, x: Tensor, state: StackState) -> tuple[Tensor, Tensor]:
        """Return projected rows and input rows: the rings' followed by the rows of ``x``."""
        first = self._blocks[0]
        projected = first.self_attn.extend(first.before_attention(x), state.attention)
        return projected, torch.cat([state.rows, x], 1)

    def _slide(self, projected: Tensor, rows: Tensor, steps: Tensor, last: int) -> Tensor:
        """Return the newest output [B, last, d] of each of the last windows of these rows."""
        index, filled = ring.windows(steps, self.window, rows.shape[1] - self.window)
        parts = ring.split(index[:, -last:], filled[:, -last:], len(rows) * self.window)
        return torch.cat([self._windows(projected, rows, i, f) for i, f in parts], 1)

    def _windows(self, projected: Tensor, rows: Tensor, index: Tensor, filled: Tensor) -> Tensor:
        """Return [B, T, d] for the windows of rows at ``index`` [B, T, n], each separately."""
        changed = self._blocks[0].self_attn.attend_windows(projected, index, filled)
        y = self._blocks[0].after_attention(ring.gather(rows, index), changed).flatten(0, 1)
        newest = index.argmax(2).flatten()
        return torch.unflatten(self._finish(y, newest, filled.flatten(0, 1)), 0, index.shape[:2])

    def _compiled(self, x: Tensor, state: StackState) -> _CompiledStack | None:
        """Return the compiled form of the first and last block for a row ``x`` [1, d], or None."""
        first, last = self._blocks[0], self._blocks[-1]
        if state.attention.sums is None or not first.compiles(x) or last.training:
            return None
        compiled: _CompiledStack | None = state.attention.compiled
        if compiled is None or not compiled.step.fits([*first.weights(), *last.weights()]):
            weights = first.compiled_weights(), last.compiled_weights()
            if weights[0] is None or weights[1] is None:
                return None
            from costream.nn.encoder_kernels import StackStep

            eps = [(block.norm1.eps, block.norm2.eps) for block in (first, last)]
            relu, heads = first.activate is torch.relu, last.self_attn.num_heads
            step = StackStep(weights[0], weights[1], heads, relu, eps)
            compiled = state.attention.compiled = self._compare(step, torch.zeros_like(state.rows))
        return compiled

    def _compare(self, step: StackStep, rows: Tensor) -> _CompiledStack:
        """Measure a compiled form and PyTorch with rows [1, n, d]."""
        first, last = self._blocks[0], self._blocks[-1]
        attended = rows.new_zeros(1, first.self_attn.inner_dim, self.window).mT  # as they come

        def readable_rows() -> Tensor:
            return first.after_attention(rows, linear(first.self_attn, "out_proj", attended))

        name = f"{self.window} rows of {self.embed_dim}, {self.config.feedforward}"
        return _CompiledStack(
            step,
            prefers_compiled(f"block, {name}", lambda: step.rows(rows, attended), readable_rows),
            prefers_compiled(
                f"newest row, {name}",
                lambda: step.newest(rows, 0),
                lambda: _newest(last, rows, 0, None),
            ),
        )

    def _finish(self, y: Tensor, newest: int | Tensor, mask: Tensor | None) -> Tensor:
        """Pass rows [B, n, d] of the first block of a stack through the others, return [B, d]."""
        _, *middle, block = self._blocks
        for ordinary in middle:
            y = ordinary(y, mask)
        return self.normalise(_newest(block, y, newest, mask))


def _newest(
    block: EncoderBlock[SingleOutputAttention], y: Tensor, newest: int | Tensor, mask: Tensor | None
) -> Tensor:
    """Return the newest of rows [B, n, d], which are all new, after a block, [B, d]."""
    seen = block.before_attention(y)
    attended = block.self_attn.attend_changed(seen, ring.read(seen, newest), mask)
    return block.after_attention(ring.read(y, newest), attended)
