"""Attention among the tokens of a frame, brought up to date exactly when some of them change.

Of every query i the unnormalised sums

    l_i = sum_j exp(s_ij - m_i),    o_i = sum_j exp(s_ij - m_i) v_j

are kept, with the reference m_i that the scores' maximum was when the row was last computed (as in
Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018). When tokens change, the
rows of their queries are computed anew; from every other row the terms of the old keys are
subtracted and those of the new ones are added, and o_i / l_i is attention over all keys as they
are now. Dutson et al. (ICCV 2023) keep the weights and refresh only the columns of changed keys:
there the weights of all others stay what they were although the sum has changed.

The old scores are computed again from the old keys, so no N x N matrix is kept.

What was added is not subtracted bit for bit, and where most of a sum is taken away what is left
is mostly rounding. So all that was ever subtracted from l_i is added up too, in t_i: the relative
error of the row is at most about (1 + t_i / l_i) times that of one score's exponential. A row with
t_i > 2 l_i is computed anew, in the same step, and so is one whose sum grows towards overflow.
This bounds the error for ever. Where a tenth of the attention is on tokens that change, a row is
computed anew every twenty frames.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from costream.nn.frame_attention import Frame
from costream.nn.gate import Chosen
from costream.nn.operations import Operations
from costream.nn.relative import RelativePosition
from costream.nn.state import State, zeros

_SCORES = 1 << 19  # of a head at once, which then stay in the cache
_BITS = 1 / math.log(2)  # scores are in base 2, whose exponential takes 0.6 of the time
_TURNOVER = 2.0
_LARGEST = 2.0**100


@dataclass
class ExactState(State):
    """The running sums of every query."""

    largest: Tensor  # m, [B, H, N]
    total: Tensor  # l, [B, H, N]
    turnover: Tensor  # t, [B, H, N]
    weighted: Tensor  # o, [B, N, D]
    along_y: Tensor  # positions of the keys for each query, [B, H, N, keys down]
    along_x: Tensor  # [B, H, N, keys across]

    def __post_init__(self) -> None:
        self.scratch = [self.total.new_empty(0)] * 2  # for the scores of a head, never saved

    def room(self, number: int, rows: int, columns: int) -> Tensor:
        """Give room for scores [rows, columns]; what was given under this number is lost."""
        if self.scratch[number].numel() < rows * columns:
            with torch.inference_mode(False):
                self.scratch[number] = self.total.new_empty(rows * columns)
        return self.scratch[number][: rows * columns].view(rows, columns)


class ExactUpdate:
    """Keeps attention exact at 6 N M D - 4 M^2 D multiply-accumulates for M of N tokens.

    From N / 2 tokens on that is more than computing it anew, 2 N^2 D, which is then done.
    """

    def init_state(self, batch_size: int, frame: Frame, like: Tensor) -> ExactState:
        """Give the state of streams that have seen nothing. ``like``: a row [..., D]."""
        of_head = (batch_size, frame.heads, frame.tokens)
        down, across = frame.key_sizes
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
        chosen: Chosen,
        state: ExactState,
        frame: Frame,
        position: RelativePosition,
        operations: Operations,
    ) -> Tensor:
        """Write new rows, give every token attended. The queries in ``qkv`` are scaled."""
        width = qkv.shape[2] // 3
        new[:, :width] *= _BITS * (width // frame.heads) ** -0.5
        for stream, rows in enumerate(chosen.split(new)):
            tokens, columns = chosen.tokens[stream], frame.columns(chosen.tokens[stream])
            if not len(tokens):
                continue
            one = _Stream(frame, position, qkv[stream], state, stream, operations)
            if 2 * len(columns) >= frame.keys:
                one.qkv[tokens] = rows
                one.begin()
            else:
                one.update(tokens, columns, rows)
        heads = (frame.heads, -1)
        sums = torch.unflatten(state.weighted, 2, heads)
        return torch.div(sums, state.total.transpose(1, 2)[..., None]).flatten(2)


class _Stream:
    """What is kept of one stream, during one step."""

    def __init__(
        self,
        frame: Frame,
        position: RelativePosition,
        qkv: Tensor,
        state: ExactState,
        stream: int,
        operations: Operations,
    ) -> None:
        self.frame, self.position, self.operations = frame, position, operations
        self.qkv, self.state = qkv, state  # qkv: [N, 3 D]
        self.width = qkv.shape[1] // 3
        self.largest = state.largest[stream]
        self.total, self.turnover = state.total[stream], state.turnover[stream]
        self.along_y, self.along_x = state.along_y[stream], state.along_x[stream]
        heads = (frame.heads, -1)
        self.queries = torch.unflatten(qkv[:, : self.width], 1, heads).transpose(0, 1)
        self.weighted = torch.unflatten(state.weighted[stream], 1, heads).transpose(0, 1)

    def begin(self) -> None:
        """Compute every row anew."""
        frame = self.frame
        grid = torch.unflatten(self.queries.transpose(0, 1), 0, (frame.height, frame.width))
        along = self.position(grid[None])
        self._place(slice(None), (along[0][0], along[1][0]))
        keys, values = self._by_head(*frame.keys_values(self.qkv))
        for head in range(frame.heads):
            self._renew(head, None, keys[head], values[head])
        self.operations.position += frame.tokens * self.width * sum(frame.key_sizes)

    def update(self, tokens: Tensor, columns: Tensor, new: Tensor) -> None:
        """Write rows of these tokens, compute them anew, correct the others."""
        frame = self.frame
        old = self._by_head(*frame.keys_values(self.qkv, columns))
        self.qkv[tokens] = new
        now = self._by_head(*frame.keys_values(self.qkv, columns))
        keys, values = self._by_head(*frame.keys_values(self.qkv))
        q = torch.unflatten(new[:, : self.width], 1, (frame.heads, -1))
        self._place(tokens, self.position.of_tokens(q, tokens, frame.height, frame.width))
        self.operations.position += len(tokens) * self.width * sum(frame.key_sizes)
        others = torch.ones(frame.tokens, dtype=torch.bool, device=tokens.device)
        others[tokens] = False
        rest = others.nonzero().flatten()
        for head in range(frame.heads):
            changes = ((old[0][head], old[1][head], -1), (now[0][head], now[1][head], 1))
            pieces = torch.split(rest, _rows(len(columns)))
            unsound = [self._correct(head, rows, columns, changes) for rows in pieces]
            self._renew(head, torch.cat([tokens, *unsound]), keys[head], values[head])

    def _place(self, rows: Tensor | slice, along: tuple[Tensor, Tensor]) -> None:
        """Keep the positions [H, M, .] of these queries."""
        scale = (self.width // self.frame.heads) ** 0.5  # the queries are divided by it
        self.along_y[:, rows] = along[0] * scale
        self.along_x[:, rows] = along[1] * scale

    def _by_head(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Give [H, n, e] of keys or values [n, D], of the type that products are computed in."""
        heads = (self.frame.heads, -1)
        split = (torch.unflatten(p.to(self.frame.products), 1, heads) for p in parts)
        return tuple(p.transpose(0, 1) for p in split)

    def _correct(
        self,
        head: int,
        rows: Tensor,
        columns: Tensor,
        changes: tuple[tuple[Tensor, Tensor, int], ...],
    ) -> Tensor:
        """Put new keys and values in the place of old ones; give the rows that must be renewed.

        ``changes``: keys and values [m, e], and whether they go (-1) or come (1).
        """
        across = self.frame.key_sizes[1]
        bias, scores = (self.state.room(k, len(rows), len(columns)) for k in range(2))
        torch.index_select(_take(self.along_y[head], rows), 1, columns // across, out=bias)
        x = _take(self.along_x[head], rows)
        bias += torch.index_select(x, 1, columns % across, out=scores)
        q = _take(self.queries[head], rows).to(self.frame.products)
        weighted = _take(self.weighted[head], rows)
        total, turnover = _take(self.total[head], rows), _take(self.turnover[head], rows)
        largest = _take(self.largest[head], rows)[:, None]
        for keys, values, sign in changes:
            _score(bias, q, keys, scores).sub_(largest).exp2_()
            weighted.add_(_weigh(scores, values), alpha=sign)
            mass = scores.sum(1)
            total.add_(mass, alpha=sign)
            if sign < 0:
                turnover += mass
        self.weighted[head][rows] = weighted
        self.total[head, rows], self.turnover[head, rows] = total, turnover
        self._count(len(rows), len(columns))
        sound = (turnover <= _TURNOVER * total) & (total < _LARGEST)
        # Without numbers, where only sizes are computed, all is well.
        return rows[:0] if sound.is_meta else rows[~sound]

    def _count(self, rows: int, columns: int) -> None:
        self.operations.product += 4 * rows * columns * self.width // self.frame.heads
        self.operations.add += 3 * rows * columns
        self.operations.accumulate += 2 * rows * self.width // self.frame.heads

    def _renew(self, head: int, rows: Tensor | None, keys: Tensor, values: Tensor) -> None:
        """Compute these rows of a head anew; None: all."""
        count, size = self.frame.tokens if rows is None else len(rows), _rows(self.frame.keys)
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            self._renew_part(head, part if rows is None else rows[part], keys, values)
        self.operations.product += 2 * count * self.frame.keys * self.width // self.frame.heads
        self.operations.add += 2 * count * self.frame.keys

    def _renew_part(self, head: int, rows: Tensor | slice, keys: Tensor, values: Tensor) -> None:
        y, x = _take(self.along_y[head], rows), _take(self.along_x[head], rows)
        bias = self.state.room(0, len(y), len(keys))
        torch.add(y[:, :, None], x[:, None], out=bias.view(*y.shape, -1))
        scores = _score(bias, _take(self.queries[head], rows).to(keys.dtype), keys, bias)
        self.largest[head, rows] = largest = scores.amax(1)
        scores.sub_(largest[:, None]).exp2_()
        self.total[head, rows], self.turnover[head, rows] = scores.sum(1), 0
        self.weighted[head][rows] = _weigh(scores, values)


def _rows(columns: int) -> int:
    """Give how many rows of so many scores fit the cache."""
    return max(64, _SCORES // columns)


def _take(x: Tensor, rows: Tensor | slice) -> Tensor:
    """Give rows of ``x``, in a quarter of the time that ``x[rows]`` takes to gather."""
    return x[rows] if isinstance(rows, slice) else x.index_select(0, rows)


def _score(bias: Tensor, q: Tensor, keys: Tensor, out: Tensor) -> Tensor:
    """Give the scores of keys [m, e] for queries [n, e], [n, m]; ``out`` may be ``bias``."""
    if q.dtype == bias.dtype:
        return torch.addmm(bias, q, keys.t(), out=out)
    return torch.add(bias, q @ keys.t(), out=out)


def _weigh(weights: Tensor, values: Tensor) -> Tensor:
    """Give weights [n, m] times values [m, e] in the type of the weights."""
    return (weights.to(values.dtype) @ values).to(weights.dtype)
