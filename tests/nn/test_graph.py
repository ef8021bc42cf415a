"""Spatial units of skeleton networks and what they fold to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from costream.nn.graph import (
    AdaptiveGraphConvolution,
    GraphConvolution,
    SpatialAttention,
    adjacency,
)
from kit.skeleton_nets import BONES, NTU_BONES, randomise

REFERENCES = Path(__file__).resolve().parents[2].parent / "shared/refs/skeleton"
OPENPOSE = (
    *((4, 3), (3, 2), (7, 6), (6, 5), (13, 12), (12, 11), (10, 9), (9, 8), (11, 5), (8, 2)),
    *((5, 1), (2, 1), (0, 1), (15, 0), (14, 0), (17, 15), (16, 14)),
)
COCO = (
    *((15, 13), (13, 11), (16, 14), (14, 12), (11, 5), (12, 6), (9, 7), (7, 5), (10, 8), (8, 6)),
    *((5, 0), (6, 0), (1, 0), (3, 1), (2, 0), (4, 2)),
)
PYSKL_NTU = (*NTU_BONES[:20], (21, 7), (22, 7), (23, 11), (24, 11))


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def clip(frames: int = 6) -> Tensor:
    return torch.randn(2, frames, 5, 3)


def ready(unit: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        randomise(unit)
    return unit.double().eval()


def by_hand(unit: GraphConvolution, x: Tensor, graph: Tensor) -> Tensor:
    """The unit written down from its definition; ``graph`` [..., 3, V, V] of each frame."""
    graph = graph.expand(*x.shape[:2], 3, 5, 5)
    total: Tensor = torch.zeros(())
    for k, conv in enumerate(unit.g_conv):
        weight = conv.weight[:, :, 0, 0]
        if unit.conv_first:
            y = torch.einsum("ntvc,oc->ntvo", x, weight) + conv.bias
            total = total + torch.einsum("ntvo,ntvw->ntwo", y, graph[:, :, k])
        else:
            y = torch.einsum("ntvc,ntvw->ntwc", x, graph[:, :, k])
            total = total + torch.einsum("ntwc,oc->ntwo", y, weight) + conv.bias
    y = normalised(unit.bn, total)
    if unit.residual and x.shape[3] == y.shape[3]:
        y = y + x
    elif unit.residual:
        conv, norm = unit.gcn_residual
        own = torch.einsum("ntvc,oc->ntvo", x, conv.weight[:, :, 0, 0]) + conv.bias
        y = y + normalised(norm, own)
    return y.relu()


def normalised(norm: torch.nn.BatchNorm2d, x: Tensor) -> Tensor:
    return (x - norm.running_mean) / (norm.running_var + 1e-5).sqrt() * norm.weight + norm.bias


@pytest.mark.skipif(not REFERENCES.exists(), reason="needs ../shared/refs beside the repository")
@pytest.mark.parametrize(
    ("name", "joints", "bones", "centre", "partition"),
    [
        ("continual_ntu25", 25, NTU_BONES, 20, "in_out"),
        ("continual_kinetics18", 18, OPENPOSE, 1, "in_out"),
        ("stgcn_openpose_spatial", 18, OPENPOSE, 1, "distance"),
        ("stgcn_ntu-rgb+d_spatial", 25, NTU_BONES, 20, "distance"),
        ("pyskl_openpose_spatial", 18, OPENPOSE, 1, "in_out"),
        ("pyskl_openpose_stgcn_spatial", 18, OPENPOSE, 1, "distance"),
        ("pyskl_nturgb+d_spatial", 25, PYSKL_NTU, 20, "in_out"),
        ("pyskl_nturgb+d_stgcn_spatial", 25, PYSKL_NTU, 20, "distance"),
        ("pyskl_coco_spatial", 17, COCO, 0, "in_out"),
        ("pyskl_coco_stgcn_spatial", 17, COCO, 0, "distance"),
    ],
)
def test_published_graphs(
    name: str, joints: int, bones: tuple[tuple[int, int], ...], centre: int, partition: str
) -> None:
    expected = np.load(REFERENCES / "adjacency.npz")[name].astype(np.float32)
    given = adjacency(joints, bones, centre, partition)
    assert given.dtype == torch.float32
    assert np.abs(given.numpy() - expected).max() <= 1e-7


def test_partitions_of_a_small_body() -> None:
    # 0 is the centre; 1 and 3 hang on it, 2 on 1, 4 on 3.
    itself, inward, outward = adjacency(5, BONES, 0)
    assert torch.equal(itself, torch.eye(5, dtype=torch.float32))
    assert inward.nonzero().tolist() == [[0, 1], [0, 3], [1, 2], [3, 4]]
    assert outward[:, 0].tolist() == [0, 0.5, 0, 0.5, 0]
    same, far, near = adjacency(5, BONES, 0, "distance")
    assert torch.diag(same).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 2, 1 / 3, 1 / 2])
    assert far.nonzero().tolist() == [[1, 0], [2, 1], [3, 0], [4, 3]]
    assert near.nonzero().tolist() == [[0, 1], [0, 3], [1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("bones", "centre", "partition", "message"),
    [
        (BONES, 0, "near", "partition 'near'"),
        (((5, 0),), 0, "in_out", "joint 5 of bones"),
        (BONES, 7, "in_out", "joint 7 of bones or centre is not one of 5 joints"),
    ],
)
def test_graphs_that_cannot_be(
    bones: tuple[tuple[int, int], ...], centre: int, partition: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        adjacency(5, bones, centre, partition)


@pytest.mark.parametrize("width", [3, 8])
@pytest.mark.parametrize("options", [{}, {"conv_first": True}, {"residual": False}])
def test_graph_convolution_and_its_fold(width: int, options: dict[str, bool]) -> None:
    unit, x = ready(GraphConvolution(3, width, adjacency(5, BONES, 0), **options)), clip()
    expected = by_hand(unit, x, unit.A * unit.graph_attn)
    torch.testing.assert_close(unit(x), expected)
    torch.testing.assert_close(unit.fold()(x.flatten(0, 1)), expected.flatten(0, 1))


@pytest.mark.parametrize("attention", ["frame", "clip"])
def test_adaptive_graphs(attention: str) -> None:
    unit = ready(AdaptiveGraphConvolution(3, 8, adjacency(5, BONES, 0), attention=attention))
    x = clip()
    graphs = []
    for k in range(3):
        a = torch.einsum("ntvc,oc->ntvo", x, unit.a_conv[k].weight[:, :, 0, 0])
        b = torch.einsum("ntvc,oc->ntvo", x, unit.b_conv[k].weight[:, :, 0, 0])
        a, b = a + unit.a_conv[k].bias, b + unit.b_conv[k].bias
        logits = torch.einsum("ntvc,ntwc->ntvw", a, b) / 2  # 8 / 4
        if attention == "clip":
            logits = logits.mean(1, keepdim=True)
        weights = logits.exp() / logits.exp().sum(2, keepdim=True)
        graphs.append(unit.A[k] + unit.graph_attn[k] + weights)
    expected = by_hand(unit, x, torch.stack(graphs, 2))
    torch.testing.assert_close(unit(x), expected)
    if attention == "frame":
        torch.testing.assert_close(unit.fold()(x.flatten(0, 1)), expected.flatten(0, 1))


def test_compatible_graphs_mix_no_joints() -> None:
    unit = AdaptiveGraphConvolution(3, 8, adjacency(5, BONES, 0), compat="continual-skeletons")
    ready(unit)
    x, share = clip(), 1 + (unit.A + unit.graph_attn).sum(2)
    expected = by_hand(unit, x, torch.stack([torch.diag(row) for row in share]))
    torch.testing.assert_close(unit(x), expected)
    torch.testing.assert_close(unit.fold()(x.flatten(0, 1)), expected.flatten(0, 1))
    other = x.clone()
    other[:, :, 2] += 1
    assert (unit(other) - unit(x)).abs().amax((0, 1, 3)).nonzero().flatten().tolist() == [2]


def test_macs_count_every_product() -> None:
    graph = adjacency(5, BONES, 0)
    assert GraphConvolution(4, 4, graph).count_macs() == 3 * 25 * 4 + 5 * 3 * 4 * 4
    wider = GraphConvolution(4, 8, graph).count_macs()
    assert wider == 3 * 25 * 4 + 5 * 4 * 4 * 8
    adaptive = AdaptiveGraphConvolution(4, 8, graph)
    assert adaptive.count_macs() == wider + 2 * 3 * 5 * 4 * 2 + 3 * 25 * 2
    compat = AdaptiveGraphConvolution(4, 8, graph, compat="continual-skeletons")
    assert compat.count_macs() == wider


@pytest.mark.parametrize("in_width", [6, 32])
def test_attention_among_joints_and_its_fold(in_width: int) -> None:
    torch.manual_seed(0)
    unit = SpatialAttention(in_width, 32, 5)
    with torch.no_grad():
        randomise(unit)
        unit.double().eval()
        x = torch.randn(2, 3, 5, in_width, dtype=torch.float64)
        norm, first, last = unit.data_bn, *unit.attention_conv.values()
        expected = torch.zeros(2, 3, 5, 32, dtype=torch.float64)
        for n in range(2):
            for t in range(3):
                flat = x[n, t].T.flatten()  # feature c * V + v
                flat = (flat - norm.running_mean) / (norm.running_var + 1e-5).sqrt()
                frame = (flat * norm.weight + norm.bias).view(in_width, 5).T
                q, k, v = (frame @ first.weight[:, :, 0, 0].T + first.bias).split([8, 8, 32], 1)
                heads = []
                for h in range(8):
                    logits = q[:, h : h + 1] @ k[:, h : h + 1].T  # (32 / 32) ** -0.5 is 1
                    heads.append(logits.softmax(1) @ v[:, 4 * h : 4 * h + 4])
                y = torch.cat(heads, 1) @ last.weight[:, :, 0, 0].T + last.bias
                y = y + x[n, t] if in_width == 32 else y
                y = (y - unit.bn.running_mean) / (unit.bn.running_var + 1e-5).sqrt()
                expected[n, t] = (y * unit.bn.weight + unit.bn.bias).relu()
        torch.testing.assert_close(unit(x), expected)
        torch.testing.assert_close(unit.fold()(x.flatten(0, 1)), expected.flatten(0, 1))


def test_queries_are_scaled_by_the_width_of_a_head() -> None:
    torch.manual_seed(0)
    unit = SpatialAttention(64, 64, 5)
    with torch.no_grad():
        randomise(unit)
        unit.double().eval()
        x = torch.randn(1, 2, 5, 64, dtype=torch.float64)
        expected = unit(x)
        torch.testing.assert_close(unit.fold()(x[0]), expected[0])
        unit.attention_conv["qkv_conv"].weight[:16] *= 2**-0.5  # what heads of width 2 divide by
        unit.attention_conv["qkv_conv"].bias[:16] *= 2**-0.5
        assert (unit(x) - expected).abs().max() > 1e-4


def test_widths_and_macs() -> None:
    with pytest.raises(ValueError, match="width 40 of attention is not a multiple of 32"):
        SpatialAttention(8, 40, 5)
    count = SpatialAttention(6, 32, 5).count_macs()
    assert count == 5 * 6 * 48 + 25 * (8 + 32) + 5 * 32 * 32
