"""Benchmark of the encoder step: equal outputs of all implementations."""

from __future__ import annotations

import sys

import pytest
import torch

from costream.bench.encoders import COLUMNS, steps_table
from costream.nn.block import EncoderConfig

WAYS = [
    "costream",
    "window, scaled_dot_product_attention",
    "window, matmul and softmax",
    "window, nn.TransformerEncoder",
    "continual-inference",
    "bound: weights times one row",
]


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("depth", [1, 2])
def test_every_way_gives_the_same_output(depth: int, activation: str) -> None:
    pytest.importorskip("continual", reason="needs pip install continual-inference")
    threads = torch.get_num_threads()
    table = steps_table(EncoderConfig(16, 4, 24, depth, 9, activation=activation), rounds=2)
    assert torch.get_num_threads() == threads
    assert table.columns == COLUMNS
    rows = {str(row[0]): dict(zip(COLUMNS, row, strict=True)) for row in table.rows}
    assert [name.split(" 1")[0] for name in rows] == WAYS
    for name, row in rows.items():
        assert row["median us"] >= row["p10 us"] > 0
        if name == WAYS[-1]:
            assert row["max error"] is None
        elif depth == 1 or not name.startswith("continual-inference"):
            assert row["max error"] < 1e-5  # its two blocks are wrong from step 2 n - 2 on
    assert rows[WAYS[-1]]["x bound"] == 1
    assert rows[WAYS[-1]]["MACs"] == depth * (4 * 16**2 + 2 * 16 * 24)
    assert rows["costream"]["MACs"] < rows[WAYS[1]]["MACs"] < rows[WAYS[3]]["MACs"]
    state = 2 * 9 * 16 if depth == 1 else 4 * 9 * 16
    assert rows["costream"]["state bytes"] == 4 * state + 8


def test_the_peer_may_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "continual", None)
    table = steps_table(EncoderConfig(8, 2, 8, 1, 5, activation="relu"), rounds=1)
    peer = next(row for row in table.rows if str(row[0]).startswith("continual-inference"))
    assert set(peer[1:]) == {None}


def test_more_than_two_blocks_have_no_peer() -> None:
    table = steps_table(EncoderConfig(8, 2, 8, 3, 5, activation="relu"), rounds=1)
    errors = dict(zip([row[0] for row in table.rows], [row[-1] for row in table.rows], strict=True))
    assert errors["costream"] < 1e-5
    assert errors["window, matmul and softmax"] < 1e-5
