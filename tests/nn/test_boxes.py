from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from costream.nn.boxes import apply_deltas, areas, box_deltas, clip_boxes, pairwise_iou, suppress

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
    given = suppress(boxes, torch.tensor(scores), torch.tensor(groups), threshold)
    assert given.tolist() == greedy(boxes, scores, groups, threshold)


def test_suppression_of_groups_of_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    low, groups = 30 * torch.rand(400, 2), (torch.rand(400) * 5).exp().long()
    boxes = torch.cat([low, low + 20 * torch.rand(400, 2)], 1)
    scores = torch.rand(400)
    expected = greedy(boxes, scores.tolist(), groups.tolist(), 0.3)
    for at_once in (1, 20_000, 1 << 19):
        monkeypatch.setattr("costream.nn.boxes._PAIRS", at_once)
        assert suppress(boxes, scores, groups, 0.3).tolist() == expected


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
