"""Attention within square windows of a frame."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn.gate import Chosen
from costream.nn.operations import Operations
from costream.nn.relative import RelativePosition
from costream.nn.state import State, zeros

_SCORES = 1 << 21  # at once, which then stay in the cache


@dataclass(frozen=True)
class Windows:
    """A frame of tokens cut into windows of ``size`` (height, width), row by row.

    The last ones are filled up beyond the frame with rows of zeros that were projected, which is
    the bias. As in ViTDet these are keys like any others.
    """

    height: int
    width: int
    heads: int
    size: tuple[int, int]
    products: torch.dtype = torch.float32  # of the operands of queries times keys and so on

    @property
    def counts(self) -> tuple[int, int]:
        """Windows along the height and the width."""
        return -(-self.height // self.size[0]), -(-self.width // self.size[1])

    @property
    def padded(self) -> int:
        """Rows of all windows together."""
        down, across = self.counts
        return down * across * self.size[0] * self.size[1]

    @property
    def at_once(self) -> int:
        """How many windows to compute at once."""
        rows = self.size[0] * self.size[1]
        return max(1, _SCORES // (self.heads * rows**2))

    def tokens(self) -> Tensor:
        """Give the token of each row of each window, int64 [windows, rows]; -1 beyond the frame."""
        return _tokens(self.height, self.width, self.size)

    def of_tokens(self) -> Tensor:
        """Give the number of the window of each token, int64 [tokens]."""
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
class WindowState(State):
    """Attention of the last frame."""

    attended: Tensor  # [B, N, D]


class WindowAttention:
    """Attention within windows, computed anew where a token of the window has changed.

    ``skip``: whether windows without a changed token keep what they were, which is the same.
    """

    def __init__(self, skip: bool = True) -> None:
        self.skip = skip

    def init_state(self, batch_size: int, windows: Windows, like: Tensor) -> WindowState:
        """Give the state of streams that have seen nothing. ``like``: a row [..., D]."""
        tokens = windows.height * windows.width
        return WindowState(zeros(batch_size, tokens, like.shape[-1], like=like))

    def step(
        self,
        qkv: Tensor,
        new: Tensor,
        chosen: Chosen,
        state: WindowState,
        windows: Windows,
        position: RelativePosition,
        bias: Tensor,
        operations: Operations,
    ) -> Tensor:
        """Write new rows [M, 3 D] into ``qkv`` [B, N, 3 D], give every token attended, [B, N, D].

        ``bias`` [3 D]: what fills windows up. The result is the state's own memory.
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
    qkv: Tensor, windows: Windows, position: RelativePosition, bias: Tensor
) -> Tensor:
    """Give every token [B, N, D] attended within its window. It has a gradient."""
    places = windows.tokens().to(qkv.device)
    inside = places >= 0
    rows = torch.cat([_fill(stream, places, bias) for stream in qkv.unbind(0)])
    out = torch.unflatten(attend_windows(rows, windows, position), 0, (len(qkv), -1))
    order = places[inside].argsort()
    return out[:, inside][:, order]


def attend_windows(rows: Tensor, windows: Windows, position: RelativePosition) -> Tensor:
    """Give [W, n, D] for the projected rows [W, n, 3 D] of some windows."""
    qkv = torch.unflatten(rows, 2, (3, windows.heads, -1))
    y, x = position(torch.unflatten(qkv[:, :, 0], 1, windows.size))
    bias = (y[..., None] + x[..., None, :]).flatten(3).to(windows.products)
    q, k, v = qkv.to(windows.products).permute(2, 0, 3, 1, 4)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return out.transpose(1, 2).flatten(2).to(rows.dtype)


def count_windows(windows: Windows, width: int, count: int, operations: Operations) -> None:
    """Count attention within so many windows, D = ``width``."""
    h, w = windows.size
    rows = count * h * w
    operations.product += 2 * rows * h * w * width
    operations.position += rows * width * (h + w)
    operations.add += 2 * windows.heads * rows * h * w
    if windows.padded != windows.height * windows.width and count:
        operations.bias += 3 * width


def _fill(rows: Tensor, places: Tensor, bias: Tensor) -> Tensor:
    """Give the rows [W, n, 3 D] of windows from those of tokens [N, 3 D] and ``bias`` beyond."""
    flat = places.flatten()
    filled = rows.index_select(0, flat.clamp(min=0))
    beyond = (flat < 0).nonzero().flatten()
    if len(beyond):
        filled[beyond] = bias.to(filled.dtype)
    return filled.view(*places.shape, rows.shape[1])
