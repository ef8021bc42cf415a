from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.nn.eventful.gates import (
    AboveThreshold,
    Operations,
    TopShare,
    TopTokens,
    pass_difference,
    pass_tokens,
)
from kit.eventful_nets import Given


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.integers(-1, 40))
def test_the_largest_errors_are_chosen(errors: list[float], count: int) -> None:
    tensor = torch.tensor(errors, dtype=torch.float64)
    chosen = TopTokens(count).choose(tensor).tolist()
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(max(count, 0), len(errors))
    rest = [e for k, e in enumerate(errors) if k not in chosen]
    assert not rest or not chosen or max(rest) <= min(errors[k] for k in chosen)


def test_shares_are_rounded_down_and_thresholds_strict() -> None:
    errors = torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0])
    assert TopShare(0.5).choose(errors).tolist() == [3, 4]
    assert TopShare(1.0).choose(errors).tolist() == [0, 1, 2, 3, 4]
    assert AboveThreshold(3.0).choose(errors).tolist() == [3, 4]
    assert AboveThreshold(9.0).choose(errors).tolist() == []


def test_a_gate_passes_what_has_moved_away_from_what_it_last_let_pass() -> None:
    reference, operations = torch.zeros(1, 4, 2), Operations()
    x = torch.arange(8.0).view(1, 4, 2)
    chosen = pass_tokens(x, reference, [True], TopTokens(1), operations)
    assert chosen.counts == [4]
    assert chosen.places is None
    assert operations.total == 0
    slow = x.clone()
    for frame in range(1, 6):  # token 2 moves slowly, token 0 jumps once
        slow[0, 2] += 0.25
        slow[0, 0] += float(frame == 2)
        chosen = pass_tokens(slow, reference, [False], AboveThreshold(1.0), operations)
        expected = {2: [0], 3: [2]}.get(frame, [])
        assert chosen.tokens[0].tolist() == expected
        assert torch.equal(chosen.take(slow), slow[0, expected])
    assert operations.total == operations.gate == 5 * 8
    slow += 7
    assert float(reference.max()) == 7  # a copy, not the frame itself


def test_a_gate_that_remembers_all_never_sees_slow_changes() -> None:
    reference, x = torch.zeros(1, 3, 2), torch.zeros(1, 3, 2)
    for _ in range(20):
        x = x + 0.25
        chosen = pass_tokens(x, reference, [False], AboveThreshold(1.0), Operations(), True)
        assert chosen.counts == [0]
    assert torch.equal(reference, x)


def test_streams_choose_for_themselves() -> None:
    x, reference, buffer = torch.randn(3, 4, 2), torch.zeros(3, 4, 2), torch.zeros(3, 4, 2)
    chosen = pass_tokens(
        x, reference, [False, True, False], Given(torch.tensor([1, 3])), Operations()
    )
    assert chosen.counts == [2, 4, 2]
    rows = chosen.take(x)
    assert [len(part) for part in chosen.split(rows)] == [2, 4, 2]
    chosen.put(rows, buffer)
    expected = x.clone()
    expected[[0, 2, 0, 2], [0, 0, 2, 2]] = 0
    assert torch.equal(buffer, expected)
    assert torch.equal(reference, expected)


@pytest.mark.parametrize("columns", [[], [1], [0, 2]])
def test_a_delta_gate_gives_values_and_how_they_changed(columns: list[int]) -> None:
    x, reference, operations = torch.randn(2, 3, 4), torch.randn(2, 3, 4), Operations()
    before, index = reference.clone(), torch.tensor(columns, dtype=torch.int64)
    values, change = pass_difference(x, reference, index, operations)
    assert torch.equal(values, x[:, columns])
    assert torch.equal(change, x[:, columns] - before[:, columns])
    before[:, columns] = x[:, columns]
    assert torch.equal(reference, before)
    assert operations.gate == 24
