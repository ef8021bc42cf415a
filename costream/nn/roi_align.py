"""Features of boxes: means of interpolated samples in each bin of a box.

RoIAlign, He et al., "Mask R-CNN" (ICCV 2017), as detectron2's "RoIAlignV2": half a pixel is
taken off coordinates, and a bin has as many samples along each axis as it is pixels long, rounded
up. Samples stand on a grid and interpolation goes along each axis by itself, so the mean over the
samples of a bin is a product W_y F W_x^T of the features F under the box with two small matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from costream.nn.operations import Operations


def roi_align(
    features: Tensor,
    boxes: Tensor,
    scale: float,
    bins: int = 7,
    operations: Operations | None = None,
) -> Tensor:
    """Give the features [n, bins, bins, C] of boxes [n, 4] in a map ``features`` [H, W, C].

    ``scale``: pixels of the map over those of the boxes. ``operations``: what is spent is added.
    """
    height, width, channels = features.shape
    rows = features.reshape(height, width * channels)
    corners = boxes * scale - 0.5
    tops, down = _axis(corners[:, 1], corners[:, 3], height, bins)
    lefts, across = _axis(corners[:, 0], corners[:, 2], width, bins)
    out = []
    for top, w_y, left, w_x in zip(tops, down, lefts, across, strict=True):
        size = w_x.shape[1]
        part = rows[top : top + w_y.shape[1], left * channels : (left + size) * channels]
        bands = (w_y @ part).view(bins, size, channels)
        out.append(w_x @ bands)
        if operations is not None:
            operations.product += bins * size * channels * (w_y.shape[1] + bins)
    return torch.stack(out) if out else features.new_zeros(0, bins, bins, channels)


def _axis(low: Tensor, high: Tensor, size: int, bins: int) -> tuple[list[int], list[Tensor]]:
    """Give where the features under each box begin, and their weights [bins, length] in bins.

    ``low``, ``high`` [n]: the box along one axis, in features. Samples more than one feature
    beyond the edge count as zeros, nearer ones as the feature at the edge.
    """
    length = (high - low) / bins
    counts = length.ceil().clamp(min=1)
    samples = torch.arange(max(1, int(counts.max())) if len(low) else 1, device=low.device)
    number = torch.arange(bins, device=low.device)
    exists = samples < counts[:, None]
    places = torch.where(exists, samples + 0.5, 0.5) / counts[:, None]  # within a bin
    at = low[:, None, None] + (number[:, None] + places[:, None]) * length[:, None, None]
    real = (exists & (length > 0)[:, None])[:, None] & (at >= -1) & (at <= size)
    weight = real / counts[:, None, None]
    at = at.clamp(0, size - 1)
    first = at.floor().clamp(max=max(size - 2, 0))
    share = at - first
    first = first.long()
    start = first.amin((1, 2))
    reach = (first.amax((1, 2)) - start + 2).clamp(max=size)
    inside = first - start[:, None, None]
    matrix = low.new_zeros(len(low), bins, int(reach.max()) + 1 if len(low) else 1)
    matrix.scatter_add_(2, inside, weight * (1 - share))
    matrix.scatter_add_(2, inside + 1, weight * share)
    spans = reach.tolist()
    return start.tolist(), [m[:, :span] for m, span in zip(matrix, spans, strict=True)]
