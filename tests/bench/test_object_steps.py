from __future__ import annotations

import pytest
import torch

from costream.bench.eventful import COLUMNS, compare
from costream.models.eventful.backbone import ViTDetBackbone
from kit.eventful_nets import small_backbone


def build(variant: str) -> ViTDetBackbone:
    return small_backbone(variant, depth=3, global_blocks=(2,), size=(6, 6))


@pytest.mark.parametrize("fast", [False, True])
def test_every_way_has_a_row(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costream.bench.eventful.has_fast_bfloat16", lambda: fast)
    with torch.inference_mode():
        table = compare(build, 6, (4, 8, 12), rounds=2)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in table.rows]
    names = ["costream"] * 4 + ["token-wise", "eventful, as published"]
    if fast:
        names = ["dense bfloat16", *names, *["costream, bfloat16"] * 3]
    assert [row["way"] for row in rows] == ["dense float32", *names]
    cost = {(row["way"], row["tokens"]): row["G operations"] for row in rows}
    assert cost["costream", 4] < cost["costream", 8] < cost["dense float32", 36]
    assert cost["costream", 8] <= cost["token-wise", 8]
