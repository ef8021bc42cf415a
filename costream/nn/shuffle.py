"""ShuffleNet V2: a small convolutional backbone, as in NanoDet-Plus.

There are no norms in between: in trained networks they are folded into the weights. Ma et al.,
"ShuffleNet V2" (ECCV 2018).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.eventful.counts import Operations
from costream.nn.fused import IDENTITY, FusedActivation, convolve, leaky_relu

_FIRST = 24  # channels before the first stage, at stride 4
SLOPE = 0.1  # of the leaky ReLUs, as in NanoDet
LEAKY = leaky_relu(SLOPE)


class ShuffleBackbone(nn.Module):
    """The stages of a ShuffleNet V2, of which the first has stride 8, and each half the last's.

    ``stages``: channels and number of units of each.
    """

    def __init__(self, stages: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, _FIRST, 3, 2, 1)
        widths = [_FIRST, *(channels for channels, _ in stages)]
        self.stages = nn.ModuleList(
            nn.ModuleList(
                ShuffleUnit(after if unit else before, after, unit == 0) for unit in range(units)
            )
            for (before, after), (_, units) in zip(itertools.pairwise(widths), stages, strict=True)
        )

    def stage_maps(self, pictures: Tensor, operations: Operations | None = None) -> list[Tensor]:
        """Return the maps [B, C, h, w] after each stage for images [B, 3, H, W]."""
        x = self.first_maps(pictures, operations)
        maps = []
        for units in self.stages:
            for unit in cast(nn.ModuleList, units):
                x = unit(x, operations)
            maps.append(x)
        return maps

    def first_maps(self, pictures: Tensor, operations: Operations | None = None) -> Tensor:
        """Return the map [B, C, h, w] before the first stage for images [B, 3, H, W]."""
        x = pictures.contiguous(memory_format=torch.channels_last)
        return F.max_pool2d(convolved(self.first, x, operations, LEAKY), 3, 2, 1)

    def pretrained(self) -> Iterator[nn.Conv2d]:
        """Yield the convolutions in the order of NanoDet's files."""
        yield self.first
        for unit in itertools.chain(*(cast(nn.ModuleList, units) for units in self.stages)):
            yield from cast(ShuffleUnit, unit).in_order()


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
            self.side_depth = depthwise(in_channels, 3, 2)
            self.side = nn.Conv2d(in_channels, half, 1)
        self.reduce = nn.Conv2d(in_channels if halve else half, half, 1)
        self.depth = depthwise(half, 3, 2 if halve else 1)
        self.expand = nn.Conv2d(half, half, 1)

    def forward(self, x: Tensor, operations: Operations | None = None) -> Tensor:
        """Return the map [B, out, h, w] for a map [B, in, H, W]."""
        if self.halve:
            kept = convolved(self.side_depth, x, operations)
            kept = convolved(self.side, kept, operations, LEAKY)
        else:
            kept, x = x.chunk(2, 1)
        x = convolved(self.reduce, x, operations, LEAKY)
        x = convolved(self.depth, x, operations)
        x = convolved(self.expand, x, operations, LEAKY)
        return F.channel_shuffle(torch.cat([kept, x], 1), 2)  # channels of the halves in turn

    def in_order(self) -> Iterator[nn.Conv2d]:
        """Yield the convolutions in the order of NanoDet's files."""
        if self.halve:
            yield from (self.side_depth, self.reduce, self.depth, self.side, self.expand)
        else:
            yield from (self.reduce, self.depth, self.expand)


def depthwise(channels: int, size: int, stride: int) -> nn.Conv2d:
    """Return a depthwise convolution, padded."""
    return nn.Conv2d(channels, channels, size, stride, size // 2, groups=channels)


def convolved(
    layer: nn.Module,
    x: Tensor,
    operations: Operations | None,
    activation: FusedActivation = IDENTITY,
) -> Tensor:
    """Return a convolution's output, activated; its operations are counted."""
    y = convolve(cast(nn.Conv2d, layer), x, activation)
    if operations is not None:
        operations.count_linear(y[:, 0].numel(), cast(nn.Conv2d, layer))
    return y
