"""Attention among the tokens of a frame, updated exactly when some of the tokens change.

Of every query i the unnormalised sums

    l_i = sum_j exp(s_ij - m_i),    o_i = sum_j exp(s_ij - m_i) v_j

are stored, with m_i the maximum of the scores when the row was last computed (as in Milakov,
Gimelshein, "Online normalizer calculation for softmax", 2018). When tokens change, the rows of
their queries are recomputed; from every other row the terms of the old keys are subtracted and
those of the new ones are added, and o_i / l_i is attention over all current keys. Dutson et al.
(ICCV 2023) keep the weights and refresh only the columns of changed keys: there the weights of all
others stay the same although the sum has changed.

The old scores are recomputed from the old keys, so no N x N matrix is stored.

Subtraction does not undo an addition bit for bit, and where most of a sum is subtracted the rest is
mostly rounding error. So all that was ever subtracted from l_i is added up too, in t_i: the
relative error of the row is at most about (1 + t_i / l_i) times that of one score's exponential. A
row with t_i > 2 l_i is recomputed, in the same step, and so is one whose sum grows towards
overflow. This bounds the error for ever. Where a tenth of the attention is on tokens that change, a
row is recomputed every twenty frames.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from costream.nn import fast
from costream.nn.eventful.attention import TokenGrid, count_dense_attention
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.gates import ChosenTokens, pass_difference
from costream.nn.eventful.positions import RelativePosition
from costream.nn.state import State, zeros

SCORES_AT_ONCE = 1 << 19  # computed at once, to stay in the cache
OVERHEAD = 4_000_000  # products that take as long as the other work of a correction
_BITS = 1 / math.log(2)  # scores are in base 2, whose exponential takes 0.6 of the time
TURNOVER = 2.0
_LARGEST = 2.0**100


@dataclass
class ExactState(State):
    """Running sums of every query."""

    largest: Tensor  # m, [B, H, N]
    total: Tensor  # l, [B, H, N]
    turnover: Tensor  # t, [B, H, N]
    weighted: Tensor  # o, [B, N, D]
    along_y: Tensor  # positions of the keys for each query, [B, H, N, keys down]
    along_x: Tensor  # [B, H, N, keys across]

    def __post_init__(self) -> None:
        self.scratch = [self.total.new_empty(0)] * 2  # for scores, never saved

    def room(self, number: int, *shape: int) -> Tensor:
        """Return a buffer of this shape; what it held before under this number is lost."""
        size = math.prod(shape)
        if self.scratch[number].numel() < size:
            with torch.inference_mode(False):
                self.scratch[number] = self.total.new_empty(size)
        return self.scratch[number][:size].view(shape)


class ExactUpdate:
    """Exact attention with 6 N M D - 4 M^2 D multiply-accumulates for M changed of N tokens.

    Where recomputing attention takes fewer, 2 N^2 D, it is recomputed: from N / 2 tokens on, and
    earlier in small frames.
    """

    @staticmethod
    def renews(frame: TokenGrid, tokens: int, columns: int, width: int) -> bool:
        """Return whether all is recomputed when ``tokens`` tokens change, part of ``columns`` keys.

        ``width``: D.
        """
        if not fast.enabled():
            return True
        corrected = 4 * (frame.tokens - tokens) * columns + 2 * tokens * frame.keys
        return corrected * width + OVERHEAD >= 2 * frame.tokens * frame.keys * width

    def init_state(self, batch_size: int, frame: TokenGrid, like: Tensor) -> ExactState:
        """Return the initial state of ``batch_size`` streams. ``like``: a row [..., D]."""
        of_head = (batch_size, frame.heads, frame.tokens)
        down, across = frame.positions
        largest, total, turnover = (zeros(*of_head, like=like) for _ in range(3))
        return ExactState(
            largest,
            total,
            turnover,
            zeros(batch_size, frame.tokens, like.shape[-1], like=like),
            zeros(*of_head, down, like=like),
            zeros(*of_head, across, like=like),
        )

    def step(
        self,
        qkv: Tensor,
        new: Tensor,
        chosen: ChosenTokens,
        state: ExactState,
        frame: TokenGrid,
        position: RelativePosition | None,
        operations: Operations,
    ) -> Tensor:
        """Write new rows, return the attention of all tokens. The queries in ``qkv`` are scaled."""
        width = qkv.shape[2] // 3
        new[:, :width] *= _BITS * (width // frame.heads) ** -0.5
        for stream, rows in enumerate(chosen.split(new)):
            tokens, columns = chosen.tokens[stream], frame.columns(chosen.tokens[stream])
            fresh = chosen.fresh[stream]
            if not (len(tokens) or fresh):
                continue
            one = StreamUpdate(frame, position, qkv[stream], state, stream, operations)
            if fresh or self.renews(frame, len(tokens), len(columns), width):
                one.qkv[tokens] = rows
                one.begin()
            else:
                one.update(tokens, columns, rows)
        heads = (frame.heads, -1)
        sums = torch.unflatten(state.weighted, 2, heads)
        return torch.div(sums, state.total.transpose(1, 2)[..., None]).flatten(2)


class StreamUpdate:
    """One stream during one step."""

    def __init__(
        self,
        frame: TokenGrid,
        position: RelativePosition | None,
        qkv: Tensor,
        state: ExactState,
        stream: int,
        operations: Operations,
    ) -> None:
        self.frame, self.position, self.operations = frame, position, operations
        self.qkv, self.state = qkv, state  # qkv: [N, 3 D]
        self.width = qkv.shape[1] // 3
        self.head_dim = self.width // frame.heads
        # Rows of all heads, one head after another, or of all queries
        self.largest, self.total, self.turnover, self.along_y, self.along_x = (
            kept[stream].flatten(0, 1)
            for kept in (state.largest, state.total, state.turnover, state.along_y, state.along_x)
        )
        self.weighted = state.weighted[stream]

    def begin(self) -> None:
        """Compute every row from scratch."""
        frame, position = self.frame, self.position
        if position is not None:
            queries = torch.unflatten(self.qkv[:, : self.width], 1, (frame.heads, -1))
            along = position(torch.unflatten(queries, 0, (frame.height, frame.width))[None])
            self._place(slice(None), (along[0][0], along[1][0]))
        keys, values = self._by_head(*frame.keys_values(self.qkv))
        for heads in self._groups(frame.tokens * frame.keys):
            self._renew(heads, None, keys, values)
        self.operations.position += frame.tokens * self.width * sum(frame.positions)

    def update(self, tokens: Tensor, columns: Tensor, new: Tensor) -> None:
        """Write rows of these tokens, recompute them and correct the others."""
        frame, position = self.frame, self.position
        old = self._by_head(*frame.keys_values(self.qkv, columns))
        self.qkv[tokens] = new
        now = self._by_head(*frame.keys_values(self.qkv, columns))
        keys, values = self._by_head(*frame.keys_values(self.qkv))
        if position is not None:
            q = torch.unflatten(new[:, : self.width], 1, (frame.heads, -1))
            self._place(tokens, position.of_tokens(q, tokens, frame.height, frame.width))
        self.operations.position += len(tokens) * self.width * sum(frame.positions)
        others = torch.ones(frame.tokens, dtype=torch.bool, device=tokens.device)
        others[tokens] = False
        rest = others.nonzero().flatten()
        changes = ((old[0], old[1], -1), (now[0], now[1], 1))
        for heads in self._groups(max(len(rest) * len(columns), len(tokens) * frame.keys)):
            pieces = torch.split(rest, rows_at_once(len(columns)))
            unsound = [self._correct(heads, rows, columns, changes) for rows in pieces]
            self._renew(heads, torch.cat([tokens, *unsound]), keys, values)

    def _groups(self, scores: int) -> list[slice]:
        """Return the heads to compute at once, where one head has ``scores`` scores."""
        count, every = max(1, SCORES_AT_ONCE // max(scores, 1)), self.frame.heads
        return [slice(k, min(k + count, every)) for k in range(0, every, count)]

    def _place(self, rows: Tensor | slice, along: tuple[Tensor, Tensor]) -> None:
        """Store the positions [H, M, .] of these queries."""
        scale = self.head_dim**0.5  # the queries are divided by it
        for kept, new in zip((self.along_y, self.along_x), along, strict=True):
            kept.view(self.frame.heads, self.frame.tokens, -1)[:, rows] = new * scale

    def _at(self, heads: slice, rows: Tensor | slice) -> Tensor | slice:
        """Return the indices of these rows of these heads among the rows of all heads."""
        tokens = self.frame.tokens
        if isinstance(rows, slice) and heads.stop - heads.start == 1:
            return slice(heads.start * tokens + rows.start, heads.start * tokens + rows.stop)
        if isinstance(rows, slice):
            return slice(heads.start * tokens, heads.stop * tokens)
        first = torch.arange(heads.start, heads.stop, device=rows.device) * tokens
        return (first[:, None] + rows).flatten()

    def _of_heads(self, x: Tensor, heads: slice, rows: Tensor | slice) -> Tensor:
        """Return rows of some heads, [h, n, e], of ``x`` [N, D]."""
        part = x[:, heads.start * self.head_dim : heads.stop * self.head_dim]
        return torch.unflatten(_take(part, rows), 1, (-1, self.head_dim)).transpose(0, 1)

    def _by_head(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Return keys or values [n, D] as [H, n, e], in the dtype used for products."""
        return tuple(_by_head(part.to(self.frame.products), self.frame) for part in parts)

    def _correct(
        self,
        heads: slice,
        rows: Tensor,
        columns: Tensor,
        changes: tuple[tuple[Tensor, Tensor, int], ...],
    ) -> Tensor:
        """Replace old keys and values by new ones, return the rows that must be recomputed.

        ``changes``: keys and values [H, m, e], and whether to subtract (-1) or add (1) them.
        """
        at, shape = self._at(heads, rows), (heads.stop - heads.start, len(rows), len(columns))
        bias, scores = self._bias(at, columns, shape), self.state.room(1, *shape)
        q = self._of_heads(self.qkv, heads, rows).to(self.frame.products)
        weighted = self._of_heads(self.weighted, heads, rows)
        total, turnover, largest = (
            _take(kept, at).view(shape[:2]) for kept in (self.total, self.turnover, self.largest)
        )
        for keys, values, sign in changes:
            _score(bias, q, keys[heads], scores).sub_(largest[..., None]).exp2_()
            weighted.add_(_weigh(scores, values[heads]), alpha=sign)
            mass = scores.sum(2)
            total.add_(mass, alpha=sign)
            if sign < 0:
                turnover += mass
        self._store(heads, rows, weighted)
        self.total[at], self.turnover[at] = total.flatten(), turnover.flatten()
        self._count(*shape)
        sound = (turnover <= TURNOVER * total) & (total < _LARGEST)
        # Meta tensors, used to compute only sizes, have no values to check.
        return rows[:0] if sound.is_meta else rows[~sound.all(0)]

    def _bias(self, at: Tensor | slice, columns: Tensor, shape: tuple[int, ...]) -> Tensor | None:
        """Return what is added to the scores [h, n, m] of these keys for rows at ``at``."""
        if self.position is None:
            return None
        across, (bias, room) = self.frame.positions[1], (self.state.room(k, *shape) for k in (0, 1))
        flat = [both.flatten(0, 1) for both in (bias, room)]
        torch.index_select(_take(self.along_y, at), 1, columns // across, out=flat[0])
        torch.index_select(_take(self.along_x, at), 1, columns % across, out=flat[1])
        return bias.add_(room)

    def _count(self, heads: int, rows: int, columns: int) -> None:
        self.operations.product += 4 * heads * rows * columns * self.head_dim
        if self.frame.relative:  # along both axes, and for the old score and the new one
            self.operations.add += 3 * heads * rows * columns
        self.operations.accumulate += 2 * heads * rows * self.head_dim

    def _renew(self, heads: slice, rows: Tensor | None, keys: Tensor, values: Tensor) -> None:
        """Recompute these rows of some heads; None: all."""
        count = self.frame.tokens if rows is None else len(rows)
        size = rows_at_once(self.frame.keys)
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            self._renew_part(heads, part if rows is None else rows[part], keys, values)
        scores = (heads.stop - heads.start) * count * self.frame.keys
        self.operations.product += 2 * scores * self.head_dim
        self.operations.add += self.frame.added * scores

    def _renew_part(self, heads: slice, rows: Tensor | slice, keys: Tensor, values: Tensor) -> None:
        at = self._at(heads, rows)
        q = self._of_heads(self.qkv, heads, rows).to(keys.dtype)
        room, bias = self.state.room(0, *q.shape[:2], keys.shape[1]), None
        if self.position is not None:
            y, x = _take(self.along_y, at), _take(self.along_x, at)
            bias = room
            torch.add(y[:, :, None], x[:, None], out=bias.view(*y.shape, -1))
        scores = _score(bias, q, keys[heads], room)
        largest = scores.amax(2)
        scores.sub_(largest[..., None]).exp2_()
        self.largest[at], self.total[at] = largest.flatten(), scores.sum(2).flatten()
        self.turnover[at] = 0
        self._store(heads, rows, _weigh(scores, values[heads]))

    def _store(self, heads: slice, rows: Tensor | slice, weighted: Tensor) -> None:
        """Store weighted sums [h, n, e]."""
        part = self.weighted[:, heads.start * self.head_dim : heads.stop * self.head_dim]
        part[rows] = weighted.transpose(0, 1).flatten(1)


def rows_at_once(columns: int) -> int:
    """Return the number of rows of ``columns`` scores that fit in the cache."""
    return max(64, SCORES_AT_ONCE // columns)


def _take(x: Tensor, rows: Tensor | slice) -> Tensor:
    """Return rows of ``x``, gathered in a quarter of the time of ``x[rows]``."""
    return x[rows] if isinstance(rows, slice) else x.index_select(0, rows)


def _score(bias: Tensor | None, q: Tensor, keys: Tensor, out: Tensor) -> Tensor:
    """Return the scores [h, n, m] of keys [h, m, e] for queries [h, n, e].

    ``out`` may be ``bias``.
    """
    if bias is None:
        return torch.bmm(q, keys.mT, out=out) if q.dtype == out.dtype else out.copy_(q @ keys.mT)
    if q.dtype == bias.dtype:
        return torch.baddbmm(bias, q, keys.mT, out=out)
    return torch.add(bias, q @ keys.mT, out=out)


def _weigh(weights: Tensor, values: Tensor) -> Tensor:
    """Return weights [h, n, m] times values [h, m, e] in the type of the weights."""
    return (weights.to(values.dtype) @ values).to(weights.dtype)


# The attention update as published with the Eventful Transformers, for comparison.


@dataclass
class PaperState(State):
    """Scores without positions, and the inputs of the last products with the values."""

    scores: Tensor  # [B, H, N, keys]
    weights: Tensor  # reference of the columns of attention weights, [B, H, N, keys]
    values: Tensor  # reference of the values, [B, keys, D]
    product: Tensor  # weights times values, [B, N, D]


class PaperUpdate:
    """Query-key and attention-value updates: Dutson, Li, Gupta (ICCV 2023), section 4.2.

    The weights of columns whose keys did not change are left unchanged, although the softmax of
    every row has changed: the result lags behind attention over the current keys, even after
    the scene freezes.
    """

    def init_state(self, batch_size: int, frame: TokenGrid, like: Tensor) -> PaperState:
        """Return the initial state of ``batch_size`` streams. ``like``: a row [..., D]."""
        square = (batch_size, frame.heads, frame.tokens, frame.keys)
        return PaperState(
            zeros(*square, like=like),
            zeros(*square, like=like),
            zeros(batch_size, frame.keys, like.shape[-1], like=like),
            zeros(batch_size, frame.tokens, like.shape[-1], like=like),
        )

    def step(
        self,
        qkv: Tensor,
        new: Tensor,
        chosen: ChosenTokens,
        state: PaperState,
        frame: TokenGrid,
        position: RelativePosition | None,
        operations: Operations,
    ) -> Tensor:
        """Write new rows, return the attention of all tokens."""
        chosen.put(new, qkv)
        width = qkv.shape[2] // 3
        for stream, rows in enumerate(qkv.unbind(0)):
            heads = (frame.heads, -1)
            q = torch.unflatten(rows[:, :width], 1, heads)
            k, v = frame.keys_values(rows)
            along = None
            if position is not None:
                along = position(torch.unflatten(q, 0, (frame.height, frame.width))[None])
            q = q.transpose(0, 1) * (width // frame.heads) ** -0.5
            k = _by_head(k, frame)
            scores, reference = state.scores[stream], state.weights[stream]
            tokens = chosen.tokens[stream]
            columns = frame.columns(tokens)
            if chosen.fresh[stream]:
                torch.matmul(q, k.mT, out=scores)
                count_dense_attention(frame, width, 1, operations)
            else:
                scores[:, tokens] = q[:, tokens] @ k.mT
                scores[:, :, columns] = q @ k[:, columns].mT
                products = len(tokens) * frame.keys + 3 * frame.tokens * len(columns)
                operations.product += products * width
                operations.position += frame.tokens * width * sum(frame.positions)
                operations.add += frame.added * scores.numel()
            placed = scores
            if along is not None:
                y, x = (part[0] for part in along)
                placed = scores + (y[..., None] + x[..., None, :]).flatten(2)
            weights = placed.softmax(-1)
            if chosen.fresh[stream]:
                reference.copy_(weights)
                state.values[stream] = v
                _by_head(state.product[stream], frame).copy_(weights @ _by_head(v, frame))
                continue
            now, change = pass_difference(v, state.values[stream], columns, operations)
            old = _by_head(now - change, frame)
            weight, delta = pass_difference(weights.mT, reference.mT, columns, operations)
            moved = weight.mT @ _by_head(change, frame) + delta.mT @ old
            _by_head(state.product[stream], frame).add_(moved)
            operations.accumulate += now.numel() + 2 * state.product[stream].numel()
        return state.product.clone()


def _by_head(rows: Tensor, frame: TokenGrid) -> Tensor:
    """Return the view [H, n, e] of rows [n, D]."""
    return torch.unflatten(rows, 1, (frame.heads, -1)).transpose(0, 1)
