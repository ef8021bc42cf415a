"""Nyström attention over a sliding window, step by step: single-output and retroactive.

Equivalences (n rows, m landmarks; the window form is ``NystromAttention.forward``):

* Fixed landmarks: every step equals the window form over the last n rows, or all rows so far.
* Continual landmarks: segments divide the stream, not the window. Their sizes repeat those of the
  first window, so that the last m complete segments always have n rows. When a segment is
  complete, its mean replaces the oldest landmark, whose segment had the same size (Carreto Picon et
  al., 2024). At those steps, every n / m on average, the step equals the window form over the last
  n rows with the sizes rotated likewise: where m divides n, the plain window form. Between them
  landmarks stay as they were, up to a segment older than the window; everything else is of the
  window. While the window is not full, its landmarks are the segments started so far, the last one
  the mean of the rows it has, and every step equals the window form over those.

Outputs of steps carry no gradient: training uses clips.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn.folding import Foldable
from costream.nn.nystrom.summary import (
    WindowSummary,
    WindowSummaryState,
    chunk_size,
    chunk_sizes,
    init_summary,
)
from costream.nn.nystrom.window import NystromAttention, segment_of_rows, segment_sizes
from costream.nn.nystrom_fixed import FoldedProjection
from costream.nn.state import State, zeros

S = TypeVar("S", bound="NystromState")


@dataclass
class LandmarkState(State):
    """Landmarks of a stream."""

    rows: Tensor  # [B, h, 2, m, e], Q~ and K~, each / sqrt(e)
    inverse: Tensor  # [B, h, m, m]
    pending: Tensor  # sums of the queries and keys of the current segment


@dataclass
class NystromState(State):
    """State of Nyström attention."""

    steps: Tensor  # int64 [B]
    summary: WindowSummaryState
    landmarks: LandmarkState | None  # None: fixed

    def __post_init__(self) -> None:
        self.work: NystromViews | None = None  # created on first use, never saved or copied
        self.alone: list[NystromState] = []  # each stream as a view of the same memory; likewise

    def cut(self: S, stream: int) -> S:
        """Return a state of one stream on the same memory."""
        return self._map([self], lambda parts: parts[0].narrow(0, stream, 1))


@dataclass(frozen=True)
class NystromViews:
    """Views of the state of streams that are in step, and space for their newest row.

    As in ``attention``: an operation takes a few microseconds whatever its size.
    """

    steps: Any  # the state's own counters as a NumPy array
    summary: WindowSummary
    inverse: Tensor  # [B h, m, m]
    projected: Tensor  # [B, 3 d], or with fixed landmarks [B, h (2 m + e)]; written by every step
    asked: Tensor  # part of it: query and key, [B, h, 2, e], or q K~^T / sqrt(e), [B, h, 1, m]
    heads: Tensor  # the same for all heads, [B h, ...], copied if there are several streams
    row: Tensor  # part of it: what the summary stores, [B, h, 2, e] or [B, h, m + e]
    asking: Tensor  # q K~^T / sqrt(e), [B h, 1, m]
    logits: Tensor  # Q~ k^T / sqrt(e), [B, h, m]
    # Only if landmarks are not fixed:
    landmarks: Tensor | None  # Q~^T and K~^T, each / sqrt(e), [B h, e, 2 m]
    queries: Tensor | None  # Q~ / sqrt(e), [B h, m, e]
    products: Tensor | None  # [B h, 2, 2 m], of query and key with the landmarks


class NystromStep(NamedTuple):
    """Result of taking a row."""

    slot: int
    filled: int  # rows in the window
    landmarks: int  # m', the number of landmarks so far
    asked: Tensor  # softmax(q K~^T) G^+ of the new row, [B h, 1, m']
    weights: Tensor  # [B h, m', r]; with ``values`` it gives the summary of the window
    values: Tensor  # [B h, r, e]
    renewed: bool  # whether a landmark was replaced


class ContinualNystrom(NystromAttention, Foldable[FoldedProjection]):
    """Base class of the single-output and the retroactive form."""

    delay = 0
    stride = 1

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        window: int,
        num_landmarks: int,
        *,
        fixed: bool = False,
        iterations: int = 6,
        qkv_bias: bool = True,
        out_bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            embed_dim,
            num_heads,
            num_landmarks,
            fixed=fixed,
            iterations=iterations,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            dropout=dropout,
        )
        if num_landmarks > window:
            raise ValueError(f"{num_landmarks} landmarks exceed the window of {window} rows")
        self.window = window
        sizes = segment_sizes(window, num_landmarks)
        self._segment = segment_of_rows(window, num_landmarks).tolist()  # of each slot
        self._ends = list(accumulate(sizes))
        self._starts = [end - size for end, size in zip(self._ends, sizes, strict=True)]

    @property
    def receptive_field(self) -> int:
        """Rows that an output depends on; more with continual landmarks, see the module."""
        if self.fixed:
            return self.window
        return self.window + -(-self.window // self.num_landmarks) - 1

    def warmup(self, state: NystromState) -> tuple[bool, ...]:
        """Return for each stream whether its window is not yet full."""
        return tuple(t < self.window for t in state.steps.tolist())

    def keep(self, batch_size: int) -> tuple[Tensor, WindowSummaryState, LandmarkState | None]:
        """Return the initial state of ``batch_size`` streams, as far as both forms share it."""
        h, m, e = self.num_heads, self.num_landmarks, self.head_dim
        like = self.in_proj_weight
        landmarks = None
        if not self.fixed:
            landmarks = LandmarkState(
                rows=zeros(batch_size, h, 2, m, e, like=like),
                inverse=zeros(batch_size, h, m, m, like=like),
                pending=zeros(batch_size, h, 2, e, like=like),
            )
        summary = init_summary(batch_size, h, m, self.window, e, self.fixed, like)
        return zeros(batch_size), summary, landmarks

    def project_row(self, x: Tensor, state: S) -> list[S]:
        """Project the new row [B, d] of each stream, return the states to take it; see ``hand``."""
        weight, bias = self.projection()
        if len(x) > 1 and not self._in_step(state):
            return self.hand(F.linear(x, weight, bias), state)
        work = self.work(state)
        if bias is None:
            torch.mm(x, weight.t(), out=work.projected)
        else:
            torch.addmm(bias, x, weight.t(), out=work.projected)
        return [state]

    def fold(self) -> FoldedProjection:
        """Return the folded projection of rows for fixed landmarks."""
        return FoldedProjection(self)

    def projection(self) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias of the projection of a step."""
        if self.fixed:
            folded = self.folded()
            return folded.weight, folded.bias
        return self._parameters.values()  # type: ignore[return-value]

    def hand(self, rows: Tensor, state: S) -> list[S]:
        """Store a projected row [B, ...] of every stream, return the states that are to take it.

        That is the state itself or, if the streams are not in step, one state per stream on the
        same memory: their chunks and landmarks change at different steps.
        """
        if len(rows) == 1 or self._in_step(state):
            self.work(state).projected.copy_(rows)
            return [state]
        if not state.alone:
            state.alone.extend([state.cut(b) for b in range(len(rows))])
        for row, alone in zip(rows, state.alone, strict=True):
            self.work(alone).projected[0] = row
        return state.alone  # type: ignore[return-value]

    def _in_step(self, state: NystromState) -> bool:
        steps: list[int] = state.steps.tolist()
        return steps.count(steps[0]) == len(steps)

    def work(self, state: NystromState) -> NystromViews:
        """Return the views of a state, cached."""
        if state.work is None:
            with torch.inference_mode(False):
                state.work = self._see(state)
        return state.work

    def _see(self, state: NystromState) -> NystromViews:
        batch, own = state.batch_size, state.landmarks
        h, m, e = self.num_heads, self.num_landmarks, self.head_dim
        landmarks = queries = products = None
        if own is None:
            inverse = self.inverse.repeat(batch, 1, 1)
            projected = inverse.new_empty(batch, h * (2 * m + e))
            asked = projected[:, : h * m].view(batch, h, 1, m)
            row = projected[:, h * m :].view(batch, h, m + e)
            asking = heads = asked.reshape(-1, 1, m)
            logits = row[:, :, :m]
        else:
            rows, inverse = own.rows.flatten(0, 1), own.inverse.flatten(0, 1)
            landmarks, queries = rows.flatten(1, 2).mT, rows[:, 0]
            projected = inverse.new_empty(batch, 3 * self.embed_dim)
            parts = projected.view(batch, 3, h, e).transpose(1, 2)
            asked, row = parts[:, :, :2], parts[:, :, 1:]
            heads = asked.reshape(-1, 2, e)
            products = inverse.new_empty(batch * h, 2, 2 * m)
            asking = products[:, :1, m:]
            logits = products.view(batch, h, 2, 2 * m)[:, :, 1, :m]
        summary = WindowSummary(state.summary, self.window, row)
        found = (landmarks, queries, products)
        steps = state.steps.numpy()
        return NystromViews(
            steps, summary, inverse, projected, asked, heads, row, asking, logits, *found
        )

    def take(self, state: NystromState) -> NystromStep:
        """Take the row that has been projected, for streams that are in step."""
        work, m, n = self.work(state), self.num_landmarks, self.window
        t = int(work.steps[0])
        work.steps.fill(t + 1)
        slot, renewed = t % n, None
        work.summary.enter(t, work.queries)
        if state.landmarks is not None:
            renewed = self._renew(t, work.asked, state.landmarks)
            m = m if t >= n else self._segment[slot] + 1
        if len(work.asked) > 1:
            work.heads.view_as(work.asked).copy_(work.asked)
        if work.landmarks is not None:
            torch.bmm(work.heads, work.landmarks, out=work.products)
        work.summary.put(t, work.row, work.logits)
        if renewed is not None and work.queries is not None:
            work.summary.renew(t, renewed, work.queries[:, renewed])
        weights, values = work.summary.look(t, m)
        asked = self.ask(work.asking, work, m)
        return NystromStep(slot, min(t + 1, n), m, asked, weights, values, renewed is not None)

    def ask(self, logits: Tensor, work: NystromViews, landmarks: int) -> Tensor:
        """Return softmax(q K~^T) G^+ [B h, r, m'] of logits [B h, r, m] for m' landmarks."""
        inverse = work.inverse
        if landmarks < self.num_landmarks:
            logits, inverse = logits[:, :, :landmarks], inverse[:, :landmarks, :landmarks]
        return torch.bmm(logits.softmax(-1), inverse)

    def _renew(self, t: int, pair: Tensor, own: LandmarkState) -> int | None:
        """Take a query and a key, [B, h, 2, e]; return the index of a landmark they change."""
        slot = t % self.window
        landmark: int = self._segment[slot]
        start, end = self._starts[landmark], self._ends[landmark]
        if slot == start:
            own.pending.copy_(pair)
        else:
            own.pending.add_(pair)
        if t >= self.window and slot + 1 < end:
            return None
        m = landmark + 1 if t < self.window else self.num_landmarks
        torch.mul(own.pending, self.scale / (slot + 1 - start), out=own.rows[:, :, :, landmark])
        own.inverse[:, :, :m, :m] = self.invert(own.rows[:, :, :, :m])
        return landmark

    def spans(self, q: Tensor, k: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """Yield spans of a clip's steps and their landmarks, [B or 1, h, 2, m', e].

        ``q``, ``k``: [B, h, T, e].
        """
        length = q.shape[2]
        if self.fixed:
            yield 0, length, self.landmarks[None]
            return
        pair, found = torch.stack([q, k], 2) * self.scale, list[Tensor]()
        for t in range(length):
            slot = t % self.window
            landmark = self._segment[slot]
            start, whole = self._starts[landmark], slot + 1 == self._ends[landmark]
            if t >= self.window and not whole:
                continue
            mean = pair[:, :, :, t - (slot - start) : t + 1].mean(3)
            found[landmark : landmark + 1] = [mean]
            warm, stop = t + 1 < self.window, t + 1
            while not warm and stop < length and stop % self.window + 1 not in self._ends:
                stop += 1
            yield t, stop, torch.stack(found, 3)

    def row_macs(self) -> float:
        """Return the multiply-accumulates of a step except those that use the summary.

        Averaged over n steps: the row's projection, its logits and weights, the chunks, and with
        continual landmarks these and their inverse.
        """
        d, m, n = self.embed_dim, self.num_landmarks, self.window
        h, c, chunks = self.num_heads, chunk_size(n), len(chunk_sizes(n))
        others = m * chunks * d if chunks > 1 else 0
        if self.fixed:
            return (2 * h * m + d) * d + m**2 * h + (m * n * d + chunks * others) / n
        row = 3 * d**2 + 4 * m * d + m**2 * h
        renewing = 2 * chunks * c * d + chunks * d + self.inverse_macs(m)
        return row + (m * n * d + chunks * (m * c * d + others) + m * renewing) / n
