"""Boxes as corners x1, y1, x2, y2, in pixels; x to the right, y down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from costream.nn.eventful.gates import Operations

_LARGEST_GROWTH = math.log(1000 / 16)


def areas(boxes: Tensor) -> Tensor:
    """Return the areas [...] of boxes [..., 4], 0 for inverted ones."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return (x2 - x1).clamp_(min=0) * (y2 - y1).clamp_(min=0)


def pairwise_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Return intersection over union [..., n, m] of boxes [..., n, 4] and [..., m, 4].

    It is 0 where both are empty.
    """
    x1, y1, x2, y2 = (side[..., None] for side in boxes.unbind(-1))
    left, top, right, bottom = (side[..., None, :] for side in others.unbind(-1))
    shared = torch.minimum(x2, right).sub_(torch.maximum(x1, left)).clamp_(min=0)
    shared *= torch.minimum(y2, bottom).sub_(torch.maximum(y1, top)).clamp_(min=0)
    union = areas(boxes)[..., None] + areas(others)[..., None, :] - shared
    return torch.where(shared > 0, shared / union, 0.0)


def clip_boxes(boxes: Tensor, height: float, width: float) -> Tensor:
    """Return boxes [..., 4] clipped to the edges of an image."""
    limits = boxes.new_tensor([width, height, width, height])
    return torch.minimum(boxes.clamp(min=0), limits)


def corners_of(boxes: Tensor, height: float, width: float) -> Tensor:
    """Return boxes [..., 4] in pixels from centre x, y, width and height as parts of an image."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    sides = boxes.new_tensor([width, height, width, height])
    return torch.cat([centre - half, centre + half], -1) * sides


def apply_deltas(boxes: Tensor, deltas: Tensor, weights: Sequence[float]) -> Tensor:
    """Return boxes [n, 4] moved by deltas [n, k, 4], as [n, k, 4].

    Deltas are shifts of the centre relative to width and height, and logarithms of the growth of
    width and height, each multiplied by a weight (Girshick et al., "Rich feature hierarchies",
    2014); the logarithms are capped at ln(1000 / 16).
    """
    sides = boxes[:, None, 2:] - boxes[:, None, :2]
    centres = boxes[:, None, :2] + 0.5 * sides
    deltas = deltas / deltas.new_tensor(weights)
    centres = centres + deltas[..., :2] * sides
    half = 0.5 * sides * deltas[..., 2:].clamp(max=_LARGEST_GROWTH).exp()
    return torch.cat([centres - half, centres + half], -1)


def box_deltas(boxes: Tensor, targets: Tensor, weights: Sequence[float]) -> Tensor:
    """Return the deltas [n, 4] by which ``apply_deltas`` moves boxes [n, 4] to targets."""
    sides, target_sides = (b[:, 2:] - b[:, :2] for b in (boxes, targets))
    centres, target_centres = (b[:, :2] + b[:, 2:] for b in (boxes, targets))
    shifts = 0.5 * (target_centres - centres) / sides
    return torch.cat([shifts, (target_sides / sides).log()], 1) * boxes.new_tensor(weights)


# Layer normalisation over the channels of each place of a feature map.


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


# RoIAlign: features of boxes as means of interpolated samples in each bin of a box.
#
# He et al., "Mask R-CNN" (ICCV 2017), as detectron2's "RoIAlignV2": half a pixel is subtracted from
# coordinates, and a bin has as many samples along each axis as its length in pixels, rounded up.
# Samples lie on a grid and interpolation is separable, so the mean over the samples of a bin is a
# product W_y F W_x^T of the features F under the box with two small matrices. Boxes of about the
# same
# size are one such product, whichever map they belong to.


NUMBERS_AT_ONCE = 1 << 20  # gathered at once, to stay in the cache


def roi_align(
    rows: Tensor,
    layout: MapLayout,
    boxes: Tensor,
    levels: Tensor,
    scales: Sequence[float],
    bins: int = 7,
    operations: Operations | None = None,
) -> Tensor:
    """Return the features [n, bins, bins, C] of boxes [n, 4] in maps with ``rows`` [places, C].

    ``levels`` int64 [n]: the map of each box. ``scales``: pixels of each map over those of the
    boxes. ``operations``: the counts are added to it.
    """
    count, channels = len(boxes), rows.shape[1]
    if not count:
        return rows.new_zeros(0, bins, bins, channels)
    corners = boxes * boxes.new_tensor(scales)[levels, None] - 0.5
    low, high = (c.flip(1).t().flatten() for c in corners.chunk(2, 1))  # those along y, then x
    sizes = torch.tensor(layout.sizes, device=boxes.device)[levels]
    starts, reach, weights = _axis(low, high, sizes.t().flatten(), bins)
    first = torch.tensor(layout.starts, device=boxes.device)[levels]
    tops, lefts = starts.view(2, count, 1)
    heights, widths = sizes[:, :1], sizes[:, 1:]
    spans = reach.view(2, count)
    covered, order = spans.prod(0).sort(descending=True)
    left, out = covered.tolist(), []
    while left:
        number = max(1, NUMBERS_AT_ONCE // (left[0] * channels))
        own = order[count - len(left) :][:number]
        down, across = spans[:, own].amax(1).tolist()
        steps = torch.arange(max(down, across), device=boxes.device)
        # Weights are zero outside the map.
        y = torch.minimum(tops[own] + steps[:down], heights[own] - 1)
        x = torch.minimum(lefts[own] + steps[:across], widths[own] - 1)
        places = first[own, None, None] + (y * widths[own])[:, :, None] + x[:, None]
        part = rows.index_select(0, places.flatten()).view(len(own), down, across * channels)
        bands = torch.bmm(weights[own, :, :down], part).view(len(own), bins, across, channels)
        out.append(weights[count + own, None, :, :across] @ bands)
        if operations is not None:
            operations.product += len(own) * bins * across * channels * (down + bins)
        left = left[number:]
    return torch.cat(out)[order.argsort()]


def _axis(low: Tensor, high: Tensor, size: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first feature under each box, the number of features, and their weights in bins.

    The shapes are int64 [n], int64 [n] and [n, bins, m], m at least the largest number. ``low``,
    ``high`` [n]: the box along one axis, in features; ``size`` int64 [n]: of the map. Samples more
    than one feature beyond the edge count as zeros, nearer ones as the feature at the edge.
    """
    length = (high - low) / bins
    counts = length.ceil().clamp(min=1)
    samples = torch.arange(int(counts.max()), device=low.device)
    number = torch.arange(bins, device=low.device)
    exists = samples < counts[:, None]
    places = torch.where(exists, samples + 0.5, 0.5) / counts[:, None]  # within a bin
    at = low[:, None, None] + (number[:, None] + places[:, None]) * length[:, None, None]
    sizes = size[:, None, None]
    real = (exists & (length > 0)[:, None])[:, None] & (at >= -1) & (at <= sizes)
    weight = real / counts[:, None, None]
    at = torch.minimum(at.clamp(min=0), sizes - 1)
    first = torch.minimum(at.floor(), (sizes - 2).clamp(min=0))
    share = at - first
    first = first.long()
    start = first.amin((1, 2))
    reach = torch.minimum(first.amax((1, 2)) - start + 2, size)
    inside = first - start[:, None, None]
    matrix = low.new_zeros(len(low), bins, int(reach.max()) + 1)
    matrix.scatter_add_(2, inside, weight * (1 - share))
    matrix.scatter_add_(2, inside + 1, weight * share)
    return start, reach, matrix


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
    """Return which places a 3x3 convolution changes, bool [places + 1], given changed inputs.

    ``changed`` bool [places + 1], within consecutive maps. If many have, all of these maps.
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


# Non-maximum suppression: of overlapping boxes only the one with the best score is retained.


PAIRS_AT_ONCE = 1 << 19  # of boxes at once, to stay in the cache


def suppress(boxes: Tensor, scores: Tensor, groups: Tensor, threshold: float) -> Tensor:
    """Return the indices, int64 [k], of the retained boxes, best score first.

    A box is suppressed when a retained box of its group with a better score overlaps it by more
    than ``threshold``, as intersection over union. Of equal scores the first is better.

    ``boxes`` [n, 4], ``scores`` [n], ``groups`` [n]: classes or levels.
    """
    order = scores.argsort(descending=True, stable=True)
    boxes = boxes[order]
    _, number, counts = torch.unique(groups[order], return_inverse=True, return_counts=True)
    members = torch.split(number.argsort(stable=True), counts.tolist())
    left = sorted(members, key=len, reverse=True)
    stays = torch.zeros(len(boxes), dtype=torch.bool, device=boxes.device)
    while left:  # groups of about the same size at once
        count = max(1, PAIRS_AT_ONCE // len(left[0]) ** 2)
        # Padding comes last in a group and so suppresses nothing.
        places = pad_sequence(left[:count], batch_first=True, padding_value=-1)
        real, own = places >= 0, boxes[places]
        stays[places[real]] = _staying(pairwise_iou(own, own) > threshold)[real]
        left = left[count:]
    return order[stays]


def _staying(over: Tensor) -> Tensor:
    """Return which of n boxes stay, bool [..., n]; ``over`` [..., n, n]: pairs too close.

    Each round uses the decisions of the previous round on better boxes. Once the first k boxes are
    right they stay right and make the next one right, so when nothing changes the result is that
    of deciding box by box. Long chains of boxes that depend on each other are rare: it takes a few
    matrix products instead of n steps.
    """
    better = over.triu(1).mT.float()  # row i: the better boxes that overlap box i too much
    stays = torch.ones(over.shape[:-1], dtype=torch.bool, device=over.device)
    while True:
        after = (better @ stays[..., None].float())[..., 0] == 0
        if torch.equal(after, stays):
            return stays
        stays = after
