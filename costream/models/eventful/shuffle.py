"""A convolutional stem: ShuffleNet V2 with a Ghost path aggregation network."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.boxes import ChannelNorm
from costream.nn.eventful.gates import Operations

_FIRST = 24  # channels before the first stage, at stride 4
_SLOPE = 0.1  # of the leaky ReLUs, as in NanoDet
_STAGES = 3  # their maps have strides 8, 16 and 32


class ShuffleEmbedding(nn.Module):
    """One token of width ``dim`` for each square of 16 x 16 pixels, from a convolutional network.

    Backbone and neck of NanoDet-Plus (RangiLyu/nanodet): the stages of a ShuffleNet V2, whose maps
    exchange what they hold, are projected to the grid of tokens, added and normed. Everything is
    computed for every frame, since each token depends on pixels far beyond its patch. There are no
    norms between: those of trained networks are part of their weights.

    Ma et al., "ShuffleNet V2" (ECCV 2018); Han et al., "GhostNet" (CVPR 2020); Liu et al., "Path
    aggregation network" (CVPR 2018).

    ``stages``: channels and number of units of each of the three. ``width``: channels of the maps
    after the exchange. ValueError for another number of stages or other patches.
    """

    def __init__(self, dim: int, patch: int, stages: Sequence[Sequence[int]], width: int) -> None:
        super().__init__()
        if patch != 16 or len(stages) != _STAGES:
            raise ValueError(f"3 stages and patches of 16 pixels, not {len(stages)} and {patch}")
        self.first = nn.Conv2d(3, _FIRST, 3, 2, 1)
        widths = [_FIRST, *(channels for channels, _ in stages)]
        self.stages = nn.ModuleList(
            nn.ModuleList(
                ShuffleUnit(after if unit else before, after, unit == 0) for unit in range(units)
            )
            for (before, after), (_, units) in zip(itertools.pairwise(widths), stages, strict=True)
        )
        self.exchange = GhostExchange(widths[1:], width)
        sides = (2, 1, 1)
        self.projections = nn.ModuleList(nn.Conv2d(width, dim, side, side) for side in sides)
        self.norm = ChannelNorm(dim)

    def forward(self, pictures: Tensor, operations: Operations | None = None) -> Tensor:
        """Return tokens [B, h, w, D] for images [B, 3, H, W]."""
        return self.project(self.maps(pictures, operations), operations)

    def maps(self, pictures: Tensor, operations: Operations | None = None) -> list[Tensor]:
        """Return maps [B, width, h, w] at strides 8, 16 and 32 for images [B, 3, H, W]."""
        x = pictures.contiguous(memory_format=torch.channels_last)
        x = F.max_pool2d(_leaky(_convolved(self.first, x, operations)), 3, 2, 1)
        maps = []
        for units in self.stages:
            for unit in cast(nn.ModuleList, units):
                x = unit(x, operations)
            maps.append(x)
        exchanged: list[Tensor] = self.exchange(maps, operations)
        return exchanged

    def project(self, maps: Sequence[Tensor], operations: Operations | None = None) -> Tensor:
        """Return tokens [B, h, w, D] for maps at strides 8, 16 and 32."""
        near, same, far = (
            _convolved(layer, x, operations)
            for layer, x in zip(self.projections, maps, strict=True)
        )
        # A map at stride 32 ends at the next whole place.
        far = F.interpolate(far, scale_factor=2.0)[..., : same.shape[2], : same.shape[3]]
        tokens: Tensor = self.norm(near + same + far)
        return tokens.permute(0, 2, 3, 1)

    def pretrained(self) -> Iterator[nn.Conv2d]:
        """Yield all convolutions before the projections in the order of NanoDet's own files."""
        yield self.first
        for unit in itertools.chain(*(cast(nn.ModuleList, units) for units in self.stages)):
            yield from cast(ShuffleUnit, unit).in_order()
        yield from self.exchange.in_order()


class ShuffleUnit(nn.Module):
    """A unit of ShuffleNet V2, figure 3 of the paper.

    ``halve``: halves the map, and both of its branches take all channels; otherwise one half of
    the channels stays as it is.
    """

    def __init__(self, in_channels: int, out_channels: int, halve: bool) -> None:
        super().__init__()
        half = out_channels // 2
        self.halve = halve
        if halve:
            self.side_depth = _depthwise(in_channels, 3, 2)
            self.side = nn.Conv2d(in_channels, half, 1)
        self.reduce = nn.Conv2d(in_channels if halve else half, half, 1)
        self.depth = _depthwise(half, 3, 2 if halve else 1)
        self.expand = nn.Conv2d(half, half, 1)

    def forward(self, x: Tensor, operations: Operations | None = None) -> Tensor:
        """Return the map [B, out, h, w] for a map [B, in, H, W]."""
        if self.halve:
            kept = _convolved(self.side_depth, x, operations)
            kept = _leaky(_convolved(self.side, kept, operations))
        else:
            kept, x = x.chunk(2, 1)
        x = _convolved(self.depth, _leaky(_convolved(self.reduce, x, operations)), operations)
        x = _leaky(_convolved(self.expand, x, operations))
        return torch.stack([kept, x], 2).flatten(1, 2)  # channels of the halves in turn

    def in_order(self) -> Iterator[nn.Conv2d]:
        """Yield the convolutions in the order of NanoDet's own files."""
        if self.halve:
            yield from (self.side_depth, self.reduce, self.depth, self.side, self.expand)
        else:
            yield from (self.reduce, self.depth, self.expand)


class GhostExchange(nn.Module):
    """A path aggregation network of Ghost blocks: from the coarsest map to the finest, and back.

    ``channels``: of the maps at strides 8, 16 and 32; ``width``: of those that come out.
    """

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__()
        self.reduce = nn.ModuleList(nn.Conv2d(given, width, 1) for given in channels)
        self.finer = nn.ModuleList(GhostBlock(2 * width, width) for _ in channels[1:])
        self.coarser = nn.ModuleList(GhostBlock(2 * width, width) for _ in channels[1:])
        self.halve = nn.ModuleList(_depthwise(width, 5, 2) for _ in channels[1:])
        self.halved = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in channels[1:])

    def forward(self, maps: Sequence[Tensor], operations: Operations | None = None) -> list[Tensor]:
        """Return three maps [B, width, h, w] for the maps [B, C, h, w] of the stages."""
        given = [
            _leaky(_convolved(layer, x, operations))
            for layer, x in zip(self.reduce, maps, strict=True)
        ]
        found = [given[-1]]
        for block, x in zip(self.finer, reversed(given[:-1]), strict=True):
            # Maps with an odd side are the first part of the enlarged ones.
            large = F.interpolate(found[-1], scale_factor=2.0, mode="bilinear")
            large = large[..., : x.shape[2], : x.shape[3]]
            found.append(block(torch.cat([large, x], 1), operations))
        out = [found.pop()]
        for block, halve, halved in zip(self.coarser, self.halve, self.halved, strict=True):
            small = _leaky(_convolved(halve, out[-1], operations))
            small = _leaky(_convolved(halved, small, operations))
            out.append(block(torch.cat([small, found.pop()], 1), operations))
        return out

    def in_order(self) -> Iterator[nn.Conv2d]:
        """Yield the convolutions in the order of NanoDet's own files."""
        *others, last = cast(list[nn.Conv2d], list(self.reduce))
        yield last
        for reduce, block in zip(reversed(others), self.finer, strict=True):
            yield reduce
            yield from cast(GhostBlock, block).in_order()
        for block, *pair in zip(self.coarser, self.halve, self.halved, strict=True):
            yield from cast(list[nn.Conv2d], pair)
            yield from cast(GhostBlock, block).in_order()


class GhostBlock(nn.Module):
    """A bottleneck of GhostNet: half of its channels are cheap functions of the other half."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        half = out_channels // 2
        self.first = nn.Conv2d(in_channels, half, 1)
        self.first_ghost = _depthwise(half, 3, 1)
        self.second = nn.Conv2d(out_channels, half, 1)
        self.second_ghost = _depthwise(half, 3, 1)
        self.side_depth = _depthwise(in_channels, 5, 1)
        self.side = nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor, operations: Operations | None = None) -> Tensor:
        """Return the map [B, out, h, w] for a map [B, in, h, w]."""
        y = _leaky(_convolved(self.first, x, operations))
        y = torch.cat([y, _leaky(_convolved(self.first_ghost, y, operations))], 1)
        y = _convolved(self.second, y, operations)
        y = torch.cat([y, _convolved(self.second_ghost, y, operations)], 1)
        return y + _convolved(self.side, _convolved(self.side_depth, x, operations), operations)

    def in_order(self) -> Iterator[nn.Conv2d]:
        """Yield the convolutions in the order of NanoDet's own files."""
        yield from (self.first, self.first_ghost, self.second, self.second_ghost)
        yield from (self.side_depth, self.side)


def _depthwise(channels: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, size, stride, size // 2, groups=channels)


def _convolved(layer: nn.Module, x: Tensor, operations: Operations | None) -> Tensor:
    """Return a convolution's output; its operations are counted."""
    y: Tensor = layer(x)
    if operations is not None:
        operations.count_linear(y[:, 0].numel(), cast(nn.Conv2d, layer))
    return y


def _leaky(x: Tensor) -> Tensor:
    return F.leaky_relu(x, _SLOPE)
