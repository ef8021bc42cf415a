"""Body of a temporal difference network, computed where its input has changed.

Places of the maps that are computed are rows of a matrix, so that a convolution of 3 x 3 places is
one product; their neighbours are read from kept maps. Changes are measured against what was last
computed, so that slow ones add up until they are noticed. ``nn.eventful.convolutional`` does this
for any network of convolutions; on maps as small as these its steps take longer than the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

# Root mean square of the change of 2 x 2 places of the input, over its channels, above which a
# place of the body and those around it are computed. Of 0.07 to 0.2 it is the one with which
# labels of validation video are nearest to those of frames computed in full.
CHANGE = 0.15
_CELL = 2  # places of the input for one of the body


@dataclass
class KeptBody:
    """What was last computed of a stream."""

    complete: bool  # whether anything was
    input: Tensor  # [H, W, C]
    padded: Tensor  # [(H + 2) (W + 2), C], the newest input with zeros around it
    maps: list[Tensor]  # [(h + 2) (w + 2), D] each, the input of each later convolution
    out: Tensor  # [h w, 1 + P], focus logits and places before their activation


class ChangedBody:
    """Computes the places of a body of 3 x 3 convolutions that have changed.

    ``first``, ``blocks``, ``focus``, ``places``: convolutions with their weight and bias; the first
    has stride 2, and each pair of ``blocks`` a shortcut. ``size``: height and width of the input.
    """

    def __init__(
        self,
        first: partial[Tensor],
        blocks: Sequence[tuple[partial[Tensor], partial[Tensor]]],
        focus: partial[Tensor],
        places: partial[Tensor],
        size: tuple[int, int],
    ) -> None:
        self._first, self._last = _product(first), _product(focus, places)
        self._blocks = [(_product(one), _product(two)) for one, two in blocks]
        self._size = size
        self.size = (-(-size[0] // _CELL), -(-size[1] // _CELL))
        self._read_first = _read(self.size, _CELL, size[1] + 2)
        self._read = _read(self.size, 1, self.size[1] + 2)
        self._middle = self._read[:, 4].contiguous()

    def init_state(self) -> KeptBody:
        """Return what is kept of a stream that has not begun."""
        (height, width), (high, wide) = self._size, self.size
        like = self._first[0]
        channels, depth = len(like) // 9, like.shape[1]
        maps = [
            like.new_zeros((high + 2) * (wide + 2), depth) for _ in range(2 * len(self._blocks))
        ]
        out = like.new_zeros(high * wide, self._last[0].shape[1])
        padded = like.new_zeros((height + 2) * (width + 2), channels)
        return KeptBody(False, like.new_zeros(height, width, channels), padded, maps, out)

    def step(
        self, joined: Tensor, kept: KeptBody, change: float = CHANGE
    ) -> tuple[Tensor, Tensor, int]:
        """Return focus logits [1, 1, h, w], places [1, P, h, w], and how many were computed.

        ``joined`` [1, C, H, W]: the next input of a stream. ``change``: see ``CHANGE``.
        """
        rows = joined[0].permute(1, 2, 0)
        at = self._changed(rows, kept, change)
        if len(at):
            self._compute(rows, kept, at)
        height, width = self.size
        out = kept.out.view(1, height, width, -1).permute(0, 3, 1, 2)
        return out[:, :1], out[:, 1:].relu(), len(at)

    def _changed(self, rows: Tensor, kept: KeptBody, change: float) -> Tensor:
        """Return the numbers [M] of the places to compute; keep the input that they read."""
        if not kept.complete:
            kept.complete = True
            kept.input.copy_(rows)
            return torch.arange(len(kept.out), device=rows.device)
        moved = (rows - kept.input).square_().mean(2)[None]
        cells = F.avg_pool2d(moved, _CELL, ceil_mode=True) > change**2
        near = F.max_pool2d(cells.to(rows.dtype), 3, 1, 1)
        at = near.view(-1).nonzero()[:, 0]
        read = F.interpolate(near[None], scale_factor=_CELL)[0, 0] > 0
        read = read[: self._size[0], : self._size[1]]
        kept.input[read] = rows[read]
        return at

    def _compute(self, rows: Tensor, kept: KeptBody, at: Tensor) -> None:
        """Compute the places ``at`` [M] of all maps."""
        height, width = self._size
        kept.padded.view(height + 2, width + 2, -1)[1:-1, 1:-1] = rows
        x = _convolved(kept.padded, self._read_first[at], self._first).relu_()
        read, middle, maps = self._read[at], self._middle[at], iter(kept.maps)
        for one, two in self._blocks:
            outer, inner = next(maps), next(maps)
            outer.index_copy_(0, middle, x)
            inner.index_copy_(0, middle, _convolved(outer, read, one).relu_())
            x = _convolved(inner, read, two).add_(x).relu_()
        kept.out.index_copy_(0, at, torch.addmm(self._last[1], x, self._last[0]))


def _convolved(padded: Tensor, read: Tensor, layer: tuple[Tensor, Tensor]) -> Tensor:
    """Return a convolution's outputs [M, D] from the places that they read, int64 [M, 9]."""
    patches = padded.index_select(0, read.view(-1)).view(len(read), -1)
    return torch.addmm(layer[1], patches, layer[0])


def _product(*layers: partial[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the matrix [K K C, D] of convolutions, side by side, and their bias [D]."""
    weights = [layer.keywords["weight"] for layer in layers]
    matrix = torch.cat([w.permute(2, 3, 1, 0).flatten(0, 2) for w in weights], 1)
    biases = [
        w.new_zeros(len(w)) if layer.keywords["bias"] is None else layer.keywords["bias"].detach()
        for layer, w in zip(layers, weights, strict=True)
    ]
    return matrix.contiguous(), torch.cat(biases)


def _read(size: tuple[int, int], stride: int, wide: int) -> Tensor:
    """Return which places of a map with a border each of ``size`` reads, int64 [h w, 9].

    ``wide``: columns of that map.
    """
    rows = torch.arange(size[0])[:, None, None, None] * stride + torch.arange(3)[:, None]
    columns = torch.arange(size[1])[:, None, None] * stride + torch.arange(3)
    return (rows * wide + columns).view(size[0] * size[1], 9)
