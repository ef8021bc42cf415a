from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from costream.nn.boxes import flatten_maps, roi_align
from costream.nn.eventful.gates import Operations


def interpolate(features: Tensor, y: float, x: float) -> Tensor:
    """A sample of detectron2's RoIAlign."""
    height, width, channels = features.shape
    if y < -1 or y > height or x < -1 or x > width:
        return torch.zeros(channels, dtype=features.dtype)
    y, x = max(y, 0.0), max(x, 0.0)
    y0, x0 = int(y), int(x)
    if y0 >= height - 1:
        y0 = y1 = height - 1
        y = float(y0)
    else:
        y1 = y0 + 1
    if x0 >= width - 1:
        x0 = x1 = width - 1
        x = float(x0)
    else:
        x1 = x0 + 1
    dy, dx = y - y0, x - x0
    top = features[y0, x0] * (1 - dx) + features[y0, x1] * dx
    bottom = features[y1, x0] * (1 - dx) + features[y1, x1] * dx
    return top * (1 - dy) + bottom * dy


def aligned(
    features: Tensor, boxes: Tensor, scale: float, bins: int, operations: Operations | None = None
) -> Tensor:
    """RoIAlign in a single map [H, W, C]."""
    layout, rows = flatten_maps([features.permute(2, 0, 1)[None]])
    first = torch.zeros(len(boxes), dtype=torch.int64)
    return roi_align(rows[0], layout, boxes, first, [scale], bins, operations)


def sampled(features: Tensor, box: list[float], scale: float, bins: int) -> Tensor:
    """RoIAlign sample by sample."""
    x1, y1, x2, y2 = (c * scale - 0.5 for c in box)
    height, width = (y2 - y1) / bins, (x2 - x1) / bins
    down, across = math.ceil(height), math.ceil(width)
    out = torch.zeros(bins, bins, features.shape[2], dtype=features.dtype)
    for p in range(bins):
        for q in range(bins):
            for i in range(down):
                for j in range(across):
                    y = y1 + p * height + (i + 0.5) * height / down
                    x = x1 + q * width + (j + 0.5) * width / across
                    out[p, q] += interpolate(features, y, x) / (down * across)
    return out


place = st.floats(-20, 60)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.lists(st.tuples(place, place, st.floats(0, 60), st.floats(0, 60)), max_size=4),
    st.sampled_from([1.0, 0.25]),
    st.integers(1, 4),
)
def test_bins_are_means_of_samples(
    size: tuple[int, int], boxes: list[tuple[float, ...]], scale: float, bins: int
) -> None:
    torch.manual_seed(0)
    features = torch.randn(*size, 2, dtype=torch.float64)
    rois = [[x, y, x + w, y + h] for x, y, w, h in boxes]
    tensor = torch.tensor(rois, dtype=torch.float64).view(-1, 4)
    given = aligned(features, tensor, scale, bins)
    assert given.shape == (len(boxes), bins, bins, 2)
    for roi, mine in zip(tensor.tolist(), given, strict=True):
        torch.testing.assert_close(mine, sampled(features, roi, scale, bins), atol=1e-9, rtol=0)


def test_a_large_map_with_boxes_of_many_sizes() -> None:
    torch.manual_seed(0)
    features = torch.randn(40, 60, 3, dtype=torch.float64)
    low = torch.rand(30, 2, dtype=torch.float64) * torch.tensor([800, 500])
    boxes = torch.cat([low, low + 2 ** (10 * torch.rand(30, 2, dtype=torch.float64))], 1)
    operations = Operations()
    given = aligned(features, boxes, 1 / 16, 7, operations)
    expected = torch.stack([sampled(features, box, 1 / 16, 7) for box in boxes.tolist()])
    torch.testing.assert_close(given, expected, atol=1e-9, rtol=0)
    assert 0 < operations.product == operations.total


def test_boxes_in_maps_of_several_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = [torch.randn(1, 3, *size, dtype=torch.float64) for size in ((12, 20), (6, 10), (3, 5))]
    layout, rows = flatten_maps(maps)
    low = torch.rand(40, 2, dtype=torch.float64) * 80 - 10
    boxes = torch.cat([low, low + 40 * torch.rand(40, 2, dtype=torch.float64)], 1)
    levels, scales = torch.randint(0, 3, (40,)), [0.25, 0.125, 0.0625]
    expected = [
        sampled(maps[k][0].permute(1, 2, 0), box, scales[k], 7)
        for box, k in zip(boxes.tolist(), levels.tolist(), strict=True)
    ]
    for at_once in (1, 2000, 1 << 20):
        monkeypatch.setattr("costream.nn.boxes._NUMBERS", at_once)
        given = roi_align(rows[0], layout, boxes, levels, scales)
        torch.testing.assert_close(given, torch.stack(expected), atol=1e-9, rtol=0)


def test_it_has_a_gradient() -> None:
    with torch.enable_grad():
        features = torch.randn(5, 6, 2, dtype=torch.float64, requires_grad=True)
        boxes = torch.tensor([[1.0, 0.5, 4.0, 4.5]], dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda f: aligned(f, boxes, 1.0, 2), features)


@pytest.mark.parametrize("box", [[3.0, 3, 3, 3], [90, 90, 95, 95], [5, 5, 2, 2]])
def test_boxes_with_nothing_in_them_have_no_features(box: list[float]) -> None:
    given = aligned(torch.ones(8, 8, 1), torch.tensor([box]), 1.0, 2)
    assert (given == 0).all()
