from __future__ import annotations

import pytest

from costream.bench.counts import AUDIO_NETWORKS, PUBLISHED_RATIO, attention_ops, audio_ops_table


def test_attention_is_counted_as_in_the_papers() -> None:
    over, continual = (attention_ops(way, 2, 120, 192) for way in ("window", "cotrans"))
    assert over / continual == pytest.approx(PUBLISHED_RATIO, abs=0.01)
    assert attention_ops("deepcot", 3, 5, 7) == 3 * attention_ops("cotrans", 1, 5, 7)
    with pytest.raises(ValueError, match="one or two blocks"):
        attention_ops("cotrans", 3, 5, 7)


def test_the_table() -> None:
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
