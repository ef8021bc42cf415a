"""Boxes, the features under them, and convolutions at some places of maps."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from costream.nn import fast
from costream.nn.boxes import apply_deltas, areas, box_deltas, clip_boxes, pairwise_iou
from costream.nn.eventful.counts import Operations
from costream.nn.maps import MapLayout, convolve, flatten_maps, places_affected
from costream.nn.roi_align import roi_align
from costream.nn.suppression import suppress

sides = st.integers(0, 12)
corners = st.tuples(sides, sides, sides, sides)


def as_boxes(values: list[tuple[int, ...]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).view(-1, 4)


def overlap(a: list[float], b: list[float]) -> float:
    """Intersection over union of two boxes, the slow way."""
    w = min(a[2], b[2]) - max(a[0], b[0])
    h = min(a[3], b[3]) - max(a[1], b[1])
    if w <= 0 or h <= 0:
        return 0.0
    each = [max(0.0, x[2] - x[0]) * max(0.0, x[3] - x[1]) for x in (a, b)]
    return w * h / (sum(each) - w * h)


def greedy(boxes: Tensor, scores: list[float], groups: list[int], threshold: float) -> list[int]:
    """Suppression, one box after another."""
    kept: list[int] = []
    for k in sorted(range(len(scores)), key=lambda k: (-scores[k], k)):
        rivals = [j for j in kept if groups[j] == groups[k]]
        if all(overlap(boxes[j].tolist(), boxes[k].tolist()) <= threshold for j in rivals):
            kept.append(k)
    return kept


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(corners, st.integers(0, 5), st.integers(0, 2)), max_size=25),
    st.sampled_from([0.1, 0.26, 0.51, 0.71]),
)
def test_suppression_is_that_of_one_box_after_another(
    items: list[tuple[tuple[int, ...], int, int]], threshold: float
) -> None:
    boxes = as_boxes([i[0] for i in items])
    scores, groups = [float(i[1]) for i in items], [i[2] for i in items]
    numbers = torch.tensor(groups, dtype=torch.int64)
    expected = greedy(boxes, scores, groups, threshold)
    import costream.nn.suppression_kernels  # noqa: F401  # the compiled loop is used from here on

    for compiled in (False, True):
        with torch.no_grad(), fast.use_kernels(compiled):
            given = suppress(boxes, torch.tensor(scores), numbers, threshold)
        assert given.tolist() == expected


def test_compiled_suppression_decides_as_pytorch_for_boxes_that_are_no_whole_numbers() -> None:
    import costream.nn.suppression_kernels  # noqa: F401

    torch.manual_seed(0)
    for count in (1, 70, 700):
        low = 200 * torch.rand(count, 2)
        boxes = torch.cat([low, low + 60 * torch.rand(count, 2)], 1)
        boxes[::50, 0] = float("nan")
        scores, groups = torch.rand(count), torch.randint(3, (count,))
        for threshold in (0.3, 0.6):
            with torch.no_grad():
                given = suppress(boxes, scores, groups, threshold)
                with fast.use_kernels(False):
                    assert torch.equal(given, suppress(boxes, scores, groups, threshold))


def test_suppression_of_groups_of_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    low, groups = 30 * torch.rand(400, 2), (torch.rand(400) * 5).exp().long()
    boxes = torch.cat([low, low + 20 * torch.rand(400, 2)], 1)
    scores = torch.rand(400)
    expected = greedy(boxes, scores.tolist(), groups.tolist(), 0.3)
    for at_once in (1, 20_000, 1 << 19):
        monkeypatch.setattr("costream.nn.suppression.PAIRS_AT_ONCE", at_once)
        assert suppress(boxes, scores, groups, 0.3).tolist() == expected


@pytest.mark.long
def test_suppression_of_a_long_chain_and_of_many() -> None:
    x = torch.arange(200.0)
    chain = torch.stack([x, torch.zeros(200), x + 2, torch.ones(200)], 1)  # neighbours: 1/3
    stay = suppress(chain, -x, torch.zeros(200), 0.3)
    assert stay.tolist() == list(range(0, 200, 2))
    torch.manual_seed(0)
    low = 50 * torch.rand(1000, 2)
    boxes = torch.cat([low, low + 20 * torch.rand(1000, 2)], 1)
    scores = torch.rand(1000)
    given = suppress(boxes, scores, torch.zeros(1000), 0.5).tolist()
    assert given == greedy(boxes, scores.tolist(), [0] * 1000, 0.5)


@given(st.lists(corners, max_size=6), st.lists(corners, max_size=6))
def test_overlaps_and_areas(first: list[tuple[int, ...]], second: list[tuple[int, ...]]) -> None:
    given = pairwise_iou(as_boxes(first), as_boxes(second))
    assert given.shape == (len(first), len(second))
    for i, a in enumerate(first):
        assert areas(as_boxes(first))[i] == max(0, a[2] - a[0]) * max(0, a[3] - a[1])
        for j, b in enumerate(second):
            assert abs(float(given[i, j]) - overlap(list(a), list(b))) < 1e-6


def test_deltas_move_and_are_found_again() -> None:
    torch.manual_seed(0)
    low, size = 100 * torch.rand(2, 50, 2), 1 + 50 * torch.rand(2, 50, 2)
    boxes, targets = (torch.cat([a, a + b], 1) for a, b in zip(low, size, strict=True))
    weights = (10.0, 10.0, 5.0, 5.0)
    deltas = box_deltas(boxes, targets, weights)
    torch.testing.assert_close(apply_deltas(boxes, deltas[:, None], weights)[:, 0], targets)
    one = apply_deltas(
        torch.tensor([[0.0, 0, 10, 20]]), torch.tensor([[[1.0, 0.5, 99, 0]]]), (1, 1, 1, 1)
    )
    wide = 10 * 1000 / 16 / 2
    torch.testing.assert_close(one[0, 0], torch.tensor([15 - wide, 10, 15 + wide, 30]))
    assert math.isfinite(float(one.sum()))


def test_boxes_are_cut_off_at_the_edges() -> None:
    given = clip_boxes(torch.tensor([[-1.0, 2, 30, 40], [5, -3, 8, 99]]), 20, 10)
    assert given.tolist() == [[0, 2, 10, 20], [5, 0, 8, 20]]


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
        monkeypatch.setattr("costream.nn.roi_align.NUMBERS_AT_ONCE", at_once)
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


side = st.integers(1, 7)
shapes = st.lists(st.tuples(side, side), min_size=1, max_size=3)


def listed(maps: list[Tensor]) -> tuple[MapLayout, Tensor]:
    """Return the layout and the rows of maps of one picture, the last one zeros."""
    layout, rows = flatten_maps(maps)
    return layout, F.pad(rows[0], (0, 0, 0, 1))


@settings(max_examples=60, deadline=None)
@given(shapes, st.floats(0, 1), st.integers(0, 9))
def test_what_a_convolution_changes(sizes: list[tuple[int, int]], share: float, seed: int) -> None:
    torch.manual_seed(seed)
    masks = [(torch.rand(1, 1, *size) < share).float() for size in sizes]
    layout, rows = listed(masks)
    expected = listed([F.max_pool2d(mask, 3, 1, 1) for mask in masks])[1]
    changed = rows[:, 0] > 0
    given = places_affected(changed, layout, range(len(sizes)))
    if changed.sum() > 0.5 * layout.places:
        assert given[:-1].all()
        assert not given[-1]
    else:
        assert torch.equal(given, expected[:, 0] > 0)


@settings(max_examples=60, deadline=None)
@given(shapes, st.floats(0, 1), st.booleans(), st.integers(0, 9))
def test_convolutions_at_some_places(
    sizes: list[tuple[int, int]], share: float, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    layer = nn.Conv2d(3, 2, 3, padding=1, bias=bias).double().requires_grad_(False)
    maps = [torch.randn(1, 3, *size, dtype=torch.float64) for size in sizes]
    layout, rows = listed(maps)
    expected = listed([layer(m) for m in maps])[1]
    changed = torch.rand(len(rows)) < share
    changed[-1] = False
    for levels in (range(len(sizes)), range(len(sizes) - 1, len(sizes))):
        operations = Operations()
        places, out = convolve(rows, layout, levels, changed, layer, operations)
        torch.testing.assert_close(out, expected[places])
        own = slice(layout.starts[levels[0]], len(rows))
        assert set(changed[own].nonzero().flatten().tolist()) <= set((places - own.start).tolist())
        assert operations.linear == len(places) * 54
        if len(places) < layout.places - own.start:
            assert len(places) == changed[own].sum()


def test_many_places_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 2, 3, padding=1).requires_grad_(False)
    maps = [torch.randn(1, 2, 20, 30)]
    layout, rows = listed(maps)
    changed = F.pad(torch.rand(600) < 0.3, (0, 1))
    monkeypatch.setattr("costream.nn.maps.NUMBERS_AT_ONCE", 1)
    places, out = convolve(rows, layout, range(1), changed, layer, Operations())
    assert 64 < len(places) < 300
    torch.testing.assert_close(out, listed([layer(maps[0])])[1][places])
