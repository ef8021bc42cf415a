"""Step benchmarks: equal outputs and counted costs of all implementations."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from costream.bench import audio, encoders, eventful, nystrom, published, skeletons, video3d, vivit
from costream.bench.encoders import steps_table
from costream.bench.timing import fit_norms
from costream.core.errors import UsageError
from costream.core.tables import Table
from costream.models.audio.audio_net import ContinualAudioNet
from costream.models.eventful.backbone import ViTDetBackbone
from costream.models.oad.cooadtr import CoTrans
from costream.models.skeleton.network import KINDS as SKELETON_KINDS
from costream.models.skeleton.network import SkeletonNet
from costream.models.video.video3d.network import VideoNet
from costream.nn.block import EncoderConfig
from kit.eventful_nets import small_backbone
from kit.video_nets import KINDS as VIDEO_KINDS


def rows_of(table: Table) -> dict[str, dict[str, Any]]:
    """Return the rows by implementation, without the version of the package."""
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return {str(row[table.columns[0]]).split(" 1.")[0].split(" 0.")[0]: row for row in rows}


ENCODER_WAYS = [
    "costream",
    "window, scaled_dot_product_attention",
    "window, matmul and softmax",
    "window, nn.TransformerEncoder",
    "continual-inference",
    "bound: weights times one row",
]


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("depth", [1, 2])
def test_every_way_of_an_encoder_gives_the_same_output(depth: int, activation: str) -> None:
    pytest.importorskip("continual", reason="needs pip install continual-inference")
    threads = torch.get_num_threads()
    table = steps_table(EncoderConfig(16, 4, 24, depth, 9, activation=activation), rounds=2)
    assert torch.get_num_threads() == threads
    assert table.columns == encoders.COLUMNS
    rows = rows_of(table)
    assert list(rows) == ENCODER_WAYS
    for name, row in rows.items():
        assert row["median us"] >= row["p10 us"] > 0
        if name == ENCODER_WAYS[-1]:
            assert row["max error"] is None
        elif depth == 1 or not name.startswith("continual-inference"):
            assert row["max error"] < 1e-5  # its two blocks are wrong from step 2 n - 2 on
    assert rows[ENCODER_WAYS[-1]]["x bound"] == 1
    assert rows[ENCODER_WAYS[-1]]["MACs"] == depth * (4 * 16**2 + 2 * 16 * 24)
    assert rows["costream"]["MACs"] < rows[ENCODER_WAYS[1]]["MACs"] < rows[ENCODER_WAYS[3]]["MACs"]
    state = 2 * 9 * 16 if depth == 1 else 4 * 9 * 16
    assert rows["costream"]["state bytes"] == 4 * state + 8


def test_more_than_two_blocks_have_no_peer() -> None:
    table = steps_table(EncoderConfig(8, 2, 8, 3, 5, activation="relu"), rounds=1)
    rows = rows_of(table)
    assert rows["costream"]["max error"] < 1e-5
    assert rows["window, matmul and softmax"]["max error"] < 1e-5


SKELETON_WAYS = [
    "costream",
    "costream, one there",
    "continual-inference",
    "the clip recomputed",
    "bound: its products, 2 there",
    "bound: its products, 1 there",
]
BONES = ((1, 0), (2, 1), (3, 0), (4, 3))


def small_skeleton_net(kind: str) -> SkeletonNet:
    torch.manual_seed(0)
    sizes = {"widths": (8, 8, 16, 32), "strides": (1,) * 4, "kernel": 5, "pool": 6}
    return SkeletonNet(3, 5, BONES, kind=kind, padding="none", **sizes).eval()


@pytest.mark.parametrize("kind", SKELETON_KINDS)
def test_every_way_of_a_skeleton_network_gives_the_same_output(kind: str) -> None:
    pytest.importorskip("continual", reason="needs pip install continual-inference")
    with torch.inference_mode():
        net = small_skeleton_net(kind)
        fit_norms(net, torch.randn(1, 2 * net.layer_timing.receptive_field, 2, 5, 3))
        table = skeletons.compare("small", net, rounds=2)
    rows = rows_of(table)
    assert [n for n in SKELETON_WAYS if kind == "stgcn" or n != SKELETON_WAYS[2]] == [
        name for name, row in rows.items() if row["persons"] is not None
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
    assert rows[SKELETON_WAYS[4]]["MACs"] == 2 * 5 * sum(p.numel() for p in dense) + _beside(net)


def _beside(net: SkeletonNet) -> int:
    """Of the residuals inside graph convolutions, whose names do not say that they convolve."""
    named = net.named_parameters()
    return 10 * sum(p.numel() for n, p in named if n.endswith("gcn_residual.0.weight"))


def small_video_net(kind: str) -> VideoNet:
    torch.manual_seed(0)
    net = VideoNet(3, kind, 32, **{"pool": 3, **VIDEO_KINDS[kind]})
    fit_norms(net, torch.randn(2, 8, 3, 32, 32))
    return net


# Rounding alone makes 1e-5 of a number in float32, more or less by processor; a fault makes 1e-1.
ROUNDED = 5e-5


@pytest.mark.parametrize("kind", VIDEO_KINDS)
def test_every_way_of_a_3d_network_gives_the_same_output(kind: str) -> None:
    if kind == "x3d":
        pytest.importorskip("continual", reason="needs pip install continual-inference")
    with torch.inference_mode():
        net = small_video_net(kind)
        table = video3d.compare("small", net, rounds=1)
    rows = rows_of(table)
    assert list(rows)[::2] == ["costream", "the clip recomputed"]
    assert rows["costream"]["max error"] < ROUNDED
    assert rows["costream"]["MACs"] == net.encoder.count_macs()
    if kind == "x3d":
        assert rows["continual-inference"]["max error"] < ROUNDED
        assert rows["continual-inference"]["state bytes"] > 1000


@pytest.mark.parametrize(
    "make",
    [
        lambda: steps_table(EncoderConfig(8, 2, 8, 1, 5, activation="relu"), rounds=1),
        lambda: skeletons.compare("small", small_skeleton_net("stgcn"), rounds=1),
        lambda: video3d.compare("small", small_video_net("x3d"), rounds=1),
    ],
)
def test_the_peer_may_be_absent(make: Callable[[], Table], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "continual", None)
    with torch.inference_mode():
        table = make()
    peer = next(row for row in table.rows if str(row[0]).startswith("continual-inference"))
    assert set(peer[1:]) == {None}


@pytest.mark.slow
def test_every_way_that_sees_enough_gives_the_same_output() -> None:
    torch.manual_seed(0)
    backbone = ContinualAudioNet(8, (4, 6, 6, 8, 8, 10, 10), 8).eval()
    backbone.mel.fill(16_000, 50, 7800)
    head = CoTrans(3, 8, embed_dim=8, num_heads=2, feedforward=8, window=6, num_positions=9).eval()
    with torch.inference_mode():
        table = audio.compare("cotrans", backbone, head, rounds=2)
    own, window, whole, chunked = rows_of(table).values()
    assert own["max error"] < 1e-4
    assert whole["max error"] < 1e-4
    assert window["max error"] > 1e-3
    assert chunked["max error"] is None
    assert own["MACs"] == chunked["MACs"] < window["MACs"] < whole["MACs"]


def build(variant: str) -> ViTDetBackbone:
    return small_backbone(variant, depth=3, global_blocks=(2,), size=(6, 6))


@pytest.mark.parametrize("fast", [False, True])
def test_every_way_of_token_gates_has_a_row(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costream.bench.eventful.has_fast_bfloat16", lambda: fast)
    with torch.inference_mode():
        table = eventful.compare(build, 6, (4, 8, 12), rounds=2)
    rows = [dict(zip(eventful.COLUMNS, row, strict=True)) for row in table.rows]
    names = ["costream"] * 4 + ["token-wise", "eventful, as published"]
    if fast:
        names = ["dense bfloat16", *names, *["costream, bfloat16"] * 3]
    assert [row["way"] for row in rows] == ["dense float32", *names]
    cost = {(row["way"], row["tokens"]): row["G operations"] for row in rows}
    assert cost["costream", 4] < cost["costream", 8] < cost["dense float32", 36]
    assert cost["costream", 8] <= cost["token-wise", 8]


def test_vivit_is_timed_with_all_and_with_few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"DIM": 24, "DEPTH": 2, "STEP_TOKENS": (8, 4)}.items():
        monkeypatch.setattr(vivit, name, value)
    monkeypatch.setattr(vivit, "EPIC", vivit.DataSet("small", 4, 5))
    table = vivit.vivit_steps_table("vivit", rounds=2)
    ways = [(row[0], row[1]) for row in table.rows]
    gated = [("costream", 8), ("costream", 4), ("costream", 17), ("eventful, as published", 8)]
    assert ways == [("dense", 17), *gated]
    cost = {row[:2]: row[5] for row in table.rows}
    assert cost["costream", 4] < cost["costream", 8] < cost["dense", 17]


def test_steps_are_timed_with_exact_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nystrom, "STEP_SIZES", ((16, 2, 40, 4),))
    table = nystrom.nystrom_steps_table("conystrom", rounds=2)
    rows = [dict(zip(nystrom.COLUMNS, row, strict=True)) for row in table.rows]
    assert [row["landmarks"] for row in rows] == ["continual", "fixed"]
    assert rows[0]["MACs"] > rows[1]["MACs"] > 0
    for row in rows:
        assert row["worth it"] == ("yes" if row["median us"] < row["exact us"] else "no")


@pytest.mark.long
def test_published_networks_are_timed_with_the_published_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(published, "PICTURES", {"yolos": (64, 96), "rf": (64, 96)})
    for name in ("yolos-tiny", "rf-detr-nano"):
        quarter, tenth, alone = rows_of(published.published_steps_table(name, 1)).values()
        assert tenth["MACs"] < quarter["MACs"] < alone["MACs"]
        assert alone["state bytes"] == 0 < quarter["state bytes"]
    one, many = rows_of(published.published_steps_table("yamnet", 1)).values()
    assert many["MACs"] == 16 * one["MACs"]


@pytest.mark.slow
def test_pictures_are_timed_alone_and_four_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"nanodet": (64, 96), "blazepose": (256, 256), "movenet": (64, 96)}
    monkeypatch.setattr(published, "PICTURES", sizes)
    for name in sizes:
        rows = rows_of(published.published_steps_table(name, 1))
        alone, four, *by_place = rows.values()
        assert four["MACs"] == 4 * alone["MACs"] > 0
        assert len(by_place) == (2 if name == "nanodet" else 0)


def test_the_published_file_takes_turns(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    shape = [1, 1, 128, 200]
    infos = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "xy"
    ]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])], "mn", infos[:1], infos[1:]
    )
    opset = [onnx.helper.make_opsetid("", 20)]
    model = onnx.helper.make_model(graph, ir_version=9, opset_imports=opset)
    file = tmp_path / "mn.onnx"
    onnx.save(model, file)
    rows = rows_of(published.published_steps_table("efficientat", 1, 1, file))
    assert [*rows] == ["costream", "16 hops at once", "ONNX Runtime, mn.onnx"]
    with pytest.raises(UsageError, match=r"does not take \[1, 3, 416, 416\]"):
        published.published_steps_table("nanodet", 1, 1, file)
    with pytest.raises(UsageError, match="not for yamnet"):
        published.published_steps_table("yamnet", 1, 1, file)
