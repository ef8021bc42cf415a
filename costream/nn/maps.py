"""Feature maps of several sizes as one list of places, and 3x3 convolutions at some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.eventful.counts import Operations

NUMBERS_AT_ONCE = 1 << 20  # gathered at once, to stay in the cache
_DENSE = 0.5  # share of the places of maps from which it is faster to compute all


@dataclass(frozen=True)
class MapLayout:
    """Indices of the places of maps of these ``sizes`` (height, width) in one list, row by row."""

    sizes: tuple[tuple[int, int], ...]

    @cached_property
    def counts(self) -> list[int]:
        """Number of places of each map."""
        return [height * width for height, width in self.sizes]

    @cached_property
    def starts(self) -> list[int]:
        """First place of each map."""
        return [sum(self.counts[:k]) for k in range(len(self.counts))]

    @cached_property
    def places(self) -> int:
        """Number of places of all maps."""
        return sum(self.counts)

    @cached_property
    def neighbours(self) -> Tensor:
        """The 3 x 3 places around each place, int64 [places, 9]; ``places``: outside the map."""
        with torch.inference_mode(False):
            parts = []
            for (height, width), start in zip(self.sizes, self.starts, strict=True):
                own = torch.arange(start, start + height * width).view(height, width)
                grid = F.pad(own, (1, 1, 1, 1), value=self.places)
                if own.numel():
                    parts.append(grid.unfold(0, 3, 1).unfold(1, 3, 1).reshape(-1, 9))
            return torch.cat(parts)

    def span(self, levels: range) -> tuple[int, int]:
        """Return the first place of consecutive maps and the one after their last."""
        last = levels[-1]
        return self.starts[levels[0]], self.starts[last] + self.counts[last]

    def part(self, rows: Tensor, level: int) -> Tensor:
        """Return a view [B, C, H, W] of the map at one level of rows [B, places + 1, C]."""
        start, (height, width) = self.starts[level], self.sizes[level]
        own = rows[:, start : start + height * width]
        return torch.unflatten(own, 1, (height, width)).permute(0, 3, 1, 2)


@lru_cache(maxsize=64)
def layout_of(sizes: tuple[tuple[int, int], ...]) -> MapLayout:
    """Return the layout of maps of these sizes, cached."""
    return MapLayout(sizes)


def flatten_maps(maps: Sequence[Tensor]) -> tuple[MapLayout, Tensor]:
    """Return the layout and the rows [B, places, C] of maps [B, C, H, W]."""
    layout = layout_of(tuple((m.shape[2], m.shape[3]) for m in maps))
    return layout, torch.cat([m.permute(0, 2, 3, 1).flatten(1, 2) for m in maps], 1)


def places_affected(changed: Tensor, layout: MapLayout, levels: range) -> Tensor:
    """Return which places a 3x3 convolution changes, bool [places + 1], for changed inputs.

    ``changed`` bool [places + 1], within consecutive maps. If many have changed, all their places.
    """
    out, (first, stop) = torch.zeros_like(changed), layout.span(levels)
    places = changed[first:stop].nonzero().flatten() + first
    if len(places) > _DENSE * (stop - first):
        out[first:stop] = True
    else:
        out[layout.neighbours.to(changed.device).index_select(0, places).flatten()] = True
        out[-1] = False
    return out


def convolve(
    rows: Tensor,
    layout: MapLayout,
    levels: range,
    changed: Tensor,
    layer: nn.Conv2d,
    operations: Operations,
) -> tuple[Tensor, Tensor]:
    """Return the 3x3 convolution of ``rows`` [places + 1, C] at places of consecutive maps.

    The result is the places, int64 [p], and their rows [p, O]: those where ``changed``, bool
    [places + 1], is True; all places of these maps where that is faster.
    """
    first, stop = layout.span(levels)
    places = first + changed[first:stop].nonzero().flatten()
    if len(places) > _DENSE * (stop - first):
        places = torch.arange(first, stop, device=rows.device)
        maps = (layout.part(rows[None], level) for level in levels if layout.counts[level])
        outs = [F.conv2d(m, layer.weight, layer.bias, padding=1) for m in maps]
        out = torch.cat([o.permute(0, 2, 3, 1).flatten(0, 2) for o in outs])
    else:
        weight = layer.weight.permute(0, 2, 3, 1).flatten(1)
        near = layout.neighbours.to(rows.device).index_select(0, places)
        parts = []
        for part in torch.split(near, max(64, NUMBERS_AT_ONCE // weight.shape[1])):
            taken = rows.index_select(0, part.flatten()).view(-1, weight.shape[1])
            parts.append(F.linear(taken, weight, layer.bias))
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
    operations.count_linear(len(places), layer)
    return places, out


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of maps [B, C, H, W], eps 1e-6."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised maps."""
        return self.of_rows(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def of_rows(self, x: Tensor) -> Tensor:
        """Return normalised rows [..., C]."""
        return super().forward(x)


class NormedConv2d(nn.Conv2d):
    """3x3 convolution without bias, then a norm of its channels, then ReLU."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 3, padding=1, bias=False)
        self.norm = ChannelNorm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return maps [B, out, H, W] for maps [B, in, H, W]."""
        return F.relu(self.norm(super().forward(x)))
