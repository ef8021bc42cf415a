"""Loop of a watch: the network's rows for many feeds, and their share of its time."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.core.clock import Tick
from costream.core.layouts import find_layout
from costream.core.records import AudioBlock, FeatureRow, SkeletonFrame, VideoFrame
from costream.models.catalogue import load_model
from costream.runtime.watch import feed as feed_module
from costream.runtime.watch.buffer import Buffer, ReadyStep
from costream.runtime.watch.channel import SPACED
from costream.runtime.watch.feed_states import FeedStates
from costream.runtime.watch.time_share import WINDOW_S, TimeShare

FEEDS = 5


def picture(rng, i):
    rgb = rng.integers(0, 255, (96, 128 - 2 * (i % 3), 3), np.uint8)
    return VideoFrame(i, i / 8, i, lambda: rgb)


def block(rng, i):
    return AudioBlock(i, (i + 1) / 4, 0.1 * rng.standard_normal(4000).astype(np.float32))


def skeleton(rng, i):
    layout = find_layout("ntu-25")
    joints = rng.standard_normal((2, 25, 3)).astype(np.float32)
    return SkeletonFrame(i, i / 30, joints, np.ones((2, 25), np.float32), layout)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("cooadtr", picture),
        ("cooadtr-b2", picture),
        ("cotrans,cosounds", block),
        ("costgcn", skeleton),
    ],
)
def test_feeds_that_come_and_go(name, make):
    """At each round some feeds have something; now and then one is forgotten, or moved."""
    model, rng = load_model(name), np.random.default_rng(3)
    rows, alone = FeedStates(model, FEEDS), [FeedStates(model, 1) for _ in range(FEEDS)]
    steps, outputs = [0] * FEEDS, 0
    for round_ in range(30):
        chosen = [k for k in range(FEEDS) if round_ % 5 == 0 or rng.random() < 0.6]
        if not chosen:
            continue
        items = [make(rng, steps[k]) for k in chosen]
        together = rows.step(chosen, items)
        for k, item, got in zip(chosen, items, together, strict=True):
            steps[k] += 1
            (expected,) = alone[k].step([0], [item])
            assert got.warmup == expected.warmup
            assert (got.macs, got.dense_macs) == (expected.macs, expected.dense_macs)
            if expected.probabilities is None:
                assert got.probabilities is None
            else:
                np.testing.assert_allclose(got.probabilities, expected.probabilities, atol=2e-5)
                outputs += 1
        if round_ == 10:
            rows.reset(2)
            alone[2].reset(0)
        # What is known of a feed goes to a new watch; persons are told apart anew.
        if round_ == 20 and model.info.persons is None:
            rows, old = FeedStates(model, FEEDS), rows
            for k in range(FEEDS):
                rows.put(k, old.take(k))
    assert outputs > 20


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


def overload(monkeypatch, feeds: int, rate_hz: float, cost_s: float, seconds: float):
    """Let the steps of feeds wait for a network that is too slow; a clock of our own.

    Return the times of the steps that were taken, by feed, the share, and what it said.
    """
    now_s = 0.0
    monkeypatch.setattr(feed_module.time, "monotonic", lambda: now_s)
    share, arrived = TimeShare(None), threading.Condition()
    buffers = [Buffer(64, 2.0, block=False, arrived=arrived) for _ in range(feeds)]
    taken: list[list[float]] = [[] for _ in buffers]
    said, arrivals = [], iter(np.arange(round(seconds * rate_hz)) / rate_hz)
    due_s = next(arrivals)
    while due_s is not None:
        while due_s is not None and due_s <= now_s:
            for buffer in buffers:
                tick = Tick(0, due_s, FeatureRow(0, due_s, np.zeros(1, np.float32)), True)
                buffer.put(ReadyStep(tick, 0.0, due_s, due_s))
            due_s = next(arrivals, None)
        group, began_s = [], now_s
        for row, buffer in enumerate(buffers):
            group += [(row, e.tick.time_s) for e in buffer.take() if share.admit(row)]
        now_s += cost_s * len(group)
        share.spent(cost_s * len(group), len(group))
        share.busy(now_s - began_s)
        for row, time_s in group:
            taken[row].append(time_s)
        share.turn(now_s, sum(buffer.late for buffer in buffers))
        said += [share.overload(feeds, paced=True)]
        if all(buffer.empty for buffer in buffers) and due_s is not None:
            now_s = max(now_s, due_s)
    return taken, share, [each for each in said if each]


def test_an_overload_thins_the_steps_evenly_and_is_reported_once_in_a_while(monkeypatch):
    taken, share, said = overload(monkeypatch, 4, 1.5, 0.6, 120.0)
    assert share.overloaded
    assert share.part == pytest.approx(1 / 0.6 / 6, rel=0.3)
    for times in taken:
        apart = np.diff([time_s for time_s in times if time_s > 10])
        assert len(apart) > 25
        assert apart.max() <= SPACED / 1.5 / share.least_part  # nothing is forgotten
        assert apart.max() < 1.5 * np.median(apart) + 0.7
    assert 1 <= len(said) <= 3
    text = (
        r"1\.\d of 6\.\d steps a second: this machine is too slow for the others; use --fps 0\.[23]"
    )
    assert re.match(text, said[-1])


def test_a_machine_that_was_too_slow_for_a_moment(monkeypatch):
    share = TimeShare(None)
    run(share, 2, 10, 0.02, 10)
    share.busy(0.4)
    share.turn(13.0, late=3)
    assert share.part == 1.0
    said = []
    for now_s in range(14, 30):
        share.spent(0.1, 10)
        assert [share.admit(0) for _ in range(10)] == [True] * 10
        share.busy(0.1)
        share.turn(float(now_s), late=3)
        said += [share.overload(2, paced=True)]
    (text,) = filter(None, said)
    assert re.match("3 of .* steps dropped: this machine was too slow for a moment", text)


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
