"""Benchmark of the audio network: exactness and cost of each implementation."""

from __future__ import annotations

import torch

from costream.bench.audio import COLUMNS, compare
from costream.frontends.audio import ContinualAudioNet
from costream.models.oad.cooadtr import CoTrans


def test_every_way_that_sees_enough_gives_the_same_output():
    torch.manual_seed(0)
    backbone = ContinualAudioNet(8, (4, 6, 6, 8, 8, 10, 10), 8).eval()
    backbone.mel.fill(16_000, 50, 7800)
    head = CoTrans(3, 8, embed_dim=8, num_heads=2, feedforward=8, window=6, num_positions=9).eval()
    with torch.inference_mode():
        table = compare("cotrans", backbone, head, rounds=2)
    rows = {str(row[0]): dict(zip(COLUMNS, row, strict=True)) for row in table.rows}
    own, window, whole, chunked = rows.values()
    assert own["max error"] < 1e-4
    assert whole["max error"] < 1e-4
    assert window["max error"] > 1e-3
    assert chunked["max error"] is None
    assert own["MACs"] == chunked["MACs"] < window["MACs"] < whole["MACs"]
