"""Benchmark of 3D networks: published counts, equal outputs of all implementations."""

from __future__ import annotations

import sys
from functools import cache

import pytest
import torch

from costream.bench import video3d
from costream.bench.timing import fit_norms
from costream.bench.video3d import (
    COLUMNS,
    COUNTS,
    PublishedVideoCount,
    build_net,
    compare,
    published_video_macs,
    video_ops_table,
)
from costream.models.video3d import VideoNet
from costream.nn.pooling import TemporalMean
from costream.nn.timing import in_sequence
from costream.nn.video3d.sizes import find_size
from kit.video_nets import KINDS


@cache
def published(name: str) -> VideoNet:
    with torch.device("meta"):
        return build_net(name)


@pytest.mark.parametrize("count", COUNTS, ids=lambda count: count.name)
def test_counts_are_those_of_the_paper(count: PublishedVideoCount) -> None:
    size = find_size(count.name)
    assert size is not None
    net = published(count.name)
    assert published_video_macs(net, size.frames) / 1e6 == pytest.approx(count.clip, rel=1e-3)
    assert published_video_macs(net, None) / 1e6 == pytest.approx(count.step, rel=1e-3)
    assert net.count_clip_macs(size.frames) < published_video_macs(net, size.frames)
    assert net.count_macs() < published_video_macs(net, None)


# rf, padding, delay; millions of parameters
PLACES = {
    "x3d-s": (69, 28, 40, 3.79),
    "x3d-m": (72, 28, 43, 3.79),
    "x3d-l": (130, 57, 72, 6.15),
    "slow": (26, 9, 16, 32.45),
    "i3d": (42, 17, 24, 28.04),
}
EXTENDED = {"x3d-s": (120, 28, 91), "x3d-m": (120, 28, 91), "x3d-l": (178, 57, 120)}


@pytest.mark.parametrize("name", PLACES)
def test_places_in_time_and_parameters(name: str) -> None:
    net = published(name)
    assert (net.receptive_field, net.padding, net.delay) == PLACES[name][:3]
    weights = sum(p.numel() for p in net.parameters()) / 1e6
    assert weights == pytest.approx(PLACES[name][3], abs=0.005)
    if name in EXTENDED:
        wide = in_sequence(net.encoder.layer_timing, TemporalMean(64))
        assert (wide.receptive_field, wide.padding, wide.delay) == EXTENDED[name]
    assert net.stride == (2 if name == "i3d" else 1)


def test_the_table_has_every_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video3d, "build_net", published)
    table = video_ops_table()
    names = [name for count in COUNTS for name in (count.name, f"co{count.name}")]
    assert [row[0] for row in table.rows] == names


def small(kind: str) -> VideoNet:
    torch.manual_seed(0)
    net = VideoNet(3, kind, 32, **{"pool": 3, **KINDS[kind]})
    fit_norms(net, torch.randn(2, 8, 3, 32, 32))
    return net


# Rounding alone makes 1e-5 of a number in float32, more or less by processor; a fault makes 1e-1.
ROUNDED = 5e-5


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_gives_the_same_output(kind: str) -> None:
    if kind == "x3d":
        pytest.importorskip("continual", reason="needs pip install continual-inference")
    with torch.inference_mode():
        net = small(kind)
        table = compare("small", net, rounds=1)
    rows = {str(row[0]).split(" 1.")[0]: dict(zip(COLUMNS, row, strict=True)) for row in table.rows}
    assert list(rows)[::2] == ["costream", "the clip recomputed"]
    assert rows["costream"]["max error"] < ROUNDED
    assert rows["costream"]["MACs"] == net.encoder.count_macs()
    if kind == "x3d":
        assert rows["continual-inference"]["max error"] < ROUNDED
        assert rows["continual-inference"]["state bytes"] > 1000


def test_the_peer_may_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "continual", None)
    with torch.inference_mode():
        table = compare("small", small("x3d"), rounds=1)
    assert set(table.rows[1][1:]) == {None}
