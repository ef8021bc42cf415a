"""Simple feature pyramid: several scales from the output of a plain vision transformer."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.eventful.counts import Operations
from costream.nn.maps import ChannelNorm, MapLayout, convolve, layout_of, places_affected

_TOKENS_PER_SQUARE = 4  # selected tokens per square, assumed in estimates


class SimplePyramid(nn.Module):
    """Feature maps at strides 4, 8, 16, 32 and 64 from tokens at stride 16.

    Li et al., "Exploring plain vision transformer backbones for object detection" (ECCV 2022).

    Args:
        dim: D of the tokens, a multiple of 4. ``channels``: of the feature maps.
        first: number of the largest maps that are left out, at most 2.
    """

    def __init__(self, dim: int, channels: int, first: int = 0) -> None:
        super().__init__()
        self.channels, self.first = channels, first
        self.strides = (4, 8, 16, 32, 64)[first:]
        ways: list[tuple[list[nn.Module], int]] = [
            (
                [
                    nn.ConvTranspose2d(dim, dim // 2, 2, 2),
                    ChannelNorm(dim // 2),
                    nn.GELU(),
                    nn.ConvTranspose2d(dim // 2, dim // 4, 2, 2),
                ],
                dim // 4,
            ),
            ([nn.ConvTranspose2d(dim, dim // 2, 2, 2)], dim // 2),
            ([], dim),
            ([nn.MaxPool2d(2)], dim),
        ]
        self.stages = nn.ModuleList(
            nn.Sequential(
                *scaling,
                nn.Conv2d(width, channels, 1, bias=False),
                ChannelNorm(channels),
                nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                ChannelNorm(channels),
            )
            for scaling, width in ways[first:]
        )

    def forward(self, tokens: Tensor, operations: Operations | None = None) -> list[Tensor]:
        """Return the feature maps [B, C, H, W], the largest first, for tokens [B, h, w, D].

        ``operations``: counts the operations.
        """
        maps = []
        for stage in self.stages:
            x = tokens.permute(0, 3, 1, 2)
            for layer in cast(nn.Sequential, stage):
                before, x = x, layer(x)
                if operations is not None and isinstance(layer, nn.ConvTranspose2d):
                    operations.linear += before[:, 0].numel() * layer.weight.numel()
                    operations.bias += x.numel()
                elif operations is not None and isinstance(layer, nn.Conv2d):
                    operations.count_linear(x[:, 0].numel(), layer)
            maps.append(x)
        return [*maps, maps[-1][:, :, ::2, ::2]]

    def layout(self, height: int, width: int) -> MapLayout:
        """Return the layout of the feature maps of frames of this size, in tokens."""
        h, w = height // 2, width // 2
        sizes = [(4 * height, 4 * width), (2 * height, 2 * width), (height, width), (h, w)]
        return layout_of((*sizes[self.first :], (-(-h // 2), -(-w // 2))))

    def renew(
        self,
        tokens: Tensor,
        chosen: Tensor,
        narrow: Tensor,
        rows: Tensor,
        operations: Operations,
    ) -> Tensor:
        """Update the feature maps of one frame in place, where they depend on the chosen tokens.

        ``tokens`` [h, w, D]; ``chosen`` int64 [M]: those that are new. ``rows`` [places + 1, C]:
        the feature maps; ``narrow``, like ``rows``: input of their last convolutions. Returns
        which places were computed, bool [places + 1].
        """
        layout = self.layout(*tokens.shape[:2])
        computed = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        for level, stage in enumerate(self.stages):
            *scaling, convolution, norm = cast(nn.Sequential, stage)
            x, places = _take(tokens, chosen, level + self.first)
            for layer in scaling:
                x = _of_rows(layer, x, operations)
            places = places + layout.starts[level]
            narrow.index_copy_(0, places, x)
            new = torch.zeros_like(computed)
            new[places] = True
            levels = range(level, level + 1)
            new = places_affected(new, layout, levels)
            places, x = convolve(
                narrow, layout, levels, new, cast(nn.Conv2d, convolution), operations
            )
            rows.index_copy_(0, places, cast(ChannelNorm, norm).of_rows(x))
            computed |= new
        last, places = len(self.stages), torch.arange(len(rows), device=rows.device)
        start = layout.starts[last]
        below = layout.part(places[None, :, None], last - 1)[0, 0, ::2, ::2].flatten()
        rows[start:-1], computed[start:-1] = rows[below], computed[below]
        return computed

    def count_macs(self, height: int, width: int, updated: int | None = None) -> int:
        """Return the cost of the feature maps of one frame; ``updated``: number of new tokens.

        With ``updated`` it is an estimate, see ``touched``.
        """
        layout, operations = self.layout(height, width), Operations()
        for level, stage in enumerate(self.stages):
            *scaling, convolution, _ = cast(nn.Sequential, stage)
            doublings = max(0, 2 - level - self.first)
            rows = math.ceil(self.estimate_places(layout, level, updated, 0) / 4**doublings)
            for layer in scaling:
                rows = _count(layer, rows, operations)
            rows = self.estimate_places(layout, level, updated, 1)
            operations.count_linear(rows, cast(nn.Conv2d, convolution))
        return operations.total

    def estimate_places(
        self, layout: MapLayout, level: int, updated: int | None, margin: int
    ) -> int:
        """Return an estimate of the places of a feature map that depend on ``updated`` tokens.

        None: all. Tokens are assumed to be in squares of four. ``margin``: 3x3 convolutions
        between.
        """
        if updated is None:
            return layout.counts[level]
        side = 2.0 ** (2 - level - self.first) * math.sqrt(_TOKENS_PER_SQUARE) + 2 * margin
        return min(layout.counts[level], math.ceil(updated / _TOKENS_PER_SQUARE * side**2))


def _of_rows(layer: nn.Module, x: Tensor, operations: Operations) -> Tensor:
    """Return a layer's output for rows [n, C]; four rows for each if it doubles the map's size."""
    _count(layer, len(x), operations)
    if isinstance(layer, nn.ConvTranspose2d):
        out = x @ layer.weight.permute(0, 2, 3, 1).flatten(1)
        return torch.unflatten(out, 1, (4, -1)).add_(cast(Tensor, layer.bias)).flatten(0, 1)
    if isinstance(layer, nn.Conv2d):
        return F.linear(x, layer.weight.flatten(1))
    if isinstance(layer, ChannelNorm):
        return layer.of_rows(x)
    return F.gelu(x) if isinstance(layer, nn.GELU) else x


def _count(layer: nn.Module, rows: int, operations: Operations) -> int:
    """Count a layer's operations for ``rows`` rows; return the number of output rows."""
    if isinstance(layer, nn.ConvTranspose2d):
        operations.linear += rows * layer.weight.numel()
        operations.bias += 4 * rows * layer.out_channels
        return 4 * rows
    if isinstance(layer, nn.Conv2d):
        operations.count_linear(rows, layer)
    return rows


def _take(tokens: Tensor, chosen: Tensor, level: int) -> tuple[Tensor, Tensor]:
    """Return the input rows [n, D] of a feature map and their places in it.

    In a feature map larger than the grid of tokens each row has several places.
    """
    height, width = tokens.shape[:2]
    if level < 3:
        children = _children(height, width, 2 - level).to(tokens.device)
        return tokens.flatten(0, 1).index_select(0, chosen), children[chosen].flatten()
    h, w = height // 2, width // 2
    new = torch.zeros(height * width, dtype=torch.bool, device=tokens.device)
    new[chosen] = True
    squares = new.view(height, width)[: 2 * h, : 2 * w].reshape(h, 2, w, 2)
    places = squares.any(3).any(1).flatten().nonzero().flatten()
    corners = places // w * 2 * width + places % w * 2
    square = torch.tensor((0, 1, width, width + 1), device=tokens.device)
    return tokens.flatten(0, 1)[corners[:, None] + square].amax(1), places


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _children(height: int, width: int, doublings: int) -> Tensor:
    """Return the places [tokens, 4**doublings] of each token in a larger feature map."""
    tokens, two = torch.arange(height * width), torch.arange(2)
    y, x = tokens[:, None] // width, tokens[:, None] % width
    for _ in range(doublings):
        y = (2 * y[..., None, None] + two[:, None]).expand(*y.shape, 2, 2).flatten(1)
        x = (2 * x[..., None, None] + two).expand(*x.shape, 2, 2).flatten(1)
    return y * (width << doublings) + x
