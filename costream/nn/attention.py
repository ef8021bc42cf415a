"""Scaled dot-product attention over a sliding window, ordinary and continual.

With queries, keys and values q, k, v of width e per head, attention over n rows is

    D^-1 A v,    A = exp(q k^T / sqrt(e)),    D = diag(A 1),

that is softmax(q k^T / sqrt(e)) v. When the window moves by one row, *single-output* attention
computes the newest row only: one query against cached keys and values. *Retroactive* attention
computes all n rows, because a new key changes every one of them. Both are from Hedegaard,
Bakhtiarnia, Iosifidis, "Continual Transformers" (ICLR 2023).

That paper keeps D and A v of the old rows, adds exp(q k_new) to them and subtracts exp(q k_old).
The subtraction cancels: with the logits of a trained network its float32 error reaches the size
of the output itself, and it ends in NaN. Here A is recomputed from cached rows, with the maximum
subtracted, or the sums are float64, have a bound of their error, and are computed again where it
grows (``retroactive_kernels``). A stream is as accurate after a year as after one window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn import fast, ring
from costream.nn.fast import linear
from costream.nn.int8 import Int8Linear
from costream.nn.position import turn_pairs
from costream.nn.ring import RingFill
from costream.nn.state import State, zeros

if TYPE_CHECKING:
    from costream.nn.retroactive_kernels import RunningSums

_CHUNK = 256  # queries at once in a long clip
# Single-output attention: from this head width on a row's numbers are contiguous; below, each
# number over all rows.
# Contiguous rows, time of a step: 7 % slower with e = 12, n = 120; 8 % faster with e = 128, n = 64.
_WIDE = 32


@dataclass
class AttentionState(State):
    """Projected rows of the window, in rings."""

    steps: Tensor  # int64 [B]
    keys: Tensor  # k / sqrt(e), [B, h, e, n], or [B, h, n, e] for wide heads: see _WIDE
    values: Tensor  # v, the same

    def __post_init__(self) -> None:
        self.compiled: Any = None  # compiled step of the block, made on first use, never copied
        self.single_steps = 0  # that could have been compiled ones


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
            raise ValueError(f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}")
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.head_dim = embed_dim // num_heads
        self.scale = 1 / math.sqrt(self.head_dim)
        self.inner_dim = embed_dim  # h e, less than d where heads were removed
        self._split = (3, num_heads, self.head_dim)
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        bias = nn.Parameter(torch.zeros(3 * embed_dim)) if qkv_bias else None
        self.register_parameter("in_proj_bias", bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=out_bias)
        self.packed: Int8Linear | None = None  # in place of in_proj_weight and in_proj_bias
        nn.init.xavier_uniform_(self.in_proj_weight)
        if out_bias:
            nn.init.zeros_(self.out_proj.bias)

    def resize(self) -> None:
        """Take the number of heads from the weights; their width stays."""
        parts = self._split[0]
        self.inner_dim = len(self.in_proj_weight) // parts
        self.num_heads = self.inner_dim // self.head_dim
        self._split = (parts, self.num_heads, self.head_dim)

    def pack(self, packed: Int8Linear) -> None:
        """Use int8 weights for the projection of queries, keys and values; for inference."""
        self.packed = packed
        self.in_proj_weight = nn.Parameter(self.in_proj_weight.new_empty(0, self.embed_dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return every row of ``x`` [B, n, d] after attention to all rows, [B, n, d].

        ``mask``: bool [B, n], False where there is no row.
        """
        q, k, v = self.project(x).unbind(2)
        return self._attend(q, k, v, None if mask is None else mask[:, None])

    def count_macs(self, rows: int) -> int:
        """Return the multiply-accumulates of ``forward`` over ``rows`` rows of one stream."""
        return 4 * rows * self.embed_dim * self.inner_dim + 2 * rows**2 * self.inner_dim

    def project(self, x: Tensor, turns: Tensor | None = None) -> Tensor:
        """Return queries, keys / sqrt(e) and values [..., 3, h, e] of rows ``x`` [..., d].

        ``turns``: complex [..., e / 2], rotates the queries and keys of each row.
        """
        if self.packed is None:
            weight, bias = self._projection()
            rows = F.linear(x, weight, bias)
        else:
            rows = self.packed(x)
        rows = torch.unflatten(rows, -1, self._split)
        if turns is not None:
            turn_pairs(rows.narrow(-3, 0, 2), turns[..., None, None, :])
        rows.select(-3, 1).mul_(self.scale)
        return rows

    def _projection(self) -> tuple[Any, ...]:
        """Return the weight and the bias of the packed projection."""
        parameters = self._parameters
        if len(parameters) < 2:  # the weight has an adapter
            return self.in_proj_weight, self.in_proj_bias
        return tuple(parameters.values())

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        """Return [B, m, d] for queries [B, m, h, e], scaled keys and values [B, n, h, e].

        ``seen``: bool [B or 1, m or 1, n], True where a query sees a key.
        """
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        weights = self._weigh(q, k.mT, None if seen is None else ~seen[:, None].to(q.device))
        weights = F.dropout(weights, self.dropout, self.training)
        return linear(self, "out_proj", (weights @ v).transpose(1, 2).flatten(2))

    def _weigh(self, q: Tensor, k: Tensor, hidden: Tensor | None) -> Tensor:
        """Return the weights [..., m, n] of scaled keys [..., e, n] for queries [..., m, e].

        ``hidden``: bool, broadcast over heads, True where a query does not see a key.
        """
        logits = torch.matmul(q, k)
        if hidden is not None:
            logits = logits.masked_fill(hidden, -math.inf)
        return logits.softmax(-1)


class ContinualAttention(MultiheadAttention):
    """Base class of single-output and retroactive attention: a window, and no delay."""

    delay = 0
    stride = 1
    contiguous_from = _WIDE  # head width, see there

    def __init__(self, embed_dim: int, num_heads: int, window: int, **options: Any) -> None:
        super().__init__(embed_dim, num_heads, **options)
        self.window = window

    @property
    def receptive_field(self) -> int:
        """Rows that an output depends on."""
        return self.window

    def warmup(self, state: AttentionState) -> tuple[bool, ...]:
        """Return for each stream whether its window is not yet full."""
        return tuple(t < self.window for t in state.steps.tolist())

    def _ring(self, batch_size: int) -> Tensor:
        e, n = self.head_dim, self.window
        shape = (n, e) if e >= self.contiguous_from else (e, n)
        return zeros(batch_size, self.num_heads, *shape, like=self.in_proj_weight)

    def _slots(self, rows: Tensor) -> Tensor:
        """Return the view [B, h, e, n] of a ring."""
        return rows.transpose(2, 3) if self.head_dim >= self.contiguous_from else rows

    def _store(self, rows: Tensor, new: Tensor, fill: RingFill) -> Tensor:
        """Store ``new`` [B, h, e] in a ring, return its filled part as [B h, e, length]."""
        slots = self._slots(rows)
        ring.write(slots, fill.slot, new)
        matrices = slots.view(-1, self.head_dim, self.window)
        return matrices if fill.length == self.window else matrices.narrow(2, 0, fill.length)

    def _hidden(self, mask: Tensor | None) -> Tensor | None:
        """Return bool [B h, 1, length], True where the ring of a stream has no row."""
        if mask is None:
            return None
        hidden = ~mask.to(self.in_proj_weight.device)[:, None, None]
        return hidden.expand(-1, self.num_heads, -1, -1).flatten(0, 1)


class SingleOutputAttention(ContinualAttention):
    """Attention whose output is the newest row of the window.

    A step projects one row, stores its key and value in the ring and attends with one query:
    4 d^2 + 2 n d multiply-accumulates instead of 4 n d^2 + 2 n^2 d.

    A step may bring ``tokens`` rows at once. Each attends to the n rows of the window that ends
    with the last of them, including those that come after it in its step.

    ``turns``: rotary positions (``RotaryPositions.turns``) of each row, complex
    [B or 1, T, e / 2], or [B or 1, e / 2] for a step of one row.
    """

    def forward(self, x: Tensor, turns: Tensor | None = None, tokens: int = 1) -> Tensor:
        """Return each row of a clip [B, T, d] after attention to itself and the n - 1 before it.

        ``tokens``: rows of a step; ValueError unless they divide T.
        """
        size, length = self._chunk(tokens, x.shape[1]), x.shape[1]
        q, k, v = self.project(x, turns).unbind(2)
        out = []
        for start in range(0, length, size):
            low, stop = max(0, start - self.window + tokens), min(start + size, length)
            last = torch.arange(start, stop) // tokens * tokens + tokens - 1  # of its step
            age = last[:, None] - torch.arange(low, stop)
            seen = (age >= 0) & (age < self.window)
            out.append(self._attend(q[:, start:stop], k[:, low:stop], v[:, low:stop], seen[None]))
        return torch.cat(out, 1)

    def init_state(self, batch_size: int = 1) -> AttentionState:
        """Return the initial state of ``batch_size`` streams."""
        return AttentionState(zeros(batch_size), self._ring(batch_size), self._ring(batch_size))

    def forward_step(self, x: Tensor, state: AttentionState, turns: Tensor | None = None) -> Tensor:
        """Take one row [B, d] of every stream, return it after attention, [B, d].

        For m rows of one step, [B, m, d], return [B, m, d]; ValueError for more than n.
        """
        if x.dim() == 3:
            return self.forward_steps(x, state, turns, x.shape[1])
        fill = ring.advance(state.steps, self.window)
        q, k, v = self.project(x, turns).unbind(1)
        k, v = self._store(state.keys, k, fill), self._store(state.values, v, fill)
        weights = self._weigh(q.reshape(-1, 1, self.head_dim), k, self._hidden(fill.mask))
        out = torch.bmm(weights, v.transpose(1, 2))
        return linear(self, "out_proj", out.view(-1, self.inner_dim))

    def forward_steps(
        self, x: Tensor, state: AttentionState, turns: Tensor | None = None, tokens: int = 1
    ) -> Tensor:
        """Take T rows [B, T, d], return what T calls of ``forward_step`` would, [B, T, d].

        ``tokens``: rows of a step, as for ``forward``.
        """
        size = self._chunk(tokens, x.shape[1])
        out = []
        for start in range(0, x.shape[1], size):
            part = slice(start, start + size)
            turned = None if turns is None else turns[:, part]
            out.append(self._forward_chunk(x[:, part], state, turned, tokens))
        return torch.cat(out, 1) if out else x

    def _chunk(self, tokens: int, length: int) -> int:
        """Return the number of rows taken at once, a multiple of ``tokens``."""
        if not 1 <= tokens <= self.window or length % tokens:
            raise ValueError(
                f"cannot take {length} rows in steps of {tokens} over a window of {self.window}"
            )
        return max(tokens, _CHUNK // tokens * tokens)

    def _forward_chunk(
        self, x: Tensor, state: AttentionState, turns: Tensor | None, tokens: int
    ) -> Tensor:
        q, *new = self.project(x, turns).unbind(2)
        rings = self._slots(state.keys), self._slots(state.values)
        past = (ring.slots_first(r) for r in rings)
        k, v = (torch.cat(pair, 1) for pair in zip(past, new, strict=True))
        out = self._attend(q, k, v, ring.visible(state.steps, self.window, x.shape[1], tokens))
        ring.store(rings[0], k, state.steps)
        ring.store(rings[1], v, state.steps)
        state.steps += x.shape[1]
        return out

    def attend_changed(self, x: Tensor, newest: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return ``newest`` [B, d] after attending to rows ``x`` [B, n, d] that are all new.

        Nothing can be cached here, but there is only one query, and for it no row needs a key or a
        value. In a head, q (W_k y + b_k) = (W_k^T q) y + const, and the softmax
        ignores the constant; and as its weights p sum to one, sum_j p_j (W_v y_j + b_v) =
        W_v (sum_j p_j y_j) + b_v. That is 4 d^2 + 2 n h d multiply-accumulates instead of
        2 (n + 1) d^2 + 2 n d, with the same result.

        ``mask``: bool [B, n], False where there is no row.
        """
        h, e, d = self.num_heads, self.head_dim, self.embed_dim
        w_q, w_k, w_v = self.in_proj_weight.view(3, h * e, d)
        b_q, _, b_v = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.view(3, -1)
        q = F.linear(newest, w_q, b_q).view(-1, h, e).transpose(0, 1)
        query = torch.bmm(q, w_k.view(h, e, d)).transpose(0, 1)  # W_k^T q, [B, h, d]
        logits = torch.bmm(self.scale * query, x.transpose(1, 2))
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None].to(x.device), -math.inf)
        weights = F.dropout(logits.softmax(-1), self.dropout, self.training)
        mean = torch.bmm(weights, x).transpose(0, 1)  # sum_j p_j y_j, [h, B, d]
        value = (
            torch.bmm(mean, w_v.view(h, e, d).transpose(1, 2)).transpose(0, 1).reshape(-1, h * e)
        )
        return linear(self, "out_proj", value if b_v is None else value + b_v)

    def count_macs(self, rows: int | None = None, changed: bool = False) -> int:
        """Return the multiply-accumulates of one step of a stream over ``rows`` rows, or n.

        ``changed``: of ``attend_changed``.
        """
        n, heads = rows or self.window, self.num_heads if changed else 1
        width = self.embed_dim if changed else self.inner_dim
        return 4 * self.embed_dim * self.inner_dim + 2 * n * heads * width


# Retroactive attention: outputs for all rows of the window, updated by the newest row.


@dataclass
class RetroactiveState(AttentionState):
    """Projected rows of the window; every row is a query."""

    queries: Tensor  # like keys

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sums: RunningSums | None = None  # made on first use from the rows, never copied


class RetroactiveAttention(ContinualAttention):
    """Attention whose output is all rows of the window, updated by the newest.

    A step projects one row and recomputes attention: 3 d^2 + 2 n^2 d + n d^2 multiply-accumulates.
    In inference on a CPU in float32, of streams that began together, running sums take 6 n d in
    place of the 2 n^2 d once compiled (``fast.compile_blocks``); see ``retroactive_kernels``.

    Rows come in the order of their slots: the row of step t is at t mod n.
    """

    contiguous_from = 1  # as scaled_dot_product_attention reads rows fastest

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
        return linear(self, "out_proj", self.attend_filled(x, state, fill))

    def attend_filled(self, x: Tensor, state: RetroactiveState, fill: RingFill) -> Tensor:
        """Return what ``step_filled`` projects, [B, n, h e]."""
        rings = (state.queries, state.keys, state.values)
        projected = self.project(x)
        if (sums := self._running_sums(projected, state, fill)) is not None:
            return sums.step(projected, int(state.steps[0]) - 1)
        new = projected.unbind(1)
        q, k, v = (
            torch.unflatten(self._store(r, row, fill).transpose(1, 2), 0, (-1, self.num_heads))
            for r, row in zip(rings, new, strict=True)
        )
        seen = None if fill.mask is None else fill.mask[:, None, None].to(q.device)
        out = F.scaled_dot_product_attention(q, k, v, seen, scale=1.0)  # keys are scaled
        return out.transpose(1, 2).flatten(2)

    def _running_sums(
        self, new: Tensor, state: RetroactiveState, fill: RingFill
    ) -> RunningSums | None:
        """Return the running sums of the streams of ``state``, or None where they do not apply."""
        if fill.mask is not None or isinstance(fill.slot, Tensor) or torch.is_grad_enabled():
            return None
        if not fast.enabled() or not fast.compiles(new) or not fast.compiles(state.keys):
            return None
        if len(new) != len(state.keys) or state.keys.is_inference():  # which count no changes
            return None
        # Each is about 0.1 ms.
        state.single_steps += 1 + (self.num_heads * self.window**2 * len(new) >> 16)
        if not fast.kernels_after(state.single_steps):
            return None
        if state.sums is None:
            from costream.nn.retroactive_kernels import RunningSums

            state.sums = RunningSums(state.queries, state.keys, state.values)
        return state.sums

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
        past = torch.stack(self._rings(state), 1)
        return torch.cat([ring.slots_first(past), self.project(x)], 1)

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

    def count_macs(self, rows: int | None = None, sums: bool = False) -> int:
        """Return the multiply-accumulates of one step of a stream over ``rows`` rows, or n.

        ``sums``: with running sums, where no row is computed again.
        """
        n, d, inner = rows or self.window, self.embed_dim, self.inner_dim
        products = 6 * n * inner if sums else 2 * n**2 * inner
        return 3 * d * inner + products + n * d * inner
