from __future__ import annotations

import pytest

from costream.bench.skeletons import (
    COUNTS,
    PublishedSkeletonCount,
    published_skeleton_macs,
    skeleton_macs,
    skeleton_ops_table,
)

# Billions a prediction: the paper, to two digits after the point, and closer where it was
# counted with the original networks.
EXACT = {"ST-GCN": 16.7281, "AGCN": 18.685, "S-TR": 16.142, "ST-GCN*": 36.9028}
EXACT |= {"CoST-GCN*": 0.1558, "CoAGCN*": 0.1722, "CoS-TR*": 0.1505, "CoST-GCN": 0.268}


@pytest.mark.parametrize("count", COUNTS, ids=lambda count: count.name)
def test_counts_are_those_of_the_paper(count: PublishedSkeletonCount) -> None:
    given = published_skeleton_macs(count) / 1e9
    assert given == pytest.approx(count.published, rel=0.02, abs=0.005)
    assert given == pytest.approx(EXACT.get(count.name, given), rel=0.008)


def test_outputs_that_are_thrown_away_make_the_difference() -> None:
    thrown = next(count for count in COUNTS if count.name == "CoST-GCN")
    kept = PublishedSkeletonCount(thrown.name, thrown.kind, False, True, 0.22, discarded=False)
    assert published_skeleton_macs(kept) / 1e9 == pytest.approx(0.2235, rel=0.008)


def test_what_costream_spends() -> None:
    own = {count.name: skeleton_macs(count) for count in COUNTS}
    assert own["ST-GCN"] / 1e9 == pytest.approx(17.25, rel=0.001)
    classifier = 256 * 60
    for count in COUNTS:
        if count.continual:
            assert skeleton_macs(count, 1) * 2 == pytest.approx(own[count.name] + classifier, abs=8)
            assert own[count.name] < own[count.name.removeprefix("Co")] / 60


def test_the_table_has_every_network() -> None:
    table = skeleton_ops_table()
    assert [row[0] for row in table.rows] == [count.name for count in COUNTS]
    assert [row[2] for row in table.rows] == [count.published for count in COUNTS]
    assert all((row[4] is None) == (not row[0].startswith("Co")) for row in table.rows)
