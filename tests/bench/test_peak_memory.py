"""Peak memory: of calls whose tensors are known, and the table of attention."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from costream.bench.peak_memory import attention_memory_table, peak_numbers


def test_the_peak_is_of_what_exists_together():
    a = torch.randn(10, 10)
    assert peak_numbers(lambda: a.t()) == 0
    assert peak_numbers(lambda: (a + 1).sum()) == 101
    assert peak_numbers(lambda: a.view(100) + a.view(-1)) == 100

    def one_after_another() -> Tensor:
        b = a + 1
        c = b.t() + 1
        del b
        return c[:2].clone() + c[0, 0]

    assert peak_numbers(one_after_another) == 200


@pytest.mark.long
def test_continual_attention_makes_less_than_its_window():
    rows = {row[:2]: row[2:] for row in attention_memory_table().rows}
    for sizes, n, d in (("GTZAN", 120, 192), ("THUMOS14", 64, 1024)):
        _, least, most = rows["single-output", sizes]
        assert least == most < rows["window", sizes][1] / 10
        assert rows["window", sizes][0] == n * d / 1e3
        _, least, most = rows["single-output, Nyström, continual", sizes]
        assert least < most  # with a new landmark
