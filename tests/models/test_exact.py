"""Which networks say that their answers are those of recomputing the window, and whether so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import costream.nn as co
from costream.models.build import save_model
from costream.models.compatibility import exactness
from costream.models.converted import ContinualClassifier
from costream.models.oad.conystrom import CoNystrom
from costream.models.oad.cooadtr import CoOadTR
from costream.models.oad.deepcot import DeepCoT
from costream.models.random_init import random_model
from costream.models.streaming import StreamingModel
from kit.runs import records, run
from kit.skeleton_nets import small_net

SIZES: dict[str, Any] = {"embed_dim": 16, "num_heads": 4, "feedforward": 24, "window": 6}


@pytest.mark.parametrize(
    ("kind", "depth", "exact"),
    [(CoOadTR, 1, True), (CoOadTR, 2, True), (DeepCoT, 1, True), (DeepCoT, 2, False)],
)
@torch.no_grad()
def test_answers_of_transformers(kind: type, depth: int, exact: bool) -> None:
    torch.manual_seed(0)
    net, rows = kind(10, 5, depth=depth, positions="none", **SIZES).eval(), torch.randn(1, 40, 10)
    difference = net(rows).logits[:, -1] - net(rows[:, -6:]).logits[:, -1]
    assert net.exact == (float(difference.abs().max()) < 1e-5) == exact


@pytest.mark.parametrize(
    ("form", "exact"), [("stgcn", False), ("stgcn-none-strided", True), ("stgcn-causal", True)]
)
@torch.no_grad()
def test_answers_of_graph_convolutions(form: str, exact: bool) -> None:
    net, x = small_net(form), torch.randn(1, 90, 2, 5, 2, dtype=torch.float64)
    out = net.forward_steps(x, net.init_state()).logits[:, -1]
    newest = 90 - (89 - net.delay) % net.stride  # frames until the last output
    clip = net(x[:, newest - net.receptive_field : newest])
    difference = (clip if clip.dim() == 2 else clip[:, -1]) - out
    assert net.exact == (float(difference.abs().max()) < 1e-5) == exact


def test_answers_of_own_networks() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    conv = nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 2, 3, padding=1))
    deep = co.DeepEncoder(co.EncoderConfig(8, 2, 16, 2, 6))
    windows = {"time_axis": 1, "approximate": ["windowed attention"]}
    for network, exact in (
        (co.convert(conv, torch.zeros(1, 8, 12)), True),
        (co.convert(layer, torch.zeros(1, 12, 8), **windows), False),
        (co.Sequential(co.Encoder(co.EncoderConfig(8, 2, 16, 2, 6)), nn.Linear(8, 2)), True),
        (co.Residual(deep), False),
        (co.Sequential(nn.Conv1d(8, 8, 3), nn.GRU(8, 2)), False),
    ):
        assert ContinualClassifier(network).exact is exact  # type: ignore[arg-type]
    assert not CoNystrom(10, 5, num_landmarks=2, **SIZES).exact


@pytest.mark.parametrize(
    ("name", "frontend", "exact"),
    [
        ("oadtr", None, True),
        ("cooadtr", "cox3d", False),
        ("miniroad", None, True),  # recomputes nothing
        ("testra", None, True),  # the memory of a window is the same in a stream
        ("cmert", None, True),
        ("movinet-a0", None, False),
        ("cox3d-xs", None, False),
    ],
)
def test_models_declare_whether_they_are_exact(
    name: str, frontend: str | None, exact: bool
) -> None:
    model = StreamingModel(*random_model(name, name, {}, frontend))
    assert exactness(model) == ({} if exact else {"exact": False})


def test_the_last_line_says_whether_steps_are_exact(tmp_path: Path) -> None:
    sizes = {"embed_dim": 16, "num_heads": 2, "feedforward": 16, "num_classes": 2}
    sizes |= {"frontend.token_width": 16, "frontend.buckets": 256}
    (tmp_path / "app.log").write_text("could not open disk\n" * 9, "utf-8")
    for depth, words in (
        (1, "the network computed each step once, with the same answer as recomputing its window"),
        (2, "the network computed each step once; recomputing its window can give other answers"),
    ):
        path = tmp_path / f"{depth}.safetensors"
        save_model(path, *random_model("cotext", "small", {**sizes, "depth": depth}))
        given = ("read", tmp_path / "app.log", "-m", path)
        assert f"\n{words}\n" in run(*given, "-f", "table").stdout
        header = records(run(*given, "-f", "jsonl").stdout)[0]
        assert header["options"].get("exact") == (None if depth == 1 else False)
