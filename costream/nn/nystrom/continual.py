"""Nyström attention over a sliding window, step by step: single-output and retroactive.

Equivalences (n rows, m landmarks; the window form is ``NystromAttention.forward``):

* Fixed landmarks: every step equals the window form over the last n rows, or all rows so far.
* Continual landmarks: segments divide the stream, not the window. Their sizes repeat the sizes of
the
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

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn import fast
from costream.nn.fast import linear
from costream.nn.folding import Foldable
from costream.nn.nystrom.summary import (
    WindowSummary,
    WindowSummaryState,
    chunk_size,
    chunk_sizes,
    init_summary,
    mean_rows_seen,
)
from costream.nn.nystrom.window import (
    FoldedProjection,
    NystromAttention,
    segment_of_rows,
    segment_sizes,
)
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
        self.views: NystromViews | None = None  # created on first use, never saved or copied
        self.alone: list[NystromState] = []  # each stream as a view of the same memory; likewise

    def select_stream(self: S, stream: int) -> S:
        """Return a state of one stream on the same memory."""
        return self._map([self], lambda parts: parts[0].narrow(0, stream, 1))


@dataclass(frozen=True)
class NystromViews:
    """Views of the state of streams that are in step, and space for their newest row.

    As in ``attention``: an operation takes a few microseconds whatever its size.
    """

    steps: Any  # the state's counters as a NumPy array
    summary: WindowSummary
    inverse: Tensor  # [B h, m, m]
    projected: Tensor  # [B, 3 d], or with fixed landmarks [B, h (2 m + e)]; written by every step
    inputs: Tensor  # part of it: query and key, [B, h, 2, e], or q K~^T / sqrt(e), [B, h, 1, m]
    heads: Tensor  # the same for all heads, [B h, ...], copied if there are several streams
    row: Tensor  # part of it: what the summary stores, [B, h, 2, e] or [B, h, m + e]
    query_logits: Tensor  # q K~^T / sqrt(e), [B h, 1, m]
    key_logits: Tensor  # Q~ k^T / sqrt(e), [B, h, m]
    # Only if landmarks are not fixed:
    landmarks: Tensor | None  # Q~^T and K~^T, each / sqrt(e), [B h, e, 2 m]
    queries: Tensor | None  # Q~ / sqrt(e), [B h, m, e]
    products: Tensor | None  # [B h, 2, 2 m], of query and key with the landmarks


class NystromStep(NamedTuple):
    """Result of taking a row."""

    slot: int
    filled: int  # rows in the window
    landmarks: int  # m', the number of landmarks so far
    query_weights: Tensor  # softmax(q K~^T) G^+ of the new row, [B h, 1, m']
    weights: Tensor  # [B h, m', r]; with ``values`` it gives the summary of the window
    values: Tensor  # [B h, r, e]
    renewed: bool  # whether a landmark was replaced


class ContinualNystrom(NystromAttention, Foldable[FoldedProjection]):
    """Base class of the single-output and the retroactive form."""

    delay = 0
    stride = 1

    def __init__(
        self, embed_dim: int, num_heads: int, window: int, num_landmarks: int, **options: Any
    ) -> None:
        super().__init__(embed_dim, num_heads, num_landmarks, **options)
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

    def init_parts(
        self, batch_size: int
    ) -> tuple[Tensor, WindowSummaryState, LandmarkState | None]:
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
        """Project the new row [B, d] of each stream; otherwise as ``store_rows``."""
        weight, bias = self.projection()
        if not fast.enabled() or (len(x) > 1 and not self._in_step(state)):
            return self.store_rows(F.linear(x, weight, bias), state)
        views = self.views(state)
        if bias is None:
            torch.mm(x, weight.t(), out=views.projected)
        else:
            torch.addmm(bias, x, weight.t(), out=views.projected)
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

    def store_rows(self, rows: Tensor, state: S) -> list[S]:
        """Store a projected row [B, ...] of every stream, return the states that are to take it.

        That is the state itself or, if the streams are not in step, one state per stream on the
        same memory: their chunks and landmarks change at different steps.
        """
        if len(rows) == 1 or self._in_step(state):
            self.views(state).projected.copy_(rows)
            return [state]
        if not state.alone:
            state.alone.extend([state.select_stream(b) for b in range(len(rows))])
        for row, alone in zip(rows, state.alone, strict=True):
            self.views(alone).projected[0] = row
        return state.alone  # type: ignore[return-value]

    def _in_step(self, state: NystromState) -> bool:
        steps: list[int] = state.steps.tolist()
        return steps.count(steps[0]) == len(steps)

    def views(self, state: NystromState) -> NystromViews:
        """Return the views of a state, cached."""
        if state.views is None:
            with torch.inference_mode(False):
                state.views = self._make_views(state)
        return state.views

    def _make_views(self, state: NystromState) -> NystromViews:
        batch, own = state.batch_size, state.landmarks
        h, m, e = self.num_heads, self.num_landmarks, self.head_dim
        landmarks = queries = products = None
        if own is None:
            inverse = self.inverse.repeat(batch, 1, 1)
            projected = inverse.new_empty(batch, h * (2 * m + e))
            inputs = projected[:, : h * m].view(batch, h, 1, m)
            row = projected[:, h * m :].view(batch, h, m + e)
            query_logits = heads = inputs.reshape(-1, 1, m)
            key_logits = row[:, :, :m]
        else:
            rows, inverse = own.rows.flatten(0, 1), own.inverse.flatten(0, 1)
            landmarks, queries = rows.flatten(1, 2).mT, rows[:, 0]
            projected = inverse.new_empty(batch, 3 * self.embed_dim)
            parts = projected.view(batch, 3, h, e).transpose(1, 2)
            inputs, row = parts[:, :, :2], parts[:, :, 1:]
            heads = inputs.reshape(-1, 2, e)
            products = inverse.new_empty(batch * h, 2, 2 * m)
            query_logits = products[:, :1, m:]
            key_logits = products.view(batch, h, 2, 2 * m)[:, :, 1, :m]
        summary = WindowSummary(state.summary, self.window, row)
        found = (landmarks, queries, products)
        steps = state.steps.numpy()
        return NystromViews(
            steps, summary, inverse, projected, inputs, heads, row, query_logits, key_logits, *found
        )

    def advance(self, state: NystromState) -> NystromStep:
        """Take the row that has been projected, for streams that are in step."""
        views, m, n = self.views(state), self.num_landmarks, self.window
        t = int(views.steps[0])
        views.steps.fill(t + 1)
        slot, renewed = t % n, None
        views.summary.begin_step(t, views.queries)
        if state.landmarks is not None:
            renewed = self._update_landmark(t, views.inputs, state.landmarks)
            m = m if t >= n else self._segment[slot] + 1
        if len(views.inputs) > 1:
            views.heads.view_as(views.inputs).copy_(views.inputs)
        if views.landmarks is not None:
            torch.bmm(views.heads, views.landmarks, out=views.products)
        views.summary.write(t, views.row, views.key_logits)
        if renewed is not None and views.queries is not None:
            views.summary.replace_landmark(t, renewed, views.queries[:, renewed])
        weights, values = views.summary.read(t, m)
        query = self.query_weights(views.query_logits, views, m)
        return NystromStep(slot, min(t + 1, n), m, query, weights, values, renewed is not None)

    def query_weights(self, logits: Tensor, views: NystromViews, landmarks: int) -> Tensor:
        """Return softmax(q K~^T) G^+ [B h, r, m'] of logits [B h, r, m] for m' landmarks."""
        inverse = views.inverse
        if landmarks < self.num_landmarks:
            logits, inverse = logits[:, :, :landmarks], inverse[:, :landmarks, :landmarks]
        return torch.bmm(logits.softmax(-1), inverse)

    def _update_landmark(self, t: int, pair: Tensor, own: LandmarkState) -> int | None:
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


# Retroactive Nyström attention: outputs for all rows, updated by the newest row.


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
        return RetroactiveNystromState(*self.init_parts(batch_size), weights, queries)

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
        step, views, batch = self.advance(state), self.views(state), (-1, self.num_heads)
        slot, filled, m = step.slot, step.filled, step.landmarks
        state.weights[:, :, slot, :m] = torch.unflatten(step.query_weights, 0, batch)[:, :, 0]
        if state.queries is not None and views.landmarks is not None:
            state.queries[:, :, slot] = views.inputs[:, :, 0]
            if step.renewed:
                queries = state.queries[:, :, :filled].flatten(0, 1)
                logits = torch.bmm(queries, views.landmarks[:, :, self.num_landmarks :])
                renewed = torch.unflatten(self.query_weights(logits, views, m), 0, batch)
                state.weights[:, :, :filled, :m] = renewed
        weights = state.weights[:, :, :filled, :m].flatten(0, 1)
        out = torch.bmm(weights, torch.bmm(step.weights, step.values))
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


# Single-output Nyström attention: the newest row of the window.


_SPAN = 32  # steps of a clip at once: each has weights for all landmarks


class SingleOutputNystrom(ContinualNystrom):
    """Nyström attention whose output is the newest row of the window."""

    def forward(self, x: Tensor, segments: Tensor | None = None) -> Tensor:
        """Return each row of a clip [B, T, d] as stepping through it would.

        ``segments`` belong to the window form and are not supported here: ValueError.
        """
        if segments is not None:
            raise ValueError("segments are not supported, a clip has the segments of its stream")
        q, k, v = self.split(x)
        out = [
            self._band(q, k, v, landmarks, low, min(low + _SPAN, stop))
            for start, stop, landmarks in self.spans(q, k)
            for low in range(start, stop, _SPAN)
        ]
        return linear(self, "out_proj", torch.cat(out, 2).transpose(1, 2).flatten(2))

    def _band(
        self, q: Tensor, k: Tensor, v: Tensor, landmarks: Tensor, start: int, stop: int
    ) -> Tensor:
        """Return the heads' outputs [B, h, stop - start, e] for some steps of a clip."""
        low = max(0, start + 1 - self.window)
        k, v = k[:, :, low:stop], v[:, :, low:stop]
        age = torch.arange(start, stop)[:, None] - torch.arange(low, stop)
        hidden = ((age < 0) | (age >= self.window)).to(q.device)
        queries, keys = landmarks.unbind(2)
        inverse = self.inverse[None] if self.fixed else self.invert(landmarks)
        query_weights = (q[:, :, start:stop] @ keys.mT).softmax(-1) @ inverse
        logits = (queries @ k.mT)[:, :, None].masked_fill(hidden[:, None], -math.inf)
        weights = (query_weights[:, :, :, None] @ logits.softmax(-1))[:, :, :, 0]
        return F.dropout(weights, self.dropout, self.training) @ v

    def init_state(self, batch_size: int = 1) -> NystromState:
        """Return the initial state of ``batch_size`` streams."""
        return NystromState(*self.init_parts(batch_size))

    def forward_step(self, x: Tensor, state: NystromState) -> Tensor:
        """Take one row [B, d] of every stream, return it after attention, [B, d].

        Streams that are not in step are processed one by one except for their projections.
        """
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self.forward_step(x, state)
        return linear(self, "out_proj", self._heads(self.project_row(x, state)))

    def forward_steps(self, x: Tensor, state: NystromState) -> Tensor:
        """Take T rows [B, T, d], return what T calls of ``forward_step`` would, [B, T, d]."""
        with torch.no_grad():
            rows = F.linear(x, *self.projection()).unbind(1)
            heads = [self._heads(self.store_rows(row, state)) for row in rows]
            return linear(self, "out_proj", torch.stack(heads, 1)) if heads else x

    def _heads(self, states: Sequence[NystromState]) -> Tensor:
        """Take the projected row of these streams, return the heads' outputs [B, d]."""
        out = []
        for state in states:
            step = self.advance(state)
            rows = torch.bmm(torch.bmm(step.query_weights, step.weights), step.values)
            out.append(rows.view(-1, self.embed_dim))
        return out[0] if len(out) == 1 else torch.cat(out)

    def count_macs(self, rows: int | None = None, newest: bool = True) -> int:
        """Return the multiply-accumulates of a full-window step of one stream, averaged over n."""
        m, seen = self.num_landmarks, self.num_landmarks + mean_rows_seen(self.window)
        heads = m * seen * self.num_heads + seen * self.embed_dim
        return round(self.row_macs() + heads + self.embed_dim**2)
