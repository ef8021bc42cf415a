"""Scaled dot-product attention over a sliding window, ordinary and continual.

With queries, keys and values q, k, v of width e a head, attention over n rows is

    D^-1 A v,    A = exp(q k^T / sqrt(e)),    D = diag(A 1),

that is softmax(q k^T / sqrt(e)) v. When the window moves by one row, *single-output* attention
asks for the newest row only: one query against cached keys and values. *Retroactive* attention
asks for all n rows, because a new key changes every one of them. Both are of Hedegaard,
Bakhtiarnia, Iosifidis, "Continual Transformers" (ICLR 2023).

That paper keeps D and A v of the old rows, adds exp(q k_new) to them and subtracts exp(q k_old).
The subtraction cancels: with the logits of a trained network its float32 error reaches the size
of the output itself, and it ends in NaN. Here A is taken anew from cached rows, with the maximum
subtracted, so a stream is as exact after a year as after one window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn import ring
from costream.nn.functional import linear
from costream.nn.ring import Fill
from costream.nn.state import State, zeros

_CHUNK = 256  # queries at once in a long clip
# Heads from this width on keep a row's numbers side by side, narrower ones the rows'. Measured,
# of a whole step: e = 12, n = 120, side by side 7 % slower; e = 128, n = 64, 8 % faster.
_WIDE = 32


@dataclass
class AttentionState(State):
    """Projected rows of the window, in rings."""

    steps: Tensor  # int64 [B]
    keys: Tensor  # k / sqrt(e), [B, h, e, n], or [B, h, n, e] for wide heads: see _WIDE
    values: Tensor  # v, the same

    def __post_init__(self) -> None:
        self.views: _Views | None = None  # made when needed, never saved or copied


@dataclass(frozen=True)
class _Views:
    """The rings of one stream, seen as its steps need them, and room for its newest row.

    An operation of a step takes a few microseconds whatever its size, and five times as long
    when large weights have pushed its code out of the cache, so there are as few as can be.
    """

    steps: Any  # the state's own counter as a NumPy array, which costs a tenth of a tensor's
    projected: Tensor  # [1, 3 d], written by every step: the query, key and value of its row
    query: Tensor  # [h, 1, e], views of ``projected``
    key: Tensor
    value: Tensor
    scale: Tensor  # 1 / sqrt(e); a Python number would cost 2 us more
    key_slots: tuple[Tensor, ...]  # n times [h, 1, e]
    value_slots: tuple[Tensor, ...]
    keys: Tensor  # [h, e, n]
    values: Tensor  # [h, n, e]


@dataclass
class RetroactiveState(AttentionState):
    """Projected rows of the window; all rows ask."""

    queries: Tensor  # like keys


class MultiheadAttention(nn.Module):
    """Ordinary self-attention, with the parameter names of ``torch.nn.MultiheadAttention``.

    Args:
        embed_dim: d. ``num_heads``: h, contiguous slices of width e = d / h.
        qkv_bias, out_bias: whether the projections have biases.
        dropout: on the attention weights, in training.
    """

    in_proj_bias: nn.Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        out_bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} is no multiple of num_heads {num_heads}")
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.head_dim = embed_dim // num_heads
        self.scale = 1 / math.sqrt(self.head_dim)
        self._split = (3, num_heads, self.head_dim)
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        bias = nn.Parameter(torch.zeros(3 * embed_dim)) if qkv_bias else None
        self.register_parameter("in_proj_bias", bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=out_bias)
        nn.init.xavier_uniform_(self.in_proj_weight)
        if out_bias:
            nn.init.zeros_(self.out_proj.bias)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Give every row of ``x`` [B, n, d] after attending to all rows, [B, n, d].

        ``mask``: bool [B, n], False where there is no row.
        """
        q, k, v = self.project(x).unbind(2)
        return self._attend(q, k, v, None if mask is None else mask[:, None])

    def count_macs(self, rows: int) -> int:
        """Multiply-accumulates of ``forward`` over this many rows of one stream."""
        return 4 * rows * self.embed_dim**2 + 2 * rows**2 * self.embed_dim

    def project(self, x: Tensor) -> Tensor:
        """Give queries, keys / sqrt(e) and values [..., 3, h, e] of rows ``x`` [..., d]."""
        weight, bias = self._parameters.values()
        rows = F.linear(x, weight, bias)  # type: ignore[arg-type]
        rows = torch.unflatten(rows, -1, self._split)
        rows.select(-3, 1).mul_(self.scale)
        return rows

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        """Give [B, m, d] for queries [B, m, h, e], scaled keys and values [B, n, h, e].

        ``seen``: bool [B or 1, m or 1, n], True where a query sees a key.
        """
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        logits = q @ k.transpose(2, 3)
        if seen is not None:
            logits = logits.masked_fill(~seen[:, None].to(q.device), -math.inf)
        weights = F.dropout(logits.softmax(-1), self.dropout, self.training)
        return linear(self, "out_proj", (weights @ v).transpose(1, 2).flatten(2))


class _ContinualAttention(MultiheadAttention):
    """What single-output and retroactive attention share: a window, and no delay."""

    delay = 0
    stride = 1

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        window: int,
        *,
        qkv_bias: bool = True,
        out_bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            embed_dim, num_heads, qkv_bias=qkv_bias, out_bias=out_bias, dropout=dropout
        )
        self.window = window

    @property
    def receptive_field(self) -> int:
        """Rows that an output depends on."""
        return self.window

    def warmup(self, state: AttentionState) -> tuple[bool, ...]:
        """Say for each stream whether its window is not yet full."""
        return tuple(t < self.window for t in state.steps.tolist())

    def _ring(self, batch_size: int) -> Tensor:
        e, n = self.head_dim, self.window
        shape = (n, e) if e >= _WIDE else (e, n)
        return zeros(batch_size, self.num_heads, *shape, like=self.in_proj_weight)

    def _slots(self, rows: Tensor) -> Tensor:
        """Give the view [B, h, e, n] of a ring."""
        return rows.transpose(2, 3) if self.head_dim >= _WIDE else rows

    def _keep(self, rows: Tensor, new: Tensor, fill: Fill) -> Tensor:
        """Put ``new`` [B, h, e] into a ring, give its filled part as matrices [B h, e, length]."""
        slots = self._slots(rows)
        ring.write(slots, fill.slot, new)
        matrices = slots.view(-1, self.head_dim, self.window)
        return matrices if fill.length == self.window else matrices.narrow(2, 0, fill.length)

    def _logits(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Give the logits of queries [B h, m, e] and scaled keys [B h, e, length], masked."""
        logits = torch.bmm(q, k)
        if mask is None:
            return logits
        hidden = ~mask.to(q.device).repeat_interleave(self.num_heads, 0)[:, None]
        return logits.masked_fill_(hidden, -math.inf)


class SingleOutputAttention(_ContinualAttention):
    """Attention whose output is the newest row of the window.

    A step projects one row, puts its key and value into the ring and attends with one query:
    4 d^2 + 2 n d multiply-accumulates instead of 4 n d^2 + 2 n^2 d.
    """

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Give each row of a clip [B, T, d] after attending to itself and the n - 1 before it."""
        q, k, v = self.project(x).unbind(2)
        length = x.shape[1]
        out = []
        for start in range(0, length, _CHUNK):
            low, stop = max(0, start - self.window + 1), min(start + _CHUNK, length)
            age = torch.arange(start, stop)[:, None] - torch.arange(low, stop)
            seen = (age >= 0) & (age < self.window)
            out.append(self._attend(q[:, start:stop], k[:, low:stop], v[:, low:stop], seen[None]))
        return torch.cat(out, 1)

    def init_state(self, batch_size: int = 1) -> AttentionState:
        """Give the state of streams that have seen nothing."""
        return AttentionState(zeros(batch_size), self._ring(batch_size), self._ring(batch_size))

    def forward_step(self, x: Tensor, state: AttentionState) -> Tensor:
        """Take one row [B, d] of every stream, give it after attention, [B, d]."""
        if x.shape[0] == 1 and not torch.is_grad_enabled():
            return self._step_alone(x, state)
        fill = ring.advance(state.steps, self.window)
        q, k, v = self.project(x).unbind(1)
        k, v = self._keep(state.keys, k, fill), self._keep(state.values, v, fill)
        weights = self._logits(q.reshape(-1, 1, self.head_dim), k, fill.mask).softmax(-1)
        out = torch.bmm(weights, v.transpose(1, 2))
        return linear(self, "out_proj", out.view(-1, self.embed_dim))

    def _step_alone(self, x: Tensor, state: AttentionState) -> Tensor:
        """Do ``forward_step`` for one stream, whose views of the rings are kept."""
        views = state.views or self._see(state)
        t = int(views.steps[0])
        views.steps[0] = t + 1
        weight, bias = self._parameters.values()
        if bias is None:
            torch.mm(x, weight.t(), out=views.projected)  # type: ignore[union-attr]
        else:
            torch.addmm(bias, x, weight.t(), out=views.projected)  # type: ignore[union-attr]
        slot = t % self.window
        torch.mul(views.key, views.scale, out=views.key_slots[slot])
        views.value_slots[slot].copy_(views.value)
        keys, values = views.keys, views.values
        if t + 1 < self.window:
            keys, values = keys.narrow(2, 0, t + 1), values.narrow(1, 0, t + 1)
        weights = torch.bmm(views.query, keys).softmax(-1)
        return linear(self, "out_proj", torch.bmm(weights, values).view(1, self.embed_dim))

    def _see(self, state: AttentionState) -> _Views:
        with torch.inference_mode(False):
            keys, values = self._slots(state.keys)[0], self._slots(state.values)[0]
            projected = keys.new_empty(1, 3 * self.embed_dim)
            query, key, value = projected.view(3, self.num_heads, 1, self.head_dim).unbind()
            state.views = _Views(
                steps=state.steps.numpy(),
                projected=projected,
                query=query,
                key=key,
                value=value,
                scale=keys.new_tensor(self.scale),
                key_slots=keys[:, None].unbind(3),
                value_slots=values[:, None].unbind(3),
                keys=keys,
                values=values.transpose(1, 2),
            )
        return state.views

    def forward_steps(self, x: Tensor, state: AttentionState) -> Tensor:
        """Take T rows [B, T, d], give what T calls of ``forward_step`` would, [B, T, d]."""
        parts = torch.split(x, _CHUNK, 1)
        return torch.cat([self._forward_chunk(part, state) for part in parts], 1)

    def _forward_chunk(self, x: Tensor, state: AttentionState) -> Tensor:
        q, *new = self.project(x).unbind(2)
        rings = self._slots(state.keys), self._slots(state.values)
        held = (ring.in_order_of_slots(r) for r in rings)
        k, v = (torch.cat(pair, 1) for pair in zip(held, new, strict=True))
        out = self._attend(q, k, v, ring.visible(state.steps, self.window, x.shape[1]))
        ring.store(rings[0], k, state.steps)
        ring.store(rings[1], v, state.steps)
        state.steps += x.shape[1]
        return out

    def attend_changed(self, x: Tensor, newest: Tensor, mask: Tensor | None = None) -> Tensor:
        """Give ``newest`` [B, d] after attending to rows ``x`` [B, n, d] that are all new.

        Nothing can be cached here, but only one query is asked, and for that no row needs a key
        or a value of its own. In a head, q (W_k y + b_k) = (W_k^T q) y + const, and the softmax
        forgets the constant; and as its weights p sum to one, sum_j p_j (W_v y_j + b_v) =
        W_v (sum_j p_j y_j) + b_v. That is 4 d^2 + 2 n h d multiply-accumulates instead of
        2 (n + 1) d^2 + 2 n d, with the same result.

        ``mask``: bool [B, n], False where there is no row.
        """
        h, e, d = self.num_heads, self.head_dim, self.embed_dim
        w_q, w_k, w_v = self.in_proj_weight.view(3, d, d)
        b_q, _, b_v = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.view(3, d)
        q = F.linear(newest, w_q, b_q).view(-1, h, e).transpose(0, 1)
        query = torch.bmm(q, w_k.view(h, e, d)).transpose(0, 1)  # W_k^T q, [B, h, d]
        logits = torch.bmm(self.scale * query, x.transpose(1, 2))
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None].to(x.device), -math.inf)
        weights = F.dropout(logits.softmax(-1), self.dropout, self.training)
        mean = torch.bmm(weights, x).transpose(0, 1)  # sum_j p_j y_j, [h, B, d]
        value = torch.bmm(mean, w_v.view(h, e, d).transpose(1, 2)).transpose(0, 1).reshape(-1, d)
        return linear(self, "out_proj", value if b_v is None else value + b_v)

    def count_macs(self, rows: int | None = None, changed: bool = False) -> int:
        """Multiply-accumulates of one step for one stream over ``rows`` rows, or a full window.

        ``changed``: those of ``attend_changed``.
        """
        n, heads = rows or self.window, self.num_heads if changed else 1
        return 4 * self.embed_dim**2 + 2 * n * heads * self.embed_dim


class RetroactiveAttention(_ContinualAttention):
    """Attention whose output is all rows of the window, updated by the newest.

    A step projects one row and attends anew: 3 d^2 + 2 n^2 d + n d^2 multiply-accumulates.
    Keeping the logits would save n^2 d - 2 n d of them and cost an (h, n, n) ring a stream;
    measured, a step of two blocks gains 1 to 3 % from it, so it is not done.

    Rows come in the order of their slots: the row of step t is at t mod n.
    """

    def init_state(self, batch_size: int = 1) -> RetroactiveState:
        """Give the state of streams that have seen nothing."""
        keys, values, queries = (self._ring(batch_size) for _ in range(3))
        return RetroactiveState(zeros(batch_size), keys, values, queries)

    def forward_step(self, x: Tensor, state: RetroactiveState) -> Tensor:
        """Take one row [B, d] of every stream, give all rows after attention, [B, n, d].

        While no stream has seen n rows, there are as many as the longest has seen.
        """
        return self.step_filled(x, state, ring.advance(state.steps, self.window))

    def step_filled(self, x: Tensor, state: RetroactiveState, fill: Fill) -> Tensor:
        """Do ``forward_step`` after the step has been counted, with the slots it found."""
        rings = (state.queries, state.keys, state.values)
        new = self.project(x).unbind(1)
        q, k, v = (self._keep(r, row, fill) for r, row in zip(rings, new, strict=True))
        a = self._logits(q.transpose(1, 2), k, fill.mask)
        # In place, and D^-1 after A v: a softmax apart takes twice the time at n = 120.
        a = a.sub_(a.amax(-1, keepdim=True)).exp_()
        out = torch.bmm(a, v.transpose(1, 2)).div_(a.sum(-1, keepdim=True))
        rows = torch.unflatten(out, 0, (-1, self.num_heads)).transpose(1, 2).flatten(2)
        return linear(self, "out_proj", rows)

    def forward_steps(self, x: Tensor, state: RetroactiveState) -> Tensor:
        """Take T rows [B, T, d], give the rows of each of the T windows, [B, T, n, d].

        Rows of slots that are still empty have no meaning.
        """
        rows = self.extend(x, state)
        out = self.attend_windows(rows, *ring.windows(state.steps, self.window, x.shape[1]))
        self.store(rows, state)
        state.steps += x.shape[1]
        return out

    def extend(self, x: Tensor, state: RetroactiveState) -> Tensor:
        """Give the rings' rows followed by the projected ``x`` [B, T, d]: [B, n + T, 3, h, e]."""
        held = torch.stack(self._rings(state), 1)
        return torch.cat([ring.in_order_of_slots(held), self.project(x)], 1)

    def attend_windows(self, rows: Tensor, index: Tensor, filled: Tensor) -> Tensor:
        """Give [B, T, n, d]: attention in each window of ``rows`` at ``index`` [B, T, n]."""
        q, k, v = ring.gather(rows, index).flatten(0, 1).unbind(2)
        out = self._attend(q, k, v, filled.flatten(0, 1)[:, None])
        return torch.unflatten(out, 0, index.shape[:2])

    def store(self, rows: Tensor, state: RetroactiveState) -> None:
        """Put the newest of ``rows``, as ``extend`` gives them, into the rings."""
        for r, new in zip(self._rings(state), rows.unbind(2), strict=True):
            ring.store(r, new, state.steps)

    def _rings(self, state: RetroactiveState) -> tuple[Tensor, Tensor, Tensor]:
        return self._slots(state.queries), self._slots(state.keys), self._slots(state.values)

    def count_macs(self, rows: int | None = None) -> int:
        """Multiply-accumulates of one step for one stream over ``rows`` rows, or a full window."""
        n, d = rows or self.window, self.embed_dim
        return 3 * d**2 + 2 * n**2 * d + n * d**2
