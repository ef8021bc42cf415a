from __future__ import annotations

import sys

import pytest
import torch

from costream.bench.skeletons import COLUMNS, compare
from costream.bench.timing import fit_norms
from costream.models.skeleton.network import KINDS, SkeletonNet

WAYS = [
    "costream",
    "costream, one there",
    "continual-inference",
    "the clip recomputed",
    "bound: its products, 2 there",
    "bound: its products, 1 there",
]
BONES = ((1, 0), (2, 1), (3, 0), (4, 3))


def small_net(kind: str) -> SkeletonNet:
    torch.manual_seed(0)
    sizes = {"widths": (8, 8, 16, 32), "strides": (1,) * 4, "kernel": 5, "pool": 6}
    return SkeletonNet(3, 5, BONES, kind=kind, padding="none", **sizes).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_gives_the_same_output(kind: str) -> None:
    pytest.importorskip("continual", reason="needs pip install continual-inference")
    with torch.inference_mode():
        net = small_net(kind)
        fit_norms(net, torch.randn(1, 2 * net.layer_timing.receptive_field, 2, 5, 3))
        table = compare("small", net, rounds=2)
    rows = {str(row[0]): dict(zip(COLUMNS, row, strict=True)) for row in table.rows}
    assert [n for n in WAYS if kind == "stgcn" or n != WAYS[2]] == [
        name.split(" 1.")[0] for name, row in rows.items() if row["persons"] is not None
    ]
    for name, row in rows.items():
        if row["persons"] is None:
            continue
        assert row["median us"] >= row["p10 us"] > 0
        if name.startswith("bound"):
            assert row["max error"] is None
            assert row["x bound"] == 1
        else:
            assert row["max error"] < 1e-5
            assert row["state bytes"] > 1000
    assert rows["costream"]["MACs"] == net.count_macs()
    assert rows["costream, one there"]["MACs"] == net.count_macs(1)
    assert rows["the clip recomputed"]["MACs"] == net.count_clip_macs(net.window)
    dense = [p for n, p in net.named_parameters() if "conv" in n and n.endswith("weight")]
    assert rows[WAYS[4]]["MACs"] == 2 * 5 * sum(p.numel() for p in dense) + _beside(net)


def _beside(net: SkeletonNet) -> int:
    """Of the residuals inside graph convolutions, whose names do not say that they convolve."""
    named = net.named_parameters()
    return 10 * sum(p.numel() for n, p in named if n.endswith("gcn_residual.0.weight"))


def test_the_peer_may_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "continual", None)
    with torch.inference_mode():
        table = compare("small", small_net("stgcn"), rounds=1)
    peer = next(row for row in table.rows if str(row[0]).startswith("continual-inference"))
    assert set(peer[1:]) == {None}
