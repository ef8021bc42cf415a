"""Retroactive attention: outputs for all rows of the window, updated by the newest row."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from costream.nn import ring
from costream.nn.attention import AttentionState, ContinualAttention
from costream.nn.fast import linear
from costream.nn.ring import RingFill
from costream.nn.state import zeros


@dataclass
class RetroactiveState(AttentionState):
    """Projected rows of the window; every row is a query."""

    queries: Tensor  # like keys


class RetroactiveAttention(ContinualAttention):
    """Attention whose output is all rows of the window, updated by the newest.

    A step projects one row and recomputes attention: 3 d^2 + 2 n^2 d + n d^2 multiply-accumulates.
    Caching the logits would save n^2 d - 2 n d of them at the cost of an (h, n, n) ring per stream;
    measured, it speeds up a step of two blocks by only 1 to 3 %, so it is not done.

    Rows come in the order of their slots: the row of step t is at t mod n.
    """

    def init_state(self, batch_size: int = 1) -> RetroactiveState:
        """Return the initial state of ``batch_size`` streams."""
        keys, values, queries = (self._ring(batch_size) for _ in range(3))
        return RetroactiveState(zeros(batch_size), keys, values, queries)

    def forward_step(self, x: Tensor, state: RetroactiveState) -> Tensor:
        """Take one row [B, d] of every stream, return all rows after attention, [B, n, d].

        While no stream has seen n rows, the output has as many as the longest has seen.
        """
        return self.step_filled(x, state, ring.advance(state.steps, self.window))

    def step_filled(self, x: Tensor, state: RetroactiveState, fill: RingFill) -> Tensor:
        """Return what ``forward_step`` would, for a counted step with slots ``fill``."""
        rings = (state.queries, state.keys, state.values)
        new = self.project(x).unbind(1)
        q, k, v = (self._keep(r, row, fill) for r, row in zip(rings, new, strict=True))
        a, hidden = torch.bmm(q.transpose(1, 2), k), self._hidden(fill.mask)
        if hidden is not None:
            a = a.masked_fill_(hidden, -math.inf)
        # In place, and D^-1 after A v: a separate softmax takes twice the time at n = 120.
        a = a.sub_(a.amax(-1, keepdim=True)).exp_()
        out = torch.bmm(a, v.transpose(1, 2)).div_(a.sum(-1, keepdim=True))
        rows = torch.unflatten(out, 0, (-1, self.num_heads)).transpose(1, 2).flatten(2)
        return linear(self, "out_proj", rows)

    def forward_steps(self, x: Tensor, state: RetroactiveState) -> Tensor:
        """Take T rows [B, T, d], return the rows of each of the T windows, [B, T, n, d].

        Rows of slots that are still empty are undefined.
        """
        rows = self.extend(x, state)
        out = self.attend_windows(rows, *ring.windows(state.steps, self.window, x.shape[1]))
        self.store(rows, state)
        state.steps += x.shape[1]
        return out

    def extend(self, x: Tensor, state: RetroactiveState) -> Tensor:
        """Return the rings' rows followed by the projected ``x`` [B, T, d]: [B, n + T, 3, h, e]."""
        held = torch.stack(self._rings(state), 1)
        return torch.cat([ring.slots_first(held), self.project(x)], 1)

    def attend_windows(self, rows: Tensor, index: Tensor, filled: Tensor) -> Tensor:
        """Return [B, T, n, d]: attention in each window of ``rows`` at ``index`` [B, T, n]."""
        q, k, v = ring.gather(rows, index).flatten(0, 1).unbind(2)
        out = self._attend(q, k, v, filled.flatten(0, 1)[:, None])
        return torch.unflatten(out, 0, index.shape[:2])

    def store(self, rows: Tensor, state: RetroactiveState) -> None:
        """Store the newest of ``rows``, as returned by ``extend``, in the rings."""
        for r, new in zip(self._rings(state), rows.unbind(2), strict=True):
            ring.store(r, new, state.steps)

    def _rings(self, state: RetroactiveState) -> tuple[Tensor, Tensor, Tensor]:
        return self._slots(state.queries), self._slots(state.keys), self._slots(state.values)

    def count_macs(self, rows: int | None = None) -> int:
        """Return the multiply-accumulates of one step of a stream over ``rows`` rows, or n."""
        n, d = rows or self.window, self.embed_dim
        return 3 * d**2 + 2 * n**2 * d + n * d**2
