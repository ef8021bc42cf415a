"""ViViT-B's operations: the paper's numbers, from the counters of what runs."""

from __future__ import annotations

import pytest
import torch

from costream.bench.eventful import (
    EPIC,
    KINETICS,
    PUBLISHED,
    STEPS,
    VIEWS,
    DataSet,
    action_ops_table,
    count_vivit,
)
from costream.models.eventful.vivit import ViViT
from costream.nn.eventful.gates import Operations, TopTokens
from kit.action_nets import clips, small_vivit


@pytest.mark.parametrize("data", [EPIC, KINETICS])
def test_the_papers_numbers(data: DataSet) -> None:
    for tokens, published in PUBLISHED[data].items():
        assert round(count_vivit(data, "eventful", tokens) / 1e12, 4) == published


@pytest.mark.parametrize("variant", ["eventful", "exact", "token-wise"])
def test_counts_are_the_closed_forms(variant: str) -> None:
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


def test_the_table_has_every_row() -> None:
    table = action_ops_table()
    assert len(table.rows) == sum(map(len, PUBLISHED.values()))
    for row in table.rows:
        assert row[2] == row[3]
        # nothing stays behind, and it costs 4 % more at most
        assert row[4] < 1.04 * row[2]  # type: ignore[operator]
    assert "7.1220" in table.to_text()
