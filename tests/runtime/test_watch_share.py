"""A budget that feeds share: kept, evenly spread, fair."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.runtime.watch.loop import WINDOW_S, TimeShare


def run(
    share: TimeShare,
    feeds: int,
    rate_hz: float,
    cost_s: float,
    seconds: float,
    start_s: float = 0.0,
):
    """Offer each feed's steps on a clock of our own; give how many were taken, and the load."""
    taken, now_s, spent_s = [0] * feeds, start_s, 0.0
    for _ in range(int(seconds * rate_hz)):
        now_s += 1 / rate_hz
        share.turn(now_s)
        for feed in range(feeds):
            if share.admit(feed):
                share.spent(cost_s, 1)
                taken[feed] += 1
                spent_s += cost_s
    return taken, spent_s / seconds


def test_without_a_budget_everything_is_taken():
    share = TimeShare(None)
    taken, load = run(share, 3, 10, 0.5, 20)
    assert taken == [200] * 3
    assert share.load == pytest.approx(load, rel=0.1)
    assert not share.limited


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 1.0), st.integers(1, 8), st.sampled_from([4.0, 8.0, 25.0]))
def test_the_work_keeps_to_the_share_and_feeds_are_treated_alike(part, feeds, rate_hz):
    cost_s = 0.02
    share = TimeShare(part)
    run(share, feeds, rate_hz, cost_s, 2 * WINDOW_S)  # the cost is learnt
    taken, load = run(share, feeds, rate_hz, cost_s, 60.0, 2 * WINDOW_S)
    wanted = feeds * rate_hz * cost_s
    assert load == pytest.approx(min(part, wanted), rel=0.05)
    assert max(taken) - min(taken) <= 1


def test_what_is_left_out_is_spread_evenly():
    share = TimeShare(0.5)
    share.part = 0.5
    assert [share.admit(0) for _ in range(8)] == [True, False] * 4


def test_room_that_comes_back_is_used():
    share = TimeShare(0.1)
    run(share, 2, 10, 0.05, 10)
    assert share.part == pytest.approx(0.1, rel=0.1)
    for k in range(60):
        share.turn(10 + k / 10)
        if share.admit(0):
            share.spent(0.001, 1)
    assert share.part == 1.0
