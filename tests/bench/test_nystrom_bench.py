"""Benchmark of Nyström attention: closed forms, memory, timed steps."""

from __future__ import annotations

import pytest

from costream.bench import nystrom
from costream.bench.nystrom import (
    COLUMNS,
    SIZES,
    average_ops,
    exact_memory,
    landmark_memory,
    nystrom_ops_table,
    nystrom_steps_table,
)


@pytest.mark.parametrize("sizes", SIZES[:2])
def test_closed_forms_are_as_printed(sizes) -> None:
    assert average_ops(sizes, False, False) / 1e6 == pytest.approx(sizes.printed, rel=0.005)


def test_fixed_landmarks_save_operations_and_continual_ones_in_long_windows_only() -> None:
    def beside(sizes, landmarks: str) -> float:
        rows = {row[0]: row for row in nystrom_ops_table(sizes).rows}
        assert rows["single-output"][4] == 1
        return float(rows[f"single-output, Nyström, {landmarks}"][4])

    _, thumos, long = SIZES
    assert beside(thumos, "fixed") < 0.6
    assert beside(thumos, "continual") > 1
    assert max(beside(long, "fixed"), beside(long, "continual")) < 0.4


def test_memory_is_that_of_the_tensors_the_papers_keep() -> None:
    """Against lists of their shapes."""
    sizes = SIZES[1]
    n, m, d = sizes.window, sizes.landmarks, sizes.width
    rows, landmarks = (n, d), (m, d)
    usual = [rows, rows, landmarks, landmarks, landmarks, (m, m), (m, 1)]
    changing = [rows, (m, m), (m, 1), (1, d), (1, d)]
    lists = {
        (False, True): usual,
        (False, False): usual + changing,
        (True, True): [*usual, (n, m)],
        (True, False): usual + changing + [(n, m), (n, m), (n, 1)],
    }
    for (retroactive, fixed), shapes in lists.items():
        expected = sum(a * b for a, b in shapes)
        assert landmark_memory(sizes, retroactive, fixed) == expected
    assert exact_memory(sizes, False) == 2 * 63 * 1024
    assert exact_memory(sizes, True) == 4 * 63 * 1024 + 63


def test_exact_attention_keeps_here_what_it_does_in_the_paper() -> None:
    for sizes in SIZES:
        rows = {row[0]: row for row in nystrom_ops_table(sizes).rows}
        assert rows["single-output"][6] == pytest.approx(rows["single-output"][5], rel=0.1)
        assert rows["window"][5] is None


def test_steps_are_timed_beside_exact_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nystrom, "STEP_SIZES", ((16, 2, 40, 4),))
    table = nystrom_steps_table("conystrom", rounds=2)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in table.rows]
    assert [row["landmarks"] for row in rows] == ["continual", "fixed"]
    assert rows[0]["MACs"] > rows[1]["MACs"] > 0
    for row in rows:
        assert row["worth it"] == ("yes" if row["median us"] < row["exact us"] else "no")
