from __future__ import annotations

import pytest
import torch

from costream.bench.eventful import (
    BASE,
    GRIDS,
    ROWS,
    PublishedRow,
    count_vitdet,
    mean,
    object_ops_table,
)
from costream.models.eventful.backbone import ViTDetBackbone


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
