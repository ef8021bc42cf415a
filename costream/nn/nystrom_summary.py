"""What m fixed queries gather from a window that moves on: softmax(Q~ k^T) v at every step.

The published way adds exp(Q~ k_new) v_new to running sums and subtracts those of the row that
leaves. That cancels, see ``attention``. Here nothing is ever subtracted: the n slots of the ring
are divided into chunks of about sqrt(n). Of each finished chunk the softmax mean of its values and
the logarithm of its mass are kept, for each landmark. Slots of the chunk in which the newest row
lies hold new rows up to it and the oldest rows after it, all of them in the window. So the window
is the rows of that chunk, one by one, and one mean of all other chunks, which stays while the
newest row is in this chunk. A step is one softmax over m + c numbers a landmark.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from costream.nn.state import State, zeros


@dataclass
class SummaryState(State):
    """Rows of the window and what is known of its chunks. C chunks of c slots, C c >= n."""

    keys: Tensor  # [B, h, C c, e]: every row
    values: Tensor  # [B, h, C c, e]: of finished chunks
    masses: Tensor  # [B, h, m, C]: log sum exp(Q~ k^T) over a chunk
    means: Tensor  # [B, h, m, C, e]: softmax(Q~ k^T) v over a chunk
    # The open chunk, and before it the other chunks as one row a landmark, which only that
    # landmark sees:
    logits: Tensor  # [B, h, m, m + c]
    rows: Tensor  # [B, h, m + c, e]


def chunk_size(window: int) -> int:
    """Give c, slots of a chunk."""
    return math.isqrt(window - 1) + 1


def init_summary(
    batch_size: int, num_heads: int, landmarks: int, window: int, head_dim: int, like: Tensor
) -> SummaryState:
    """Give the state of streams that have seen nothing, of the type and place of ``like``."""
    c, m, e = chunk_size(window), landmarks, head_dim
    chunks = -(-window // c)
    size = (batch_size, num_heads)
    return SummaryState(
        keys=zeros(*size, chunks * c, e, like=like),
        values=zeros(*size, chunks * c, e, like=like),
        masses=zeros(*size, m, chunks, like=like),
        means=zeros(*size, m, chunks, e, like=like),
        logits=zeros(*size, m, m + c, like=like),
        rows=zeros(*size, m + c, e, like=like),
    )


class Summary:
    """A summary at work: ``state`` of streams that are in step, all heads in one dimension."""

    def __init__(self, state: SummaryState, window: int) -> None:
        self.window, self.size = window, chunk_size(window)
        self.keys, self.values = state.keys.flatten(0, 1), state.values.flatten(0, 1)
        self.masses, self.means = state.masses.flatten(0, 1), state.means.flatten(0, 1)
        self.logits, self.rows = state.logits.flatten(0, 1), state.rows.flatten(0, 1)
        _, self.landmarks, self.chunks = self.masses.shape
        m = self.landmarks
        self._others = self.logits[:, :, :m].diagonal(dim1=1, dim2=2)
        self._fresh, self._fresh_rows = self.logits[:, :, m:], self.rows[:, m:]
        # Slot by slot, for a view costs as much as a small product.
        self._key_slots = self.keys[:, None].unbind(2)
        self._logit_slots = self._fresh[:, :, :, None].unbind(2)
        self._row_slots = self._fresh_rows[:, None].unbind(2)

    def enter(self, t: int, queries: Tensor) -> None:
        """Before step ``t``: finish a chunk and open the next where one begins.

        ``queries``: Q~ / sqrt(e), [B h, m, e], by which the finished chunk was seen.
        """
        slot = t % self.window
        if slot % self.size:
            return
        chunk = slot // self.size
        if t == 0:
            self.logits[:, :, : self.landmarks] = -math.inf
        else:
            self._finish((chunk - 1) % self.chunks)
        if t >= self.window:
            at = slice(slot, slot + self.size)
            torch.bmm(queries, self.keys[:, at].mT, out=self._fresh)
            self._fresh_rows.copy_(self.values[:, at])
        self._sum_up(chunk, t, slice(None))

    def put(self, t: int, key: Tensor, logits: Tensor, value: Tensor) -> None:
        """Take the row of step ``t``: key and value [B h, 1, e], Q~ k / sqrt(e) [B h, m, 1]."""
        slot = t % self.window
        self._key_slots[slot].copy_(key)
        self._logit_slots[slot % self.size].copy_(logits)
        self._row_slots[slot % self.size].copy_(value)

    def look(self, t: int, landmarks: int) -> tuple[Tensor, Tensor]:
        """Give weights [B h, m', r] and rows [B h, r, e]; their product is the summary.

        After ``put`` of step ``t``. ``landmarks``: m', the first so many.
        """
        slot = t % self.window
        chunk = slot // self.size
        last = slot if t < self.window else self.window - 1
        filled = self.landmarks + min(last - chunk * self.size + 1, self.size)
        logits, rows = self.logits, self.rows
        if landmarks < self.landmarks or filled < logits.shape[2]:
            logits, rows = logits[:, :landmarks, :filled], rows[:, :filled]
        return logits.softmax(-1), rows

    def renew(self, t: int, landmark: int, query: Tensor) -> None:
        """After ``put`` of step ``t``: a landmark has a new Q~ / sqrt(e), [B h, e]."""
        chunk = t % self.window // self.size
        logits = torch.bmm(self.keys, query[:, :, None])[:, :, 0]
        logits[:, self.window :] = -math.inf
        parts = logits.unflatten(1, (self.chunks, self.size))
        means = parts.softmax(-1)[:, :, None] @ self.values.unflatten(1, parts.shape[1:])
        self.means[:, landmark] = means[:, :, 0]
        self.masses[:, landmark] = parts.logsumexp(-1)
        self._fresh[:, landmark] = parts[:, chunk]
        self._sum_up(chunk, t, slice(landmark, landmark + 1))

    def _finish(self, chunk: int) -> None:
        """Put the open chunk back, and what it amounts to."""
        start = chunk * self.size
        filled = min(self.size, self.window - start)
        logits, rows = self._fresh[:, :, :filled], self._fresh_rows[:, :filled]
        self.values[:, start : start + filled] = rows
        self.masses[:, :, chunk] = logits.logsumexp(-1)
        self.means[:, :, chunk] = torch.bmm(logits.softmax(-1), rows)

    def _sum_up(self, chunk: int, t: int, landmarks: slice) -> None:
        """See the finished chunks but ``chunk`` as one row for each of these landmarks."""
        others = self._others[:, landmarks]
        seen = chunk if t < self.window else self.chunks - 1
        if not seen:
            others.fill_(-math.inf)
            self.rows[:, : self.landmarks][:, landmarks] = 0
            return
        masses = self.masses[:, landmarks].clone()
        masses[:, :, chunk : None if t < self.window else chunk + 1] = -math.inf
        others.copy_(masses.logsumexp(-1))
        weights = masses.softmax(-1)[:, :, None]
        means = torch.matmul(weights, self.means[:, landmarks])
        self.rows[:, : self.landmarks][:, landmarks] = means[:, :, 0]
