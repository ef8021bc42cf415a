"""Attention of any row of a window: steps equal clips and the window recomputed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import costream.nn as co

WINDOW, LENGTH = 5, 13


@pytest.mark.parametrize("query_index", [0, 1, 3, -1, -2])
def test_each_window_is_what_attention_over_it_gives(query_index):
    torch.manual_seed(0)
    part = co.QueryAttention(8, 2, WINDOW, query_index).double().eval()
    plain = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64).eval()
    plain.load_state_dict(part.attention.state_dict())
    place = query_index % WINDOW
    assert part.delay == WINDOW - 1 - place
    assert part.receptive_field == WINDOW
    x = torch.randn(2, 8, LENGTH, dtype=torch.float64)
    clip = part(x)
    for t in range(LENGTH):
        rows = x[:, :, max(0, t - place) : t - place + WINDOW].mT
        at = min(t, place)
        expected = plain(rows[:, at : at + 1], rows, rows)[0][:, 0]
        torch.testing.assert_close(clip[:, :, t], expected, rtol=0, atol=1e-9)
    state = part.init_state(2)
    steps = [part.forward_step(frame, state) for frame in x.unbind(2)]
    assert [out is None for out in steps] == [t < part.delay for t in range(LENGTH)]
    told = torch.stack(steps[part.delay :], 2)
    torch.testing.assert_close(told, clip[:, :, : LENGTH - part.delay], rtol=0, atol=1e-9)
    state = part.init_state(2)
    chunks = [part.forward_steps(c, state) for c in x.split([2, 6, 1, 4], 2)]
    torch.testing.assert_close(torch.cat(chunks, 2), told, rtol=0, atol=1e-9)


def test_in_compositions_branches_wait_for_it():
    torch.manual_seed(0)
    net = co.Residual(co.QueryAttention(8, 2, WINDOW, 1)).double().eval()
    assert net.delay == 3
    x = torch.randn(1, 8, LENGTH, dtype=torch.float64)
    state = net.init_state(1, x[:, :, 0])
    told = [net.forward_step(frame, state) for frame in x.unbind(2)][3:]
    torch.testing.assert_close(torch.stack(told, 2), net(x)[:, :, :-3], rtol=0, atol=1e-9)


@pytest.mark.parametrize("query_index", [5, -6])
def test_a_row_outside_of_the_window_is_refused(query_index):
    with pytest.raises(ValueError, match=f"query_index {query_index} is outside a window of 5"):
        co.QueryAttention(8, 2, WINDOW, query_index)
