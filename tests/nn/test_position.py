from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from costream.nn.position import RecyclingPositions, RotaryPositions, cyclic_table, turn_pairs

REFERENCE = (
    Path(__file__).resolve().parents[2].parent / "shared/refs/transformers/cyclic_pe_127_32.npz"
)


@pytest.mark.parametrize(("rows", "learned"), [(5, True), (13, False), (1, True)])
def test_step_t_gets_row_t_modulo_the_table(rows: int, learned: bool) -> None:
    positions = RecyclingPositions(rows, 8, learned)
    x = torch.randn(2, 30, 8)
    expected = x + positions.table[torch.arange(30) % rows]
    torch.testing.assert_close(positions(x), expected)
    state = positions.init_state(2)
    steps = [positions.forward_step(x[:, t], state) for t in range(11)]
    rest = positions.forward_steps(x[:, 11:], state)
    torch.testing.assert_close(torch.cat([torch.stack(steps, 1), rest], 1), expected)
    assert state.steps.tolist() == [30, 30]


def test_every_stream_has_its_own_index() -> None:
    positions = RecyclingPositions(6, 4)
    x = torch.zeros(3, 9, 4)
    offsets = torch.tensor([0, 4, 11])
    out = positions(x, offsets)
    for stream, offset in enumerate(offsets.tolist()):
        torch.testing.assert_close(out[stream], positions(x[:1], offset)[0])
    state = positions.init_state(3)
    state.steps.copy_(offsets)
    torch.testing.assert_close(positions.forward_step(x[:, 0], state), out[:, 0])


def test_learned_table_is_a_parameter_and_fixed_one_a_buffer() -> None:
    assert [k for k, _ in RecyclingPositions(5, 4, True).named_parameters()] == ["table"]
    fixed = RecyclingPositions(5, 4, False)
    assert not list(fixed.parameters())
    assert list(fixed.state_dict()) == ["table"]


@pytest.mark.parametrize(("rows", "width"), [(127, 32), (20, 6), (7, 16), (64, 64)])
def test_the_cyclic_table_joins_its_ends(rows: int, width: int) -> None:
    table = cyclic_table(rows, width)
    assert table.shape == (rows, width)
    assert table.dtype == torch.float32
    inside = (table[1:] - table[:-1]).norm(dim=1)
    assert (table[0] - table[-1]).norm() <= inside.max() * 1.5


@pytest.mark.skipif(not REFERENCE.exists(), reason="needs ../shared/refs beside the repository")
def test_the_cyclic_table_is_the_published_one() -> None:
    pattern = np.load(REFERENCE)["pattern"]
    assert np.abs(cyclic_table(127, 32).numpy() - pattern).max() < 1e-6


@pytest.mark.parametrize("start", [0, 1_000_000, 10_000_000])
def test_rotary_turns_pairs_by_exact_angles(start: int) -> None:
    rotary = RotaryPositions(8)
    times = start + torch.arange(0, 40, 3)
    rows = torch.randn(len(times), 8)
    turned = rows.clone()
    turn_pairs(turned, rotary.turns(times, rows))
    for row, out, t in zip(rows.tolist(), turned.tolist(), times.tolist(), strict=True):
        for i in range(4):
            angle = t * 10_000 ** (-2 * i / 8)
            a, b = row[2 * i : 2 * i + 2]
            expected = (a * math.cos(angle) - b * math.sin(angle),)
            expected += (b * math.cos(angle) + a * math.sin(angle),)
            assert out[2 * i : 2 * i + 2] == pytest.approx(expected, abs=1e-6)


def test_rotary_needs_pairs() -> None:
    with pytest.raises(ValueError, match="even width, not 5"):
        RotaryPositions(5)
