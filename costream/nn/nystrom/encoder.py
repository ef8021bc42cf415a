"""Transformer encoders with Nyström attention over a sliding window, computed continually.

Built as ``encoder.Encoder``, with its parameter names: one block is single-output; in a stack
the first block is retroactive, and the others, whose rows have all changed, use the ordinary form
over the window, the last one for the newest row only. Weights of an exact encoder load here, and
vice versa except for fixed landmarks.

A step of one block is as described in ``nystrom.continual``; in a stack that is the first block,
then come ordinary Nyström blocks over its rows, whose segments begin with the oldest row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from costream.nn.block import EncoderBlock, EncoderConfig, EncoderStack
from costream.nn.nystrom.continual import NystromState, RetroactiveNystrom, SingleOutputNystrom
from costream.nn.nystrom.window import ITERATIONS, NystromAttention, segment_of_rows
from costream.nn.state import State, zeros


@dataclass
class NystromEncoderState(State):
    """State of a Nyström encoder."""

    attention: NystromState
    rows: Tensor | None  # input rows of a stack, [B, n, d], in slot order


class NystromEncoder(EncoderStack):
    """Transformer encoder with Nyström attention over a window of n rows.

    Args:
        num_landmarks: m of each head, at most n.
        landmarks: "continual", from the window, or "fixed", see ``training.tokens.landmarks``.
        iterations: of the pseudo-inverse, see ``nystrom.window.pseudo_inverse``.
    """

    def __init__(
        self,
        config: EncoderConfig,
        num_landmarks: int,
        *,
        landmarks: str = "continual",
        iterations: int = ITERATIONS,
    ) -> None:
        if landmarks not in ("continual", "fixed"):
            raise ValueError(f"landmarks {landmarks!r} is not continual or fixed")
        shared = {"fixed": landmarks == "fixed", "iterations": iterations, **config.attention}
        size, window = config.size, config.window
        first = SingleOutputNystrom if config.depth == 1 else RetroactiveNystrom
        attention: list[NystromAttention] = [first(*size, window, num_landmarks, **shared)]
        attention += [
            NystromAttention(*size, num_landmarks, **shared) for _ in range(config.depth - 1)
        ]
        super().__init__(config, [EncoderBlock(layer, config) for layer in attention])
        self._segments = segment_of_rows(window, num_landmarks)

    @property
    def attention(self) -> list[NystromAttention]:
        """Attention of each block."""
        return [block.self_attn for block in self._blocks]

    @property
    def receptive_field(self) -> int:
        """Rows that an output depends on."""
        return int(self._blocks[0].self_attn.receptive_field)

    @property
    def exact(self) -> bool:
        """Whether an output is that of ordinary attention: landmarks only approximate it."""
        return False

    def forward(self, x: Tensor, last: int | None = None) -> Tensor:
        """Return the output at each row of a clip [B, T, d], as stepping through it would.

        ``last``: return only this many last rows, [B, last, d]; this saves time in a stack, where
        each row has another window.
        """
        last = self.count_last(x, last)
        if self.depth == 1:
            return self.normalise(self._blocks[0](x)[:, -last:])
        windows = self._windows(x, last)
        return torch.stack([self._finish(rows, rows.shape[1] - 1) for rows in windows], 1)

    @torch.no_grad()
    def attended(self, x: Tensor, block: int, last: int) -> Tensor:
        """Return the rows [B, r, d] that the attention of a block sees in a clip [B, T, d].

        For the first block each row once; for others those of the windows that end at the ``last``
        last rows. Used to fit landmarks.
        """
        if not block:
            return self._blocks[0].before_attention(x)
        seen = []
        for y in self._windows(x, min(last, x.shape[1])):
            for ordinary in self._blocks[1:block]:
                y = ordinary(y)
            seen.append(self._blocks[block].before_attention(y))
        return torch.cat(seen, 1)

    def _windows(self, x: Tensor, last: int) -> Iterator[Tensor]:
        """Yield the rows [B, r, d] of the last windows of a clip after the first block of a stack.

        In order of time; r is n except for the first windows.
        """
        first = self._blocks[0]
        changed = first.self_attn.windows(first.before_attention(x), last)
        for t, rows in enumerate(changed, x.shape[1] - last):
            yield first.after_attention(x[:, max(0, t + 1 - self.window) : t + 1], rows)

    def init_state(self, batch_size: int = 1) -> NystromEncoderState:
        """Return the initial state of ``batch_size`` streams."""
        attention = self._blocks[0].self_attn.init_state(batch_size)
        if self.depth == 1:
            return NystromEncoderState(attention, None)
        like = self._blocks[0].self_attn.in_proj_weight
        rows = zeros(batch_size, self.window, self.embed_dim, like=like)
        return NystromEncoderState(attention, rows)

    def forward_step(self, x: Tensor, state: NystromEncoderState) -> Tensor:
        """Take one row [B, d] of every stream, return the newest output, [B, d]."""
        first = self._blocks[0]
        if state.rows is None:
            attended = first.self_attn.forward_step(first.before_attention(x), state.attention)
            return self.normalise(first.after_attention(x, attended))
        slots = [t % self.window for t in state.attention.steps.tolist()]
        filled = [min(t + 1, self.window) for t in state.attention.steps.tolist()]
        changed = first.self_attn.forward_step(first.before_attention(x), state.attention)
        state.rows[torch.arange(len(slots)), slots] = x.detach()
        y = first.after_attention(state.rows[:, : max(filled)], changed)
        if len(set(slots)) == len(set(filled)) == 1:
            return self._finish(y, slots[0])
        places = zip(torch.split(y, 1), slots, filled, strict=True)
        return torch.cat([self._finish(row[:, :count], slot) for row, slot, count in places])

    def forward_steps(self, x: Tensor, state: NystromEncoderState) -> Tensor:
        """Take T rows [B, T, d], return what T calls of ``forward_step`` would, [B, T, d]."""
        if state.rows is not None or not x.shape[1]:
            out = [self.forward_step(row, state) for row in x.unbind(1)]
            return torch.stack(out, 1) if out else x
        return self.normalise(self._blocks[0].forward_steps(x, state.attention))

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a full-window step of one stream, averaged over n."""
        n, (first, *others) = self.window, self._blocks
        total = first.self_attn.count_macs() + first.count_macs(1 if self.depth == 1 else n)
        for block in others:
            newest = block is others[-1]
            total += block.self_attn.count_macs(n, newest) + block.count_macs(1 if newest else n)
        return int(total)

    def _finish(self, y: Tensor, newest: int) -> Tensor:
        """Pass rows [B, r, d] of the first block of a stack through the others, return [B, d].

        ``newest``: index of the newest row; the oldest follows it, in the cyclic order of slots.
        """
        count = y.shape[1]
        ages = (torch.arange(count) - newest - 1) % count
        segments = self._segments[:count][ages]
        _, *middle, block = self._blocks
        for ordinary in middle:
            y = ordinary(y, segments)
        attended = block.self_attn.newest(block.before_attention(y), newest, segments)
        return self.normalise(block.after_attention(y[:, newest], attended))
