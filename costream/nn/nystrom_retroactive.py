"""Retroactive Nyström attention: outputs for all rows, updated by the newest row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn.fast import linear
from costream.nn.nystrom.continual import ContinualNystrom, NystromState
from costream.nn.nystrom.summary import mean_rows_seen
from costream.nn.state import zeros


@dataclass
class RetroactiveNystromState(NystromState):
    """State of Nyström attention, and the weights and queries of all rows."""

    weights: Tensor  # [B, h, n, m], softmax(q K~^T) G^+ of each row, in the order of slots
    queries: Tensor | None  # in the same order; None: landmarks are fixed


class RetroactiveNystrom(ContinualNystrom):
    """Nyström attention whose output is all rows of the window, updated by the newest.

    Rows come in the order of their slots: the row of step t is at t mod n.
    """

    def windows(self, x: Tensor, last: int) -> Iterator[Tensor]:
        """Yield all rows [B, r, d] of the window that ends at each of the last rows of a clip.

        In order of time; r is n except for the first windows. For training.
        """
        q, k, v = self.split(x)
        begin = x.shape[1] - last
        for start, stop, landmarks in self.spans(q, k):
            for t in range(max(start, begin), stop):
                part = slice(max(0, t + 1 - self.window), t + 1)
                yield self.attend(q[:, :, part], k[:, :, part], v[:, :, part], landmarks)

    def init_state(self, batch_size: int = 1) -> RetroactiveNystromState:
        """Return the initial state of ``batch_size`` streams."""
        like, size = self.in_proj_weight, (batch_size, self.num_heads, self.window)
        weights = zeros(*size, self.num_landmarks, like=like)
        queries = None if self.fixed else zeros(*size, self.head_dim, like=like)
        return RetroactiveNystromState(*self.keep(batch_size), weights, queries)

    def forward_step(self, x: Tensor, state: RetroactiveNystromState) -> Tensor:
        """Take one row [B, d] of every stream, return all rows after attention, [B, n, d].

        While no stream has seen n rows, the output has as many as the longest has seen. Streams
        that are not in step are processed one by one except for their projections.
        """
        with torch.no_grad():
            parts = [self._heads(part) for part in self.project_row(x, state)]
            filled = max(part.shape[1] for part in parts)
            rows = torch.cat([_padded(part, filled) for part in parts])
            return linear(self, "out_proj", rows)

    def forward_steps(self, x: Tensor, state: RetroactiveNystromState) -> Tensor:
        """Take T rows [B, T, d], return the rows of each of the T windows, [B, T, n, d].

        Rows of slots that are still empty are undefined.
        """
        steps = [_padded(self.forward_step(row, state), self.window) for row in x.unbind(1)]
        return torch.stack(steps, 1) if steps else x.new_empty(len(x), 0, *x.shape[1:])

    def _heads(self, state: RetroactiveNystromState) -> Tensor:
        """Take the projected row of streams in step, return the heads' outputs [B, r, d]."""
        taken, work, batch = self.take(state), self.work(state), (-1, self.num_heads)
        slot, filled, m = taken.slot, taken.filled, taken.landmarks
        state.weights[:, :, slot, :m] = torch.unflatten(taken.asked, 0, batch)[:, :, 0]
        if state.queries is not None and work.landmarks is not None:
            state.queries[:, :, slot] = work.asked[:, :, 0]
            if taken.renewed:
                queries = state.queries[:, :, :filled].flatten(0, 1)
                logits = torch.bmm(queries, work.landmarks[:, :, self.num_landmarks :])
                asked = torch.unflatten(self.ask(logits, work, m), 0, batch)
                state.weights[:, :, :filled, :m] = asked
        weights = state.weights[:, :, :filled, :m].flatten(0, 1)
        out = torch.bmm(weights, torch.bmm(taken.weights, taken.values))
        rows: Tensor = torch.unflatten(out, 0, batch)
        return rows.transpose(1, 2).flatten(2)

    def count_macs(self, rows: int | None = None, newest: bool = False) -> int:
        """Return the multiply-accumulates of a full-window step of one stream, averaged over n."""
        n, m, d, h = self.window, self.num_landmarks, self.embed_dim, self.num_heads
        summary = m * (m + mean_rows_seen(n)) * d
        renewing = 0 if self.fixed else n * m * d + n * m**2 * h
        return round(self.row_macs() + summary + n * m * d + n * d**2 + m * renewing / n)


def _padded(rows: Tensor, count: int) -> Tensor:
    """Return rows [B, r, d] padded with zeros to [B, count, d]."""
    return F.pad(rows, (0, 0, 0, count - rows.shape[1]))
