"""Buffers of feeds: bounded lag; only steps are dropped."""

from __future__ import annotations

import threading
import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from costream.clock import Tick
from costream.records import Fault, FeatureRow, Gap, VideoFrame
from costream.runtime.watch.feed import Buffer, Rate, ReadyStep


def step(i: int, arrived_s: float | None = None) -> ReadyStep:
    if arrived_s is None:
        item = FeatureRow(i, i / 10, np.zeros(1, np.float32))
    else:
        item = VideoFrame(i, i / 10, None, lambda: np.zeros((1, 1, 3), np.uint8))
        item = VideoFrame(i, i / 10, None, item.convert, arrived_s=arrived_s)
    return ReadyStep(Tick(i, i / 10, item, True), 0.0, time.monotonic())


def make(size: int = 4, lag_s: float = 60.0, block: bool = False) -> Buffer:
    return Buffer(size, lag_s, block=block, arrived=threading.Condition())


def numbers(events: list) -> list[int]:
    return [e.tick.i for e in events if isinstance(e, ReadyStep)]


@given(st.lists(st.sampled_from(["step", "gap", "fault", "take"]), max_size=60), st.integers(1, 5))
def test_the_oldest_steps_go_first_and_all_else_stays_in_order(moves, size):
    buffer, i = make(size), 0
    held: list = []  # what a plain reading of the rule says is in there
    dropped = 0
    for move in moves:
        if move == "take":
            last = next((k for k, e in enumerate(held) if isinstance(e, ReadyStep)), len(held) - 1)
            expected, held = held[: last + 1], held[last + 1 :]
            assert buffer.take() == expected
            continue
        i += 1
        event = {"step": step(i), "gap": Gap(i, i, ""), "fault": Fault(i, "")}[move]
        if move == "step" and len(numbers(held)) == size:
            held.remove(next(e for e in held if isinstance(e, ReadyStep)))
            dropped += 1
        held.append(event)
        buffer.put(event)
    assert buffer.dropped == dropped
    assert buffer.empty == (not held)
    rest = []
    while taken := buffer.take():
        rest += taken
    assert rest == held


def test_late_steps_are_dropped_but_for_the_newest():
    buffer = make(size=10, lag_s=1.0)
    now_s = time.monotonic()
    for i, age_s in enumerate((5.0, 3.0, 0.1, 0.0)):
        buffer.put(step(i, now_s - age_s))
    assert numbers(buffer.take()) == [2]
    assert buffer.dropped == 2
    buffer = make(size=10, lag_s=1.0)
    for i in range(3):
        buffer.put(step(i, now_s - 9.0))
    assert numbers(buffer.take()) == [2]
    assert buffer.take() == []


def test_how_long_a_step_lasts_counts():
    buffer = make(size=10, lag_s=1.0)
    buffer.step_s = 0.9
    now_s = time.monotonic()
    for i, age_s in enumerate((0.5, 0.3, 0.0)):
        buffer.put(step(i, now_s - age_s))
    assert numbers(buffer.take()) == [2]


def test_with_block_the_feed_waits_and_nothing_is_dropped():
    buffer = make(size=2, lag_s=0.0, block=True)
    done = []

    def feed() -> None:
        for i in range(50):
            buffer.put(step(i, 0.0))
        done.append(True)

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    time.sleep(0.1)
    assert not done
    taken = []
    while len(taken) < 50:
        taken += numbers(buffer.take())
    thread.join(10)
    assert taken == list(range(50))
    assert buffer.dropped == 0


def test_close_frees_a_feed_that_waits():
    buffer = make(size=1, block=True)
    thread = threading.Thread(target=lambda: [buffer.put(step(i)) for i in range(3)], daemon=True)
    thread.start()
    buffer.close()
    thread.join(10)
    assert not thread.is_alive()


def test_a_rate_is_that_of_the_last_seconds():
    rate = Rate()
    assert rate.at(0.0) == 0.0
    for k in range(1000):
        rate.add(k / 25)
    assert abs(rate.at(40.0) - 25) < 0.5
    assert rate.at(50.0) == 0.0
