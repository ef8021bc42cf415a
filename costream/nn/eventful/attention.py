"""Dense attention among all tokens of a frame, the reference for the incremental updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn import fast
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.gates import ChosenTokens
from costream.nn.eventful.positions import RelativePosition, attend_with_positions
from costream.nn.ring import recording
from costream.nn.state import State, zeros


@dataclass(frozen=True)
class TokenGrid:
    """Token grid of a frame, for attention among all its tokens.

    With ``pool`` p a key is the mean over a square of p x p tokens, and so is its value.
    ``relative``: scores have relative positions added, along the height and along the width.
    """

    height: int
    width: int
    heads: int
    pool: int = 1
    products: torch.dtype = torch.float32  # of the operands of queries times keys etc.
    relative: bool = True

    @property
    def tokens(self) -> int:
        """Number of tokens N."""
        return self.height * self.width

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.tokens // self.pool**2

    @property
    def positions(self) -> tuple[int, int]:
        """Numbers of relative positions along the height and the width; 0 without them."""
        if not self.relative:
            return 0, 0
        return self.height // self.pool, self.width // self.pool

    @property
    def added(self) -> int:
        """Additions per score."""
        return 2 if self.relative else 0

    def columns(self, tokens: Tensor) -> Tensor:
        """Return the keys, in ascending order, that these tokens are part of."""
        if self.pool == 1:
            return tokens
        rows, columns = tokens // self.width // self.pool, tokens % self.width // self.pool
        keys: Tensor = torch.unique(rows * (self.width // self.pool) + columns)
        return keys

    def keys_values(self, qkv: Tensor, columns: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return keys and values, [..., keys, D] each, of rows ``qkv`` [..., N, 3 D].

        ``columns``: only those, of rows [N, 3 D].
        """
        kv = qkv[..., qkv.shape[-1] // 3 :]
        p, across = self.pool, self.width // self.pool
        if columns is None:
            if p > 1:
                squares = torch.unflatten(kv, -2, (self.height // p, p, across, p))
                kv = squares.mean((-4, -2)).flatten(-3, -2)
        elif p == 1:
            kv = kv.index_select(0, columns)
        else:
            corners = columns // across * p * self.width + columns % across * p
            square = torch.arange(p)[:, None] * self.width + torch.arange(p)
            kv = kv[corners[:, None] + square.flatten().to(columns.device)].mean(1)
        keys, values = kv.chunk(2, -1)
        return keys, values


@dataclass
class EmptyState(State):
    """Empty state that holds only the number of streams."""

    streams: Tensor  # int64 [B]


class DenseAttention:
    """Attention recomputed for every frame: the paper's token-wise variant, and STGT.

    The update classes have the same two methods.
    """

    def init_state(self, batch_size: int, frame: TokenGrid, like: Tensor) -> EmptyState:
        """Return an empty state."""
        return EmptyState(zeros(batch_size))

    def step(
        self,
        qkv: Tensor,
        new: Tensor,
        chosen: ChosenTokens,
        state: EmptyState,
        frame: TokenGrid,
        position: RelativePosition | None,
        operations: Operations,
    ) -> Tensor:
        """Write the ``new`` rows [M, 3 D] into ``qkv`` [B, N, 3 D], return attention [B, N, D]."""
        chosen.put(new, qkv)
        count_dense_attention(frame, qkv.shape[2] // 3, len(qkv), operations)
        return attend_frame(qkv, frame, position)


@dataclass
class RowState(State):
    """Attention of every token when it was last computed, and whose turn it is."""

    attended: Tensor  # [B, N, D]
    turn: Tensor  # the token of each stream with which the next turn begins, int64 [B]


class RowAttention:
    """Attention of the tokens that pass, over all current keys, and of others in turn.

    The rest keep theirs, so of N tokens M + N / ``every`` are computed, in 2 (M + N / every) N D
    multiply-accumulates. Tokens under masks have no turn. No other token's attention is older
    than ``every`` frames, and when the scene freezes, all follow it. ``every`` None: no turns.
    """

    def __init__(self, every: int | None = 16) -> None:
        self.every = every

    def init_state(self, batch_size: int, frame: TokenGrid, like: Tensor) -> RowState:
        """Return the initial state of ``batch_size`` streams. ``like``: a row [..., D]."""
        attended = zeros(batch_size, frame.tokens, like.shape[-1], like=like)
        return RowState(attended, zeros(batch_size))

    def rows(self, tokens: int, passed: int) -> int:
        """Return about how many of ``tokens`` rows are computed when ``passed`` tokens pass."""
        return min(tokens, passed + self._in_turn(tokens) * (tokens - passed) // tokens)

    def step(
        self,
        qkv: Tensor,
        new: Tensor,
        chosen: ChosenTokens,
        state: RowState,
        frame: TokenGrid,
        position: RelativePosition | None,
        operations: Operations,
    ) -> Tensor:
        """Write the ``new`` rows [M, 3 D] into ``qkv`` [B, N, 3 D], return attention [B, N, D].

        The result is the state's own memory.
        """
        chosen.put(new, qkv)
        recorded, added = recording(), 0
        for stream, rows in enumerate(qkv.unbind(0)):
            tokens, attended = chosen.tokens[stream], state.attended[stream]
            if len(tokens) == frame.tokens:
                count_dense_attention(frame, attended.shape[1], 1, operations)
                attended.copy_(attend_frame(rows[None], frame, position)[0])
                continue
            if chosen.fresh[stream]:
                attended.zero_()
            else:
                allowed = chosen.allowed
                if allowed is None:
                    allowed = torch.arange(frame.tokens, device=tokens.device)
                turn = torch.arange(self._in_turn(len(allowed)), device=tokens.device)
                begun = state.turn if recorded is None else recorded.times(state.turn)
                turn = allowed[(turn + begun[stream]) % max(1, len(allowed))]
                if recorded is None:
                    state.turn[stream] += len(turn)
                added, tokens = len(turn), torch.cat([tokens, turn])
                if not tokens.is_cuda:  # there, finding those that are in both takes longer
                    mask = torch.zeros(frame.tokens, dtype=torch.bool, device=tokens.device)
                    tokens = mask.index_fill_(0, tokens, True).nonzero().flatten()
            count_dense_attention(frame, attended.shape[1], 1, operations, len(tokens))
            out = attend_rows(rows, tokens, frame, position)
            attended.index_copy_(0, tokens.to(attended.device), out)
        if recorded is not None:
            recorded.count(state.turn, added)
        return state.attended

    def _in_turn(self, tokens: int) -> int:
        return -(-tokens // self.every) if self.every else 0


def attend_rows(
    qkv: Tensor, tokens: Tensor, frame: TokenGrid, position: RelativePosition | None
) -> Tensor:
    """Return the attention [M, D] of some of the tokens for rows ``qkv`` [N, 3 D]."""
    q = torch.unflatten(qkv[:, : qkv.shape[1] // 3].index_select(0, tokens), 1, (frame.heads, -1))
    along = None
    if position is not None:
        y, x = position.of_tokens(q, tokens, frame.height, frame.width)
        along = y[None], x[None]
    k, v = (torch.unflatten(part, 1, (frame.heads, -1)) for part in frame.keys_values(qkv))
    q, k, v = (part.to(frame.products).transpose(0, 1)[None] for part in (q, k, v))
    out = _attend(q, k, v, along)
    return out[0].transpose(0, 1).flatten(1).to(qkv.dtype)


def attend_frame(qkv: Tensor, frame: TokenGrid, position: RelativePosition | None) -> Tensor:
    """Return the attention [B, N, D] of all tokens for rows ``qkv`` [B, N, 3 D]; differentiable.

    ``position`` is None if the frame has no relative positions.
    """
    heads = (frame.heads, -1)
    q = torch.unflatten(qkv[..., : qkv.shape[2] // 3], 2, heads)
    k, v = (torch.unflatten(part, 2, heads) for part in frame.keys_values(qkv))
    along = None
    if position is not None:
        along = position(torch.unflatten(q, 1, (frame.height, frame.width)))
    q, k, v = (t.to(frame.products) for t in (q, k, v))
    if along is None or (q.is_cuda and not torch.is_grad_enabled()):
        out = _attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), along)
        return out.transpose(1, 2).flatten(2).to(qkv.dtype)
    each = []
    for head in range(frame.heads):  # one head at a time saves memory
        y, x = (part[:, head].to(frame.products) for part in along)
        bias = (y[..., None] + x[..., None, :]).flatten(2)
        one = q[:, :, head], k[:, :, head], v[:, :, head]
        each.append(F.scaled_dot_product_attention(*one, attn_mask=bias))
    return torch.cat(each, 2).to(qkv.dtype)


def _attend(q: Tensor, k: Tensor, v: Tensor, along: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return the attention of queries [B, H, n, e] to keys and values [B, H, m, e].

    ``along``: what is added to the scores along each axis, [B, H, n, down] and [B, H, n, across].
    """
    if along is None:
        return F.scaled_dot_product_attention(q, k, v)
    y, x = along
    if q.is_cuda and fast.enabled() and not torch.is_grad_enabled():
        return attend_with_positions(q, k, v, y, x)
    bias = (y[..., None] + x[..., None, :]).flatten(3).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def count_dense_attention(
    frame: TokenGrid, width: int, streams: int, operations: Operations, rows: int | None = None
) -> None:
    """Count the operations of attention to all keys, D = ``width``.

    ``rows``: tokens of all streams whose attention is computed; None: all.
    """
    rows = streams * frame.tokens if rows is None else rows
    operations.product += 2 * rows * frame.keys * width
    operations.position += rows * width * sum(frame.positions)
    operations.add += frame.added * frame.heads * rows * frame.keys


# Attention within square windows of a frame.


_SCORES = 1 << 21  # computed at once, to stay in the cache


@dataclass(frozen=True)
class TokenWindows:
    """A frame of tokens divided into windows of ``size`` (height, width), row by row.

    The last windows are padded beyond the frame with projected rows of zeros, that is, with the
    bias. As in ViTDet these are keys like any others. ``relative``: see ``TokenGrid``.
    """

    height: int
    width: int
    heads: int
    size: tuple[int, int]
    products: torch.dtype = torch.float32  # of the operands of queries times keys etc.
    relative: bool = True

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of windows along the height and the width."""
        return -(-self.height // self.size[0]), -(-self.width // self.size[1])

    @property
    def padded(self) -> int:
        """Number of rows of all windows together."""
        down, across = self.counts
        return down * across * self.size[0] * self.size[1]

    @property
    def at_once(self) -> int:
        """Number of windows to compute at once."""
        rows = self.size[0] * self.size[1]
        return max(1, _SCORES // (self.heads * rows**2))

    def tokens(self) -> Tensor:
        """Return the token of each row of each window, int64 [windows, rows]; -1 is padding."""
        return _tokens(self.height, self.width, self.size)

    def of_tokens(self) -> Tensor:
        """Return the index of the window of each token, int64 [tokens]."""
        return _windows(self.height, self.width, self.size)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _tokens(height: int, width: int, size: tuple[int, int]) -> Tensor:
    (h, w), frame = size, torch.arange(height * width)
    grid = F.pad(frame.view(height, width), (0, -width % w, 0, -height % h), value=-1)
    down, across = grid.shape[0] // h, grid.shape[1] // w
    return grid.view(down, h, across, w).transpose(1, 2).reshape(down * across, h * w)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _in_windows(
    height: int, width: int, size: tuple[int, int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the token of each row of each window, and the row of each token in all windows."""
    places = _tokens(height, width, size)
    inside = (places >= 0).flatten().nonzero().flatten()
    order = inside[places.flatten()[inside].argsort()]
    return places.to(device), order.to(device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _windows(height: int, width: int, size: tuple[int, int]) -> Tensor:
    tokens = torch.arange(height * width)
    down, across = tokens // width // size[0], tokens % width // size[1]
    return down * -(-width // size[1]) + across


@dataclass
class WindowAttentionState(State):
    """Attention output of the last frame."""

    attended: Tensor  # [B, N, D]


class WindowAttention:
    """Attention within windows, recomputed where a token of the window has changed.

    ``skip``: reuse the output of windows without a changed token, which is the same.
    """

    def __init__(self, skip: bool = True) -> None:
        self.skip = skip

    def init_state(
        self, batch_size: int, windows: TokenWindows, like: Tensor
    ) -> WindowAttentionState:
        """Return the initial state of ``batch_size`` streams. ``like``: a row [..., D]."""
        tokens = windows.height * windows.width
        return WindowAttentionState(zeros(batch_size, tokens, like.shape[-1], like=like))

    def step(
        self,
        qkv: Tensor,
        new: Tensor,
        chosen: ChosenTokens,
        state: WindowAttentionState,
        windows: TokenWindows,
        position: RelativePosition | None,
        bias: Tensor,
        operations: Operations,
    ) -> Tensor:
        """Write new rows [M, 3 D] into ``qkv`` [B, N, 3 D], return the attention [B, N, D].

        ``bias`` [3 D]: padding of the windows. The result is the state's own memory.
        """
        chosen.put(new, qkv)
        if qkv.is_cuda:  # there, finding the windows takes longer than computing all
            for _ in qkv:
                count_windows(windows, qkv.shape[2] // 3, math.prod(windows.counts), operations)
            return attend_frame_windows(qkv, windows, position, bias)
        device = qkv.device if not qkv.is_meta else torch.device("cpu")
        places = windows.tokens().to(device)
        for stream, rows in enumerate(qkv.unbind(0)):
            touched = places
            if self.skip and chosen.places is not None and not chosen.fresh[stream]:
                changed = torch.zeros(len(places), dtype=torch.bool, device=device)
                changed[windows.of_tokens().to(device)[chosen.tokens[stream]]] = True
                touched = places[changed]
            for part in torch.split(touched, windows.at_once):
                out = attend_windows(_fill(rows, part, bias), windows, position).flatten(0, 1)
                inside = (part >= 0).flatten().nonzero().flatten()
                own = part.flatten()[inside]
                state.attended[stream][own] = out.index_select(0, inside)
            count_windows(windows, rows.shape[1] // 3, len(touched), operations)
        return state.attended


def attend_frame_windows(
    qkv: Tensor, windows: TokenWindows, position: RelativePosition | None, bias: Tensor
) -> Tensor:
    """Return the attention [B, N, D] of all tokens within their windows; differentiable."""
    places, order = _in_windows(windows.height, windows.width, windows.size, qkv.device)
    rows = _fill(qkv, places, bias).flatten(0, 1)
    out = torch.unflatten(attend_windows(rows, windows, position), 0, (len(qkv), -1))
    return out.flatten(1, 2).index_select(1, order)


def attend_windows(
    rows: Tensor, windows: TokenWindows, position: RelativePosition | None
) -> Tensor:
    """Return the attention [W, n, D] for the projected rows [W, n, 3 D] of some windows."""
    qkv, along = torch.unflatten(rows, 2, (3, windows.heads, -1)), None
    if position is not None:
        along = position(torch.unflatten(qkv[:, :, 0], 1, windows.size))
    q, k, v = qkv.to(windows.products).permute(2, 0, 3, 1, 4)
    out = _attend(q, k, v, along)
    return out.transpose(1, 2).flatten(2).to(rows.dtype)


def count_windows(windows: TokenWindows, width: int, count: int, operations: Operations) -> None:
    """Count the operations of attention within ``count`` windows, D = ``width``."""
    h, w = windows.size
    rows = count * h * w
    operations.product += 2 * rows * h * w * width
    if windows.relative:
        operations.position += rows * width * (h + w)
        operations.add += 2 * windows.heads * rows * h * w
    if windows.padded != windows.height * windows.width and count:
        operations.bias += 3 * width


def _fill(rows: Tensor, places: Tensor, bias: Tensor) -> Tensor:
    """Return the rows [..., W, n, 3 D] of windows: tokens [..., N, 3 D], padded with ``bias``."""
    flat = places.flatten()
    filled = rows.index_select(-2, flat.clamp(min=0))
    if rows.is_cuda:
        filled = torch.where((flat < 0)[:, None], bias.to(filled.dtype), filled)
    elif len(beyond := (flat < 0).nonzero().flatten()):
        filled[..., beyond, :] = bias.to(filled.dtype)
    return torch.unflatten(filled, -2, tuple(places.shape))
