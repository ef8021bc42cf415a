"""Attention within square windows of a frame."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn.gate import Chosen
from costream.nn.operations import Operations
from costream.nn.relative import RelativePosition
from costream.nn.state import State, zeros

_AT_ONCE = 4  # windows: their scores then stay in the cache


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

    def of_tokens(self, tokens: Tensor) -> Tensor:
        """Give the number of the window of each token."""
        down = tokens // self.width // self.size[0]
        return down * self.counts[1] + tokens % self.width // self.size[1]

    def tokens(self) -> Tensor:
        """Give the token of each row of each window, int64 [windows, rows]; -1 beyond the frame."""
        down, across = self.counts
        (h, w), frame = self.size, torch.arange(self.height * self.width)
        grid = frame.view(self.height, self.width)
        right, below = across * w - self.width, down * h - self.height
        grid = F.pad(grid, (0, right, 0, below), value=-1)
        return grid.view(down, h, across, w).transpose(1, 2).reshape(down * across, h * w)


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
        places = windows.tokens().to(qkv.device if not qkv.is_meta else "cpu")
        for stream, rows in enumerate(qkv.unbind(0)):
            touched = places
            if self.skip:
                touched = places[torch.unique(windows.of_tokens(chosen.tokens[stream]))]
            for part in torch.split(touched, _AT_ONCE):
                inside = part >= 0
                out = attend_windows(_fill(rows, part, inside, bias), windows, position)
                state.attended[stream][part[inside]] = out[inside]
            count_windows(windows, rows.shape[1] // 3, len(touched), operations)
        return state.attended


def attend_frame_windows(
    qkv: Tensor, windows: Windows, position: RelativePosition, bias: Tensor
) -> Tensor:
    """Give every token [B, N, D] attended within its window. It has a gradient."""
    places = windows.tokens().to(qkv.device)
    inside = places >= 0
    rows = torch.cat([_fill(stream, places, inside, bias) for stream in qkv.unbind(0)])
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


def _fill(rows: Tensor, places: Tensor, inside: Tensor, bias: Tensor) -> Tensor:
    """Give the rows [W, n, 3 D] of windows from those of tokens [N, 3 D] and ``bias`` beyond."""
    filled = rows.index_select(0, places.flatten().clamp(min=0)).view(*places.shape, rows.shape[1])
    if not inside.all():
        filled[~inside] = bias.to(filled.dtype)
    return filled
