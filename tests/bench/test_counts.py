"""Operation counts of transformers: the papers' numbers and closed forms."""

from __future__ import annotations

import pytest

from costream.bench.counts import (
    AUDIO_NETWORKS,
    NETWORKS,
    PUBLISHED_RATIO,
    OadSizes,
    attention_ops,
    audio_ops_table,
    oad_step_macs,
    ops_table,
    published_oad_macs,
)

PUBLISHED = {
    3072: (2445.6, 1008.1, 605.5, 410.9, 9.6),
    4096: (2513.5, 1075.7, 673.0, 411.9, 10.6),
}


@pytest.mark.parametrize("width", PUBLISHED)
@pytest.mark.parametrize("network", NETWORKS)
def test_counts_are_within_a_percent_of_the_papers(network: str, width: int) -> None:
    expected = PUBLISHED[width][NETWORKS.index(network)]
    assert published_oad_macs(network, width) / 1e6 == pytest.approx(expected, rel=0.01)


def test_counts_follow_the_sizes() -> None:
    small = OadSizes(embed_dim=4, feedforward=6, window=5, classes=3)
    assert published_oad_macs("CoOadTR-b1", 7, small) == 7 * 4 + 4 * 16 + 2 * 5 * 4 + 48 + 12
    assert published_oad_macs("OadTR-b2", 7, small) == 5 * 7 * 4 + 2 * 5 * (64 + 48) + 5 * 12


def test_two_exact_blocks_cost_little_more_than_half_of_the_published_ones() -> None:
    assert oad_step_macs("CoOadTR-b2", 3072) < 0.55 * published_oad_macs("CoOadTR-b2", 3072)
    assert oad_step_macs("CoOadTR-b1", 3072) == published_oad_macs("CoOadTR-b1", 3072)


def test_the_table_has_every_network_and_both_feature_sets() -> None:
    table = ops_table()
    assert [row[0] for row in table.rows] == list(NETWORKS)
    assert len(set(table.columns)) == len(table.columns) == 7
    for row in table.rows:
        assert row[1] == pytest.approx(row[2], rel=0.01)
        assert row[4] == pytest.approx(row[5], rel=0.01)


def test_attention_is_counted_as_in_the_papers() -> None:
    over, continual = (attention_ops(way, 2, 120, 192) for way in ("window", "cotrans"))
    assert over / continual == pytest.approx(PUBLISHED_RATIO, abs=0.01)
    assert attention_ops("deepcot", 3, 5, 7) == 3 * attention_ops("cotrans", 1, 5, 7)
    with pytest.raises(ValueError, match="one or two blocks"):
        attention_ops("cotrans", 3, 5, 7)


def test_the_audio_table() -> None:
    rows = {row[0]: row for row in audio_ops_table().rows}
    assert list(rows) == [network.name for network in AUDIO_NETWORKS]
    for row in rows.values():
        if row[2] is not None:
            assert row[3] == pytest.approx(row[2], rel=0.01)
    macs = {name: row[-1] for name, row in rows.items()}
    d, n = 192, 120
    outside = 128 * d + 10 * d
    block = 4 * d**2 + 2 * n * d + 2 * d * d
    assert macs["CoTrans-b1"] == pytest.approx((outside + block) / 1e6, abs=1e-3)
    assert macs["DeepCoT, 12 blocks"] == pytest.approx((outside + 12 * block) / 1e6, abs=1e-3)
    assert macs["Trans-b1"] > 90 * macs["CoTrans-b1"]
    assert macs["DeepCoT, 2 blocks"] < 0.05 * macs["CoTrans-b2"]
