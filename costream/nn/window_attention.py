"""Attention within square windows of a frame."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn.eventful.gates import ChosenTokens
from costream.nn.operations import Operations
from costream.nn.relative import RelativePosition
from costream.nn.state import State, zeros

_SCORES = 1 << 21  # computed at once, to stay in the cache


@dataclass(frozen=True)
class TokenWindows:
    """A frame of tokens divided into windows of ``size`` (height, width), row by row.

    The last windows are padded beyond the frame with projected rows of zeros, that is, with the
    bias. As in ViTDet these are keys like any others.
    """

    height: int
    width: int
    heads: int
    size: tuple[int, int]
    products: torch.dtype = torch.float32  # of the operands of queries times keys etc.

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
        position: RelativePosition,
        bias: Tensor,
        operations: Operations,
    ) -> Tensor:
        """Write new rows [M, 3 D] into ``qkv`` [B, N, 3 D], return the attention [B, N, D].

        ``bias`` [3 D]: padding of the windows. The result is the state's own memory.
        """
        chosen.put(new, qkv)
        device = qkv.device if not qkv.is_meta else torch.device("cpu")
        places = windows.tokens().to(device)
        for stream, rows in enumerate(qkv.unbind(0)):
            touched = places
            if self.skip and chosen.places is not None:
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
    qkv: Tensor, windows: TokenWindows, position: RelativePosition, bias: Tensor
) -> Tensor:
    """Return the attention [B, N, D] of all tokens within their windows; differentiable."""
    places = windows.tokens().to(qkv.device)
    inside = places >= 0
    rows = torch.cat([_fill(stream, places, bias) for stream in qkv.unbind(0)])
    out = torch.unflatten(attend_windows(rows, windows, position), 0, (len(qkv), -1))
    order = places[inside].argsort()
    return out[:, inside][:, order]


def attend_windows(rows: Tensor, windows: TokenWindows, position: RelativePosition) -> Tensor:
    """Return the attention [W, n, D] for the projected rows [W, n, 3 D] of some windows."""
    qkv = torch.unflatten(rows, 2, (3, windows.heads, -1))
    y, x = position(torch.unflatten(qkv[:, :, 0], 1, windows.size))
    bias = (y[..., None] + x[..., None, :]).flatten(3).to(windows.products)
    q, k, v = qkv.to(windows.products).permute(2, 0, 3, 1, 4)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return out.transpose(1, 2).flatten(2).to(rows.dtype)


def count_windows(windows: TokenWindows, width: int, count: int, operations: Operations) -> None:
    """Count the operations of attention within ``count`` windows, D = ``width``."""
    h, w = windows.size
    rows = count * h * w
    operations.product += 2 * rows * h * w * width
    operations.position += rows * width * (h + w)
    operations.add += 2 * windows.heads * rows * h * w
    if windows.padded != windows.height * windows.width and count:
        operations.bias += 3 * width


def _fill(rows: Tensor, places: Tensor, bias: Tensor) -> Tensor:
    """Return the rows [W, n, 3 D] of windows: those of tokens [N, 3 D], padded with ``bias``."""
    flat = places.flatten()
    filled = rows.index_select(0, flat.clamp(min=0))
    beyond = (flat < 0).nonzero().flatten()
    if len(beyond):
        filled[beyond] = bias.to(filled.dtype)
    return filled.view(*places.shape, rows.shape[1])
