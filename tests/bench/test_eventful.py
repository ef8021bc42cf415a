"""Benchmark of token-gated networks: the papers' operation counts, and a row per implementation."""

from __future__ import annotations

import pytest
import torch

from costream.bench.eventful import (
    BASE,
    COLUMNS,
    EPIC,
    GRIDS,
    KINETICS,
    PUBLISHED,
    ROWS,
    STEPS,
    VIEWS,
    DataSet,
    PublishedRow,
    action_ops_table,
    compare,
    count_vitdet,
    count_vivit,
    mean,
    object_ops_table,
)
from costream.models.eventful.backbone import ViTDetBackbone
from costream.models.eventful.vivit import ViViT
from costream.nn.eventful.gates import Operations, TopTokens
from kit.action_nets import clips, small_vivit
from kit.eventful_nets import small_backbone


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.pixels}-{row.tokens}")
def test_counts_are_those_of_the_paper_to_the_printed_digit(row: PublishedRow) -> None:
    side = GRIDS[row.pixels]
    assert round(mean("eventful", side, row.tokens), 1) == row.eventful
    assert round(mean("token-wise", side, row.tokens), 1) == row.token_wise
    assert round(mean("spatiotemporal", side, row.tokens, row.pooled), 1) == row.spatiotemporal


@pytest.mark.parametrize("pixels", BASE)
def test_of_whole_frames_too(pixels: int) -> None:
    side = GRIDS[pixels]
    assert round(count_vitdet("token-wise", side, None) / 1e9, 1) == BASE[pixels][0]
    assert round(count_vitdet("spatial", side, None) / 1e9, 1) == BASE[pixels][1]


@pytest.mark.parametrize("variant", ["eventful", "token-wise", "exact", "spatiotemporal"])
def test_counts_are_the_closed_forms(variant: str) -> None:
    with torch.device("meta"):
        backbone = ViTDetBackbone(variant=variant)
    for row in ROWS:
        side, pooled = GRIDS[row.pixels], row.pooled if variant == "spatiotemporal" else None
        expected = backbone.count_macs(side, side, row.tokens, pooled)
        assert count_vitdet(variant, side, row.tokens, pooled) == expected
        assert count_vitdet(variant, side, None) == backbone.count_macs(side, side)


def test_the_default_costs_no_more_than_token_wise_and_knows_when_dense_is_cheaper() -> None:
    for row in ROWS:
        side = GRIDS[row.pixels]
        own, token_wise = (count_vitdet(v, side, row.tokens) for v in ("exact", "token-wise"))
        assert own == token_wise if 2 * row.tokens >= side**2 else own < token_wise


def test_the_table_has_every_row() -> None:
    table = object_ops_table()
    assert len(table.rows) == len(ROWS) + len(BASE)
    for row in table.rows:
        assert row[2::2][:3] == row[3::2]


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


@pytest.mark.parametrize("data", [EPIC, KINETICS])
def test_the_papers_numbers_of_vivit(data: DataSet) -> None:
    for tokens, published in PUBLISHED[data].items():
        assert round(count_vivit(data, "eventful", tokens) / 1e12, 4) == published


@pytest.mark.parametrize("variant", ["eventful", "exact", "token-wise"])
def test_counts_of_vivit_are_the_closed_forms(variant: str) -> None:
    with torch.device("meta"):
        net = ViViT(400, variant=variant)
    spatial = net.spatial_model
    ends = net.temporal_model.count_macs() + 768 * 400 + 400
    for tokens in (None, 96, 24):
        others = (STEPS - 1) * spatial.count_macs(tokens)
        assert count_vivit(KINETICS, variant, tokens) == VIEWS * (
            spatial.count_macs() + others + ends
        )


@pytest.mark.parametrize("tokens", [3, 10])
def test_a_clip_that_runs_spends_what_is_counted(tokens: int) -> None:
    net, spent = small_vivit(variant="eventful"), Operations()
    net.forward_clip(clips(3, 10), TopTokens(tokens), spent)
    spatial, embedding = net.spatial_model, net.embedding.count_macs(9)
    steps = spatial.count_macs() + 4 * spatial.count_macs(tokens) + 5 * embedding
    with torch.no_grad():
        expected = steps + net.temporal_model.count_macs() + 16 * 3 + 3
    assert spent.total == 3 * expected


def test_the_table_of_vivit_has_every_row() -> None:
    table = action_ops_table()
    assert len(table.rows) == sum(map(len, PUBLISHED.values()))
    for row in table.rows:
        assert row[2] == row[3]
        # nothing stays behind, and it costs 4 % more at most
        assert row[4] < 1.04 * row[2]  # type: ignore[operator]
    assert "7.1220" in table.to_text()
