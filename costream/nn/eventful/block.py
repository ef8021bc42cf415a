"""Transformer block over the tokens of a frame that recomputes only changed tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.eventful.attention import (
    DenseAttention,
    RowAttention,
    TokenGrid,
    TokenWindows,
    WindowAttention,
    attend_frame,
    attend_frame_windows,
    count_dense_attention,
    count_windows,
)
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.exact_update import ExactUpdate, PaperUpdate
from costream.nn.eventful.gates import ChosenTokens, pass_tokens
from costream.nn.eventful.policies import Policy
from costream.nn.eventful.positions import RelativePosition
from costream.nn.state import State, zeros

UPDATES = {
    "exact": ExactUpdate,
    "rows": RowAttention,
    "dense": DenseAttention,
    "paper": PaperUpdate,
}

_DENSE = DenseAttention()


@dataclass(frozen=True)
class EventfulVariant:
    """Configuration of the attention updates between frames.

    Args:
        update: among all tokens of a frame: a name of ``UPDATES``.
        skip_windows: windows without a changed token are not recomputed.
        remember_all: gates compare with the last frame, not with the tokens that last passed.
        pool: keys and values among all tokens are means over ``pool`` x ``pool`` tokens.
        gate_maps: there is a last gate between a backbone and the feature maps made of its tokens.
    """

    update: str = "exact"
    skip_windows: bool = True
    remember_all: bool = False
    pool: int = 1
    gate_maps: bool = False


# Those of Dutson et al. compute only what their operation counts include.
VARIANTS = {
    "exact": EventfulVariant(gate_maps=True),
    "rows": EventfulVariant("rows", gate_maps=True),
    "eventful": EventfulVariant("paper", skip_windows=False),
    "token-wise": EventfulVariant("dense", skip_windows=False),
    "stgt": EventfulVariant("dense", skip_windows=False, remember_all=True),
    "spatial": EventfulVariant("dense", skip_windows=False, pool=2),
    "spatiotemporal": EventfulVariant("paper", skip_windows=False, pool=2),
}


@dataclass
class GatedState(State):
    """Memory of a gate and of the buffer after it."""

    reference: Tensor  # tokens when they last passed, [B, N, C]
    buffer: Tensor  # results computed from them, [B, N, O]


@dataclass
class EventfulBlockState(State):
    """State of a block."""

    qkv: GatedState
    projection: GatedState
    mlp: GatedState
    attention: State


class EventfulBlock(nn.Module):
    """A pre-norm block y = x + W attention(LN x), z = y + MLP(LN y), with gates before each part.

    Dutson, Li, Gupta, "Eventful Transformers" (ICCV 2023), on the block of ViTDet. The projection
    to queries, keys and values, the one after attention, and the feed-forward each take only
    tokens that their gate passes. Layer norms and skips take all.

    Args:
        dim: D. ``heads``: H. ``mlp_ratio``: width of the feed-forward over D.
        size: height and width, in tokens, of the learned relative positions; None: there are
            none.
        window: height and width of windows, which have positions; None: attention among all
            tokens.
        rule: interpolation of positions to other sizes, see ``RelativePosition``.
        variant: how attention is kept up to date; no weight depends on it.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        size: tuple[int, int] | None,
        window: tuple[int, int] | None = None,
        mlp_ratio: int = 4,
        rule: str = "bicubic",
        variant: EventfulVariant = VARIANTS["exact"],
    ) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim {dim} is not a multiple of heads {heads}")
        self.dim, self.heads, self.window, self.variant = dim, heads, window, variant
        self.input_layer_norm = nn.LayerNorm(dim, eps=1e-6)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.pool = 1 if window else variant.pool
        learned = window or size
        self.relative_position = (
            RelativePosition(learned, dim // heads, rule, self.pool) if learned else None
        )
        self.projection = nn.Linear(dim, dim)
        self.mlp_layer_norm = nn.LayerNorm(dim, eps=1e-6)
        self.mlp_1 = nn.Linear(dim, mlp_ratio * dim)
        self.mlp_2 = nn.Linear(mlp_ratio * dim, dim)
        self.activate: Callable[[Tensor], Tensor] = F.gelu
        # Any, because the kinds take different arguments
        self._attention: Any = (
            WindowAttention(variant.skip_windows) if window else UPDATES[variant.update]()
        )

    @property
    def attention(self) -> Any:
        """Attention between frames. On a GPU, recomputing all is faster than exact updates."""
        exact = isinstance(self._attention, ExactUpdate)
        return _DENSE if exact and self.qkv.weight.is_cuda else self._attention

    def forward(self, x: Tensor, operations: Operations | None = None) -> Tensor:
        """Return the tokens [B, h, w, D] of frames, computed in full.

        ``operations``: the counts are added to it.
        """
        if operations is not None:
            self.count_full(x, operations)
        shape, position = x.shape, self.relative_position
        qkv = _linear(self.qkv, self.input_layer_norm(x)).flatten(1, 2)
        frame = self._frame(*shape[1:3])
        if isinstance(frame, TokenWindows):
            attended = attend_frame_windows(qkv, frame, position, self.qkv.bias)
        else:
            attended = attend_frame(qkv, frame, position)
        y = x + _linear(self.projection, attended).view(shape)
        return y + self._feedforward(self.mlp_layer_norm(y))

    def init_state(self, batch_size: int, height: int, width: int) -> EventfulBlockState:
        """Return the initial state of ``batch_size`` streams of frames of this size."""
        like = self.input_layer_norm.weight
        tokens = (batch_size, height * width)

        def gated(out: int) -> GatedState:
            return GatedState(zeros(*tokens, self.dim, like=like), zeros(*tokens, out, like=like))

        frame = self._frame(height, width)
        attention = self.attention.init_state(batch_size, frame, like)
        return EventfulBlockState(gated(3 * self.dim), gated(self.dim), gated(self.dim), attention)

    def forward_step(
        self,
        x: Tensor,
        state: EventfulBlockState,
        fresh: Sequence[bool],
        policy: Policy,
        operations: Operations,
    ) -> Tensor:
        """Take the tokens [B, h, w, D] of a frame of every stream, return them after the block.

        ``fresh``: for each stream, whether it starts, with all its tokens, or the tokens of a
        ``StartPolicy``: the others are keys like the padding of windows, and stay as they come.
        ``operations``: the counts are added to it.
        """
        shape, rows = x.shape, x.flatten(1, 2)

        def choose(tokens: Tensor, gated: GatedState) -> ChosenTokens:
            remember = self.variant.remember_all
            return pass_tokens(tokens, gated.reference, fresh, policy, operations, remember)

        normed = self.input_layer_norm(rows)
        chosen = choose(normed, state.qkv)
        begin_buffer(state.qkv.buffer, chosen, self.qkv.bias)
        new = self._project(self.qkv, chosen.take(normed), operations)
        attended = self._attend(new, chosen, state, shape, operations)

        chosen = choose(attended, state.projection)
        new = self._project(self.projection, chosen.take(attended), operations)
        begin_buffer(state.projection.buffer, chosen)
        chosen.put(new, state.projection.buffer)
        rows = rows + state.projection.buffer

        normed = self.mlp_layer_norm(rows)
        chosen = choose(normed, state.mlp)
        operations.count_linear(sum(chosen.counts), self.mlp_1)
        operations.count_linear(sum(chosen.counts), self.mlp_2)
        begin_buffer(state.mlp.buffer, chosen)
        chosen.put(self._feedforward(chosen.take(normed)), state.mlp.buffer)
        operations.add += 2 * rows.numel()
        return rows.add_(state.mlp.buffer).view(shape)

    def count_macs(
        self, height: int, width: int, updated: int | None = None, columns: int | None = None
    ) -> int:
        """Return the operations of a step of one stream when every gate passes ``updated`` tokens.

        None: the stream starts. ``columns``: the number of keys they are part of, where keys are
        pooled. These are closed forms of the counts of ``forward_step``; "exact" takes more when
        rows are recomputed, and less when windows are skipped.
        """
        n, d = height * width, self.dim
        m = n if updated is None else min(updated, n)
        hidden = self.mlp_1.out_features
        total = m * (4 * d * d + 2 * d * hidden) + m * (5 * d + hidden) + 2 * n * d
        total += 0 if updated is None else 3 * n * d
        frame = self._frame(height, width)
        if isinstance(frame, TokenWindows):
            (h, w), padded = frame.size, frame.padded
            extra = 3 * d if padded != n else 0
            scores = (h + w) * d + 2 * h * w * self.heads if frame.relative else 0
            return total + padded * (2 * h * w * d + scores) + extra
        keys, along, added = frame.keys, sum(frame.positions) * d, frame.added * self.heads
        mk = m // self.pool**2 if columns is None else columns
        full = n * keys * (2 * d + added) + n * along
        if updated is None or self.variant.update == "dense":
            return total + full
        if self.variant.update == "rows":
            rows: int = self.attention.rows(n, m)
            return total + full // n * rows
        if self.variant.update == "paper":
            products = m * keys * d + 3 * n * mk * d
            adds = (self.heads + added) * n * keys + keys * d + mk * d + 2 * n * d
            return total + products + adds + n * along
        if ExactUpdate.renews(frame, m, mk, d):
            return total + full
        corrected = (n - m) * (4 * mk * d + 3 * added // 2 * mk + 2 * d)
        return total + corrected + m * keys * (2 * d + added) + m * along

    def _frame(self, height: int, width: int) -> TokenGrid | TokenWindows:
        products = self.qkv.weight.dtype
        if self.window:
            return TokenWindows(height, width, self.heads, self.window, products)
        relative = self.relative_position is not None
        return TokenGrid(height, width, self.heads, self.pool, products, relative)

    def count_full(self, x: Tensor, operations: Operations) -> None:
        """Add the operations of the tokens [B, h, w, D] of frames that are computed in full."""
        rows, frame = x.numel() // self.dim, self._frame(*x.shape[1:3])
        for layer in (self.qkv, self.projection, self.mlp_1, self.mlp_2):
            operations.count_linear(rows, layer)
        if isinstance(frame, TokenWindows):
            for _ in x:
                count_windows(frame, self.dim, frame.counts[0] * frame.counts[1], operations)
        else:
            count_dense_attention(frame, self.dim, len(x), operations)
        operations.add += 2 * x.numel()

    def _attend(
        self,
        new: Tensor,
        chosen: ChosenTokens,
        state: EventfulBlockState,
        shape: Sequence[int],
        operations: Operations,
    ) -> Tensor:
        frame, position = self._frame(*shape[1:3]), self.relative_position
        extra = (self.qkv.bias,) if isinstance(frame, TokenWindows) else ()
        out: Tensor = self.attention.step(
            state.qkv.buffer, new, chosen, state.attention, frame, position, *extra, operations
        )
        return out

    def _project(self, layer: nn.Linear, rows: Tensor, operations: Operations) -> Tensor:
        operations.count_linear(rows[..., 0].numel(), layer)
        return _linear(layer, rows)

    def _feedforward(self, rows: Tensor) -> Tensor:
        return _linear(self.mlp_2, self.activate(_linear(self.mlp_1, rows)))


def _linear(layer: nn.Linear, rows: Tensor) -> Tensor:
    """Return ``layer`` of rows, multiplied in the dtype of its weights; rows keep theirs."""
    return F.linear(rows.to(layer.weight.dtype), layer.weight, layer.bias).to(rows.dtype)


def begin_buffer(buffer: Tensor, chosen: ChosenTokens, value: Tensor | None = None) -> None:
    """Set the rows of streams that start without some of their tokens; None: to zeros."""
    for stream, tokens in enumerate(chosen.tokens):
        if chosen.fresh[stream] and len(tokens) < buffer.shape[1]:
            buffer[stream] = 0 if value is None else value.to(buffer.dtype)


def use_bfloat16_products(network: nn.Module) -> None:
    """Make the linear layers and attention of eventful blocks multiply in bfloat16.

    The state between frames, and all sums, stay in single precision.
    """
    for block in network.modules():
        if isinstance(block, EventfulBlock):
            for layer in (block.qkv, block.projection, block.mlp_1, block.mlp_2):
                layer.to(torch.bfloat16)
