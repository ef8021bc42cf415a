"""A convolutional stem: ShuffleNet V2 with a Ghost path aggregation network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.eventful.counts import Operations
from costream.nn.maps import ChannelNorm
from costream.nn.shuffle import LEAKY, ShuffleBackbone, convolved, depthwise

_STAGES = 3  # their maps have strides 8, 16 and 32


class ShuffleEmbedding(ShuffleBackbone):
    """One token of width ``dim`` for each square of 16 x 16 pixels, from a convolutional network.

    Backbone and neck of NanoDet-Plus (RangiLyu/nanodet): the stages of a ShuffleNet V2, whose maps
    are combined, projected to the grid of tokens, added and normed. Everything is
    computed for every frame, since each token depends on pixels far beyond its patch.

    Han et al., "GhostNet" (CVPR 2020); Liu et al., "Path aggregation network" (CVPR 2018).

    ``stages``: channels and number of units of each of the three. ``width``: channels of the maps
    after the exchange. ValueError for another number of stages or other patches.
    """

    def __init__(self, dim: int, patch: int, stages: Sequence[Sequence[int]], width: int) -> None:
        if patch != 16 or len(stages) != _STAGES:
            raise ValueError(f"3 stages and patches of 16 pixels, not {len(stages)} and {patch}")
        super().__init__(stages)
        self.exchange = GhostExchange([channels for channels, _ in stages], width)
        sides = (2, 1, 1)
        self.projections = nn.ModuleList(nn.Conv2d(width, dim, side, side) for side in sides)
        self.norm = ChannelNorm(dim)

    def forward(self, pictures: Tensor, operations: Operations | None = None) -> Tensor:
        """Return tokens [B, h, w, D] for images [B, 3, H, W]."""
        return self.project(self.maps(pictures, operations), operations)

    def maps(self, pictures: Tensor, operations: Operations | None = None) -> list[Tensor]:
        """Return maps [B, width, h, w] at strides 8, 16 and 32 for images [B, 3, H, W]."""
        exchanged: list[Tensor] = self.exchange(self.stage_maps(pictures, operations), operations)
        return exchanged

    def project(self, maps: Sequence[Tensor], operations: Operations | None = None) -> Tensor:
        """Return tokens [B, h, w, D] for maps at strides 8, 16 and 32."""
        near, same, far = (
            convolved(layer, x, operations) for layer, x in zip(self.projections, maps, strict=True)
        )
        # A map at stride 32 ends at the next whole place.
        far = F.interpolate(far, scale_factor=2.0)[..., : same.shape[2], : same.shape[3]]
        tokens: Tensor = self.norm(near + same + far)
        return tokens.permute(0, 2, 3, 1)

    def pretrained(self) -> Iterator[nn.Conv2d]:
        """Yield all convolutions before the projections in the order of NanoDet's files."""
        yield from super().pretrained()
        yield from self.exchange.in_order()


class GhostExchange(nn.Module):
    """A path aggregation network of Ghost blocks: from the coarsest map to the finest, and back.

    ``channels``: of the maps at strides 8, 16 and 32; ``width``: of those that come out.
    """

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__()
        self.reduce = nn.ModuleList(nn.Conv2d(given, width, 1) for given in channels)
        self.finer = nn.ModuleList(GhostBlock(2 * width, width) for _ in channels[1:])
        self.coarser = nn.ModuleList(GhostBlock(2 * width, width) for _ in channels[1:])
        self.halve = nn.ModuleList(depthwise(width, 5, 2) for _ in channels[1:])
        self.halved = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in channels[1:])

    def forward(self, maps: Sequence[Tensor], operations: Operations | None = None) -> list[Tensor]:
        """Return three maps [B, width, h, w] for the maps [B, C, h, w] of the stages."""
        return self.exchanged(self.reduced(maps, operations), operations)

    def reduced(self, maps: Sequence[Tensor], operations: Operations | None = None) -> list[Tensor]:
        """Return the maps [B, width, h, w] that are exchanged, each of one stage alone."""
        return [
            convolved(layer, x, operations, LEAKY)
            for layer, x in zip(self.reduce, maps, strict=True)
        ]

    def exchanged(
        self, given: Sequence[Tensor], operations: Operations | None = None
    ) -> list[Tensor]:
        """Return three maps [B, width, h, w] for those of ``reduced``."""
        found = [given[-1]]
        for block, x in zip(self.finer, reversed(given[:-1]), strict=True):
            # Maps with an odd side are the first part of the enlarged ones.
            large = F.interpolate(found[-1], scale_factor=2.0, mode="bilinear")
            large = large[..., : x.shape[2], : x.shape[3]]
            found.append(block(torch.cat([large, x], 1), operations))
        out = [found.pop()]
        for block, halve, halved in zip(self.coarser, self.halve, self.halved, strict=True):
            small = convolved(halve, out[-1], operations, LEAKY)
            small = convolved(halved, small, operations, LEAKY)
            out.append(block(torch.cat([small, found.pop()], 1), operations))
        return out

    def in_order(self) -> Iterator[nn.Conv2d]:
        """Yield the convolutions in the order of NanoDet's files."""
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
        self.first_ghost = depthwise(half, 3, 1)
        self.second = nn.Conv2d(out_channels, half, 1)
        self.second_ghost = depthwise(half, 3, 1)
        self.side_depth = depthwise(in_channels, 5, 1)
        self.side = nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor, operations: Operations | None = None) -> Tensor:
        """Return the map [B, out, h, w] for a map [B, in, h, w]."""
        y = convolved(self.first, x, operations, LEAKY)
        y = torch.cat([y, convolved(self.first_ghost, y, operations, LEAKY)], 1)
        y = convolved(self.second, y, operations)
        y = torch.cat([y, convolved(self.second_ghost, y, operations)], 1)
        return y + convolved(self.side, convolved(self.side_depth, x, operations), operations)

    def in_order(self) -> Iterator[nn.Conv2d]:
        """Yield the convolutions in the order of NanoDet's files."""
        yield from (self.first, self.first_ghost, self.second, self.second_ghost)
        yield from (self.side_depth, self.side)
