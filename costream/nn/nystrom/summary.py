"""Running summary of a sliding window by m landmarks: softmax(Q~ k^T) v at every step.

The published method adds exp(Q~ k_new) v_new to running sums and subtracts those of the row that
leaves. That cancels, see ``attention``. Here nothing is ever subtracted. The n slots of the ring
are divided into chunks. For each finished chunk and each landmark, the softmax mean of its values
and the logarithm of its mass are stored. Slots of the open chunk, which has the newest row, hold
new rows up to it and the oldest rows after it, all of them in the window. So the window is the rows
of that chunk, one by one, and one mean of all other chunks, which is constant while the chunk is
open. A step is one softmax over the m + c numbers of each landmark.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from costream.nn.state import State, zeros

LEAST_SLOTS = 32  # minimum slots of a chunk: opening one takes as long as a few steps
SLOT_MULTIPLE = 8  # numbers in a vector register: softmax is slower over a remainder


@dataclass
class WindowSummaryState(State):
    """Rows of the window and summaries of its chunks. C chunks of c slots, C c >= n."""

    # w numbers of a row: its key and value, 2 e, or with fixed landmarks its logits Q~ k^T, which
    # do not change, and its value, m + e.
    held: Tensor  # [B, h, C c, w]: all rows, those of the open chunk as before it was opened
    masses: Tensor  # [B, h, m, C]: log sum exp(Q~ k^T) over a chunk
    means: Tensor  # [B, h, m, C, e]: softmax(Q~ k^T) v over a chunk
    # The open chunk, preceded by the other chunks as one value per landmark, visible only to that
    # landmark:
    logits: Tensor  # [B, h, m, m + c]
    rows: Tensor  # [B, h, m + c, w]


def chunk_size(window: int) -> int:
    """Return c, the number of slots of a chunk: about sqrt(4 n) for a long window."""
    slots = -(-math.isqrt(4 * window) // SLOT_MULTIPLE) * SLOT_MULTIPLE
    return min(window, max(LEAST_SLOTS, slots))


def chunk_sizes(window: int) -> list[int]:
    """Return the filled slots of each chunk of a full window; the last may have fewer than c."""
    c = chunk_size(window)
    return [min(c, window - start) for start in range(0, window, c)]


def mean_rows_seen(window: int) -> float:
    """Return the number of rows a step sees individually in a full window, averaged over n."""
    return sum(size**2 for size in chunk_sizes(window)) / window


def init_summary(
    batch_size: int,
    num_heads: int,
    landmarks: int,
    window: int,
    head_dim: int,
    fixed: bool,
    like: Tensor,
) -> WindowSummaryState:
    """Return the initial state of ``batch_size`` streams, with dtype and device of ``like``."""
    c, m, e = chunk_size(window), landmarks, head_dim
    w = (m if fixed else e) + e
    chunks = -(-window // c)
    size = (batch_size, num_heads)
    return WindowSummaryState(
        held=zeros(*size, chunks * c, w, like=like),
        masses=zeros(*size, m, chunks, like=like),
        means=zeros(*size, m, chunks, e, like=like),
        logits=zeros(*size, m, m + c, like=like),
        rows=zeros(*size, m + c, w, like=like),
    )


class WindowSummary:
    """Operations on a ``WindowSummaryState`` through views, for streams that are in step.

    ``row``: a row in the layout in which ``write`` will receive it.
    """

    def __init__(self, state: WindowSummaryState, window: int, row: Tensor) -> None:
        self.window, self.size = window, chunk_size(window)
        self.landmarks, self.chunks = state.masses.shape[2:]
        m, e = self.landmarks, state.means.shape[4]
        # All heads of all streams in one dimension.
        self._held, self._masses = state.held.flatten(0, 1), state.masses.flatten(0, 1)
        self._means, self._logits = state.means.flatten(0, 1), state.logits.flatten(0, 1)
        rows = state.rows.flatten(0, 1)
        self._values, self._fresh_rows = rows[:, :, -e:], rows[:, m:]
        self._others = self._logits[:, :, :m].diagonal(dim1=1, dim2=2)
        self._fresh = self._logits[:, :, m:]
        # Slot by slot, since creating a view takes as long as a small product.
        self._row_slots = torch.unflatten(state.rows, 3, row.shape[2:])[:, :, m:].unbind(2)
        self._logit_slots = state.logits[:, :, :, m:].unbind(3)

    def begin_step(self, t: int, queries: Tensor | None) -> None:
        """Prepare step ``t``: at the start of a chunk, finish the previous one and open it.

        ``queries``: Q~ / sqrt(e), [B h, m, e], before this step; None: they are fixed.
        """
        slot = t % self.window
        if slot % self.size:
            return
        chunk = slot // self.size
        if t == 0:
            self._logits[:, :, : self.landmarks] = -math.inf
        else:
            self._finish((chunk - 1) % self.chunks)
        if t >= self.window:
            held = self._held[:, slot : slot + self.size]
            self._fresh_rows.copy_(held)
            if queries is None:
                self._fresh.copy_(held[:, :, : self.landmarks].mT)
            else:
                torch.bmm(queries, held[:, :, : queries.shape[2]].mT, out=self._fresh)
        self._sum_up(chunk, t, slice(None))

    def write(self, t: int, row: Tensor, logits: Tensor) -> None:
        """Store the row of step ``t``: w numbers [B, h, ...], and Q~ k^T / sqrt(e), [B, h, m]."""
        place = t % self.window % self.size
        self._row_slots[place].copy_(row)
        self._logit_slots[place].copy_(logits)

    def read(self, t: int, landmarks: int) -> tuple[Tensor, Tensor]:
        """Return weights [B h, m', r] and values [B h, r, e]; their product is the summary.

        To be called after ``write`` of step ``t``. ``landmarks``: m', those that there are so far.
        """
        slot = t % self.window
        last = slot if t < self.window else self.window - 1
        filled = self.landmarks + min(last - slot // self.size * self.size + 1, self.size)
        if landmarks == self.landmarks and filled == self._logits.shape[2]:
            return self._logits.softmax(-1), self._values
        return self._logits[:, :landmarks, :filled].softmax(-1), self._values[:, :filled]

    def replace_landmark(self, t: int, landmark: int, query: Tensor) -> None:
        """Set a landmark to a new Q~ / sqrt(e), [B h, e], after ``write`` of step ``t``."""
        chunk = t % self.window // self.size
        self._store(chunk)
        keys, values = self._held.chunk(2, 2)
        logits = torch.bmm(keys, query[:, :, None])[:, :, 0]
        logits[:, self.window :] = -math.inf
        parts = torch.unflatten(logits, 1, (self.chunks, self.size))
        weights, self._masses[:, landmark] = _softmax(parts)
        means = weights[:, :, None] @ torch.unflatten(values, 1, parts.shape[1:])
        self._means[:, landmark] = means[:, :, 0]
        self._fresh[:, landmark] = parts[:, chunk]
        self._sum_up(chunk, t, slice(landmark, landmark + 1))

    def _store(self, chunk: int) -> int:
        """Store the rows of the open chunk, return their maximum number."""
        start = chunk * self.size
        count = min(self.size, self.window - start)
        self._held[:, start : start + count] = self._fresh_rows[:, :count]
        return count

    def _finish(self, chunk: int) -> None:
        """Store the rows of the open chunk and its summary."""
        count = self._store(chunk)
        logits, values = self._fresh[:, :, :count], self._values[:, self.landmarks :][:, :count]
        weights, self._masses[:, :, chunk] = _softmax(logits)
        self._means[:, :, chunk] = torch.bmm(weights, values)

    def _sum_up(self, chunk: int, t: int, landmarks: slice) -> None:
        """Summarise the finished chunks except ``chunk`` as one value per landmark."""
        others, values = self._others[:, landmarks], self._values[:, : self.landmarks][:, landmarks]
        seen = chunk if t < self.window else self.chunks - 1
        if not seen:
            others.fill_(-math.inf)
            values.zero_()
            return
        masses = self._masses[:, landmarks].clone()
        masses[:, :, chunk : None if t < self.window else chunk + 1] = -math.inf
        weights, mass = _softmax(masses)
        others.copy_(mass)
        means = self._means[:, landmarks].flatten(0, 1)
        values.copy_(torch.bmm(weights.flatten(0, 1)[:, None], means).view_as(values))


def _softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax and log sum exp over the last dimension of logits that are not all -inf.

    The latter follows from the largest value of each, with fewer operations than separately.
    """
    weights = logits.softmax(-1)
    return weights, logits.amax(-1) - weights.amax(-1).log()
