"""RoIAlign: features of boxes as means of interpolated samples in each bin of a box.

He et al., "Mask R-CNN" (ICCV 2017), as detectron2's "RoIAlignV2": half a pixel is subtracted from
coordinates, and a bin has as many samples along each axis as its length in pixels, rounded up.

Samples lie on a grid and interpolation is separable, so the mean over the samples of a bin is a
product W_y F W_x^T of the features F under the box with two small matrices. Boxes of about the same
size are one such product, whichever map they belong to.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from costream.nn.eventful.counts import Operations
from costream.nn.maps import NUMBERS_AT_ONCE, MapLayout


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

    ``levels`` int64 [n]: the map of each box. ``scales``: size of each map relative to the image
    of the boxes. ``operations``: the counts are added to it.
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
