"""Nyström attention over a sliding window, step by step: single-output and retroactive.

What equals what (n rows, m landmarks, ``NystromAttention.forward`` as the window form):

* Fixed landmarks: every step equals the window form over the last n rows, or as many as there are.
* Continual landmarks: segments divide the stream, not the window. Their sizes are those of the
  first window, over and over, so that the last m whole segments always have n rows. When a segment
  is whole, its mean takes the place of the oldest landmark, whose segment had the same size
  (Carreto Picon et al., 2024). At those steps, every n / m on average, the step equals the window
  form over the last n rows with the sizes as far rotated: where m divides n, the window form as
  it is. Between them landmarks are as they were, up to a segment older than the window; everything
  else is of the window. While the window is not full, its landmarks are the segments begun so far,
  the last one the mean of the rows that it has, and every step equals the window form over those.

Outputs of steps carry no gradient: training takes clips.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor

from costream.nn.nystrom import NystromAttention, segment_of_rows, segment_sizes
from costream.nn.nystrom_summary import Summary, SummaryState, chunk_size, init_summary
from costream.nn.state import State, zeros

S = TypeVar("S", bound="NystromState")


@dataclass
class LandmarkState(State):
    """Landmarks of a stream."""

    keys: Tensor  # K~ / sqrt(e), [B, h, m, e]
    queries: Tensor  # Q~ / sqrt(e), the same
    inverse: Tensor  # [B, h, m, m]
    pending: Tensor  # [B, 2, h, e], sums of the queries and keys of the segment that has begun


@dataclass
class NystromState(State):
    """What Nyström attention keeps of a stream."""

    steps: Tensor  # int64 [B]
    summary: SummaryState
    landmarks: LandmarkState | None  # None: fixed

    def __post_init__(self) -> None:
        self.work: _Work | None = None  # made when needed, never saved or copied
        self.alone: list[NystromState] = []  # each stream as a state on the same memory


@dataclass(frozen=True)
class _Work:
    """Views of the state of streams that are in step, B h heads in one dimension."""

    summary: Summary
    keys: Tensor  # K~^T / sqrt(e), [B h, e, m]
    queries: Tensor  # Q~ / sqrt(e), [B h, m, e]
    inverse: Tensor  # [B h, m, m]


@dataclass(frozen=True)
class Taken:
    """What there is after a row has been taken; m' landmarks so far, r rows to look at."""

    slot: int
    filled: int  # rows in the window
    landmarks: int  # m'
    query: Tensor  # [B h, 1, e]
    asked: Tensor  # softmax(q K~^T) G^+ of it, [B h, 1, m']
    weights: Tensor  # [B h, m', r]; with ``rows`` it gives the summary of the window
    rows: Tensor  # [B h, r, e]
    renewed: bool  # a landmark is another


class ContinualNystrom(NystromAttention):
    """What the single-output and the retroactive form share."""

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
            raise ValueError(f"{num_landmarks} landmarks of a window of {window} rows")
        self.window = window
        sizes = segment_sizes(window, num_landmarks)
        self._segment = segment_of_rows(window, num_landmarks).tolist()  # of each slot
        self._ends = list(accumulate(sizes))
        self._starts = [end - size for end, size in zip(self._ends, sizes, strict=True)]

    @property
    def receptive_field(self) -> int:
        """Rows that an output depends on; more with continual landmarks, see above."""
        if self.fixed:
            return self.window
        return self.window + -(-self.window // self.num_landmarks) - 1

    def warmup(self, state: NystromState) -> tuple[bool, ...]:
        """Say for each stream whether its window is not yet full."""
        return tuple(t < self.window for t in state.steps.tolist())

    def in_step(self, state: NystromState) -> bool:
        """Say whether all streams have taken as many steps."""
        steps: list[int] = state.steps.tolist()
        return steps.count(steps[0]) == len(steps)

    def keep(self, batch_size: int) -> tuple[Tensor, SummaryState, LandmarkState | None]:
        """Give what streams that have seen nothing keep in both forms."""
        h, m, e = self.num_heads, self.num_landmarks, self.head_dim
        like = self.in_proj_weight
        landmarks = None
        if not self.fixed:
            landmarks = LandmarkState(
                keys=zeros(batch_size, h, m, e, like=like),
                queries=zeros(batch_size, h, m, e, like=like),
                inverse=zeros(batch_size, h, m, m, like=like),
                pending=zeros(batch_size, 2, h, e, like=like),
            )
        summary = init_summary(batch_size, h, m, self.window, e, like)
        return zeros(batch_size), summary, landmarks

    def _work(self, state: NystromState) -> _Work:
        if state.work is None:
            with torch.inference_mode(False):
                if state.landmarks is None:
                    batch = state.batch_size
                    keys, queries = (x.repeat(batch, 1, 1) for x in self.landmarks)
                    inverse = self.inverse.repeat(batch, 1, 1)
                else:
                    own = state.landmarks
                    keys, queries = own.keys.flatten(0, 1), own.queries.flatten(0, 1)
                    inverse = own.inverse.flatten(0, 1)
                summary = Summary(state.summary, self.window)
                state.work = _Work(summary, keys.mT, queries, inverse)
        return state.work

    def streams(self, state: S) -> list[S]:
        """Give each stream as a state of its own on the same memory."""
        if not state.alone:
            for b in range(state.batch_size):
                state.alone.append(state._map([state], lambda x, b=b: x[0].narrow(0, b, 1)))
        return state.alone  # type: ignore[return-value]

    def take(self, row: Tensor, state: NystromState) -> Taken:
        """Take a projected row [B, 3 d] of streams that are in step."""
        work, t = self._work(state), int(state.steps[0])
        state.steps.add_(1)
        slot, h, m = t % self.window, self.num_heads, self.num_landmarks
        parts = row.detach().view(-1, 3, h, self.head_dim)
        query, key, value = (x.reshape(-1, 1, self.head_dim) for x in parts.unbind(1))
        work.summary.enter(t, work.queries)
        renewed = None
        if state.landmarks is not None:
            renewed = self._renew(t, parts[:, :2], state.landmarks)
            if t < self.window:
                m = self._segment[slot] + 1
        work.summary.put(t, key, torch.bmm(work.queries, key.mT), value)
        if renewed is not None:
            work.summary.renew(t, renewed, work.queries[:, renewed])
        weights, rows = work.summary.look(t, m)
        filled, asked = min(t + 1, self.window), self.ask(query, state, m)
        return Taken(slot, filled, m, query, asked, weights, rows, renewed is not None)

    def ask(self, queries: Tensor, state: NystromState, landmarks: int) -> Tensor:
        """Give softmax(q K~^T) G^+ [B h, r, m'] of queries [B h, r, e]; m' landmarks."""
        work = self._work(state)
        weights = torch.bmm(queries, work.keys[:, :, :landmarks]).softmax(-1)
        return torch.bmm(weights, work.inverse[:, :landmarks, :landmarks])

    def _renew(self, t: int, pair: Tensor, own: LandmarkState) -> int | None:
        """Take a query and a key, [B, 2, h, e]; give the landmark that is another by them."""
        slot = t % self.window
        landmark = self._segment[slot]
        start, end = self._starts[landmark], self._ends[landmark]
        if slot == start:
            own.pending.copy_(pair)
        else:
            own.pending.add_(pair)
        if t >= self.window and slot + 1 < end:
            return None
        m = landmark + 1 if t < self.window else self.num_landmarks
        queries, keys = (own.pending * (self.scale / (slot + 1 - start))).unbind(1)
        own.queries[:, :, landmark], own.keys[:, :, landmark] = queries, keys
        found = torch.stack([own.keys[:, :, :m], own.queries[:, :, :m]], 1)
        own.inverse[:, :, :m, :m] = self.invert(found)
        return landmark

    def spans(self, q: Tensor, k: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """Give spans of a clip's steps and the landmarks that they have, [B or 1, 2, h, m', e].

        ``q``, ``k``: [B, h, T, e].
        """
        length = q.shape[2]
        if self.fixed:
            yield 0, length, self.landmarks[None]
            return
        pair, found = torch.stack([k, q], 1) * self.scale, list[Tensor]()
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

    def row_macs(self) -> int:
        """Multiply-accumulates of a step until there is a summary to look at, without that.

        Averaged over n steps: the row's projection, its logits and weights, the chunks, and with
        continual landmarks these and their inverse.
        """
        d, m, n = self.embed_dim, self.num_landmarks, self.window
        c = chunk_size(n)
        chunks = -(-n // c)
        row = 3 * d**2 + 2 * m * d + m**2 * self.num_heads
        entering = 2 * m * c * d + (m * chunks * d if chunks > 1 else 0)
        renewing = 0 if self.fixed else 2 * chunks * c * d + chunks * d + self.inverse_macs(m)
        return row + (chunks * entering + m * renewing) // n
