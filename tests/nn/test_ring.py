from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from costream.nn import ring

steps_of_streams = st.lists(st.integers(0, 30), min_size=1, max_size=4)


class Simulation:
    """A ring that holds the numbers of the steps themselves, -1 where it is empty."""

    def __init__(self, steps: list[int], window: int) -> None:
        self.window = window
        self.rows = torch.full((len(steps), window), -1)
        for stream, taken in enumerate(steps):
            for t in range(taken):
                self.rows[stream, t % window] = t


@given(steps_of_streams, st.integers(1, 9))
def test_advance_says_where_the_row_goes_and_what_is_filled(steps: list[int], n: int) -> None:
    counters = torch.tensor(steps)
    fill = ring.advance(counters, n)
    assert counters.tolist() == [t + 1 for t in steps]
    held = Simulation([t + 1 for t in steps], n).rows
    newest = ring.read(held[..., None], fill.slot)[:, 0]
    assert newest.tolist() == steps
    assert (held[:, fill.length :] == -1).all()
    filled = held[:, : fill.length] >= 0
    assert filled.all() if fill.mask is None else torch.equal(fill.mask, filled)


@given(steps_of_streams, st.integers(1, 9), st.integers(1, 12))
def test_windows_and_histories_hold_the_last_n_steps(steps: list[int], n: int, count: int) -> None:
    counters = torch.tensor(steps)
    held = Simulation(steps, n).rows
    rows = torch.cat([held, counters[:, None] + torch.arange(count)], 1)
    for indices in (ring.windows, ring.histories):
        index, filled = indices(counters, n, count)
        found = ring.gather(rows, index)
        for stream, taken in enumerate(steps):
            for k in range(count):
                expected = list(range(max(0, taken + k - n + 1), taken + k + 1))
                inside = found[stream, k][filled[stream, k]].tolist()
                assert sorted(inside) == expected
                if indices is ring.histories:
                    assert inside == expected
                else:
                    slots = [s for s in range(n) if filled[stream, k, s]]
                    assert [t % n for t in inside] == slots


@given(steps_of_streams, st.integers(1, 9), st.integers(1, 12))
def test_visible_is_the_window_of_each_step(steps: list[int], n: int, count: int) -> None:
    counters = torch.tensor(steps)
    rows = torch.cat([Simulation(steps, n).rows, counters[:, None] + torch.arange(count)], 1)
    seen = ring.visible(counters, n, count)
    for stream, taken in enumerate(steps):
        for k in range(count):
            expected = list(range(max(0, taken + k - n + 1), taken + k + 1))
            assert sorted(rows[stream][seen[stream, k]].tolist()) == expected


@given(steps_of_streams, st.integers(1, 9), st.integers(1, 12))
def test_store_leaves_the_ring_as_writing_row_by_row(steps: list[int], n: int, count: int) -> None:
    counters = torch.tensor(steps)
    held = Simulation(steps, n).rows[:, None]  # [B, 1, n]
    new = counters[:, None] + torch.arange(count)
    rows = torch.cat([ring.slots_first(held), new[..., None]], 1)
    ring.store(held, rows, counters)
    expected = Simulation([t + count for t in steps], n).rows
    assert torch.equal(held[:, 0], expected)


def test_a_written_row_keeps_no_gradient() -> None:
    held = torch.zeros(2, 3, 4)
    with torch.enable_grad():
        row = torch.ones(2, 3, requires_grad=True) * 2
        ring.write(held, 1, row)
        ring.write(held, torch.tensor([0, 3]), row)
    assert not held.requires_grad
    assert held[0].sum(0).tolist() == [6, 6, 0, 0]
    assert held[1].sum(0).tolist() == [0, 6, 0, 6]
