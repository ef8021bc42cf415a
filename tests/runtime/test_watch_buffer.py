"""Buffers of feeds: bounded lag; only steps are dropped."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.clock import Tick, resample
from costream.core.records import Fault, FeatureRow, Gap, SourceInfo, VideoFrame
from costream.runtime.watch import feed as feed_module
from costream.runtime.watch.arrivals import SPAN_S, ArrivalDelays, Rate
from costream.runtime.watch.buffer import Buffer, ReadyStep
from costream.runtime.watch.channel import FeedChannel
from costream.runtime.watch.feed import Feed
from costream.sources.base import Connection
from kit.streams import ItemSource


def step(i: int, since_s: float | None = None) -> ReadyStep:
    item, now_s = FeatureRow(i, i / 10, np.zeros(1, np.float32)), time.monotonic()
    return ReadyStep(Tick(i, i / 10, item, True), 0.0, now_s, now_s if since_s is None else since_s)


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
    assert (buffer.late, buffer.crowded) == (0, dropped)
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
    assert (buffer.late, buffer.crowded, buffer.dropped) == (2, 0, 2)
    buffer = make(size=10, lag_s=1.0)
    for i in range(3):
        buffer.put(step(i, now_s - 9.0))
    assert numbers(buffer.take()) == [2]
    assert buffer.take() == []


def test_how_long_a_step_lasts_counts():
    buffer = make(size=10, lag_s=1.0)
    buffer.add_duration(0.9)
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
    thread.join(90)
    assert taken == list(range(50))
    assert buffer.dropped == 0


def test_close_frees_a_feed_that_waits():
    buffer = make(size=1, block=True)
    thread = threading.Thread(target=lambda: [buffer.put(step(i)) for i in range(3)], daemon=True)
    thread.start()
    buffer.close()
    thread.join(90)
    assert not thread.is_alive()


def test_a_rate_is_that_of_the_last_seconds():
    rate = Rate()
    assert rate.at(0.0) == 0.0
    for k in range(1000):
        rate.add(k / 25)
    assert abs(rate.at(40.0) - 25) < 0.5
    assert rate.at(50.0) == 0.0


# --- lateness, on a clock of our own ---------------------------------------------------------

PICTURE = np.zeros((1, 1, 3), np.uint8)
RATE_HZ, MAX_LAG_S = 8.0, 2.0


class Simulation:
    """A feed whose frames arrive when they are told to, and a network of a given speed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost_s: float) -> None:
        self.now_s, self._free_s, self._cost_s = 100.0, 0.0, cost_s
        monkeypatch.setattr(feed_module.time, "monotonic", lambda: self.now_s)
        self.buffer = make(size=112, lag_s=MAX_LAG_S)
        source = ItemSource(SourceInfo("x", "x", "video", None, None, live=True), [])
        self.feed = Feed("x", source, iter, self.buffer)
        self.channel = FeedChannel(None, 0, self.feed, None)  # type: ignore[arg-type]
        self.taken: list[ReadyStep] = []
        self.lags: list[float] = []
        self.states: list[str] = []
        self._shown_s = self.now_s

    def run(self, arrivals: list[tuple[float, float]]) -> None:
        """Let frames arrive: (time, media time) of each, both from 0 on."""
        start_s = self.now_s

        def items():
            for i, (arrived_s, media_s) in enumerate(arrivals):
                self._until(start_s + arrived_s)
                yield VideoFrame(i, media_s, i, lambda: PICTURE, arrived_s=start_s + media_s)

        for tick in resample(self.feed._count(items()), RATE_HZ, 1.0):
            assert isinstance(tick, Tick)
            self.buffer.put(self.feed._ready(tick, 0.0))
        self._until(self.now_s)

    def _until(self, until_s: float) -> None:
        """Run the network and the display up to this time."""
        while self._shown_s < until_s:
            self._step(self._shown_s)
            self.now_s = self._shown_s
            if self.feed.newest_s is not None:
                age_s = self.now_s - self.feed.newest_s
                self.states.append(self.channel._state(Connection("live"), age_s, self.now_s))
            self._shown_s += 0.25
        self._step(until_s)
        self.now_s = until_s

    def _step(self, until_s: float) -> None:
        while not self.buffer.empty and max(self._free_s, self.now_s) <= until_s:
            self.now_s = max(self._free_s, self.now_s)
            for ready in (e for e in self.buffer.take() if isinstance(e, ReadyStep)):
                self.taken.append(ready)
                self.lags.append(self.now_s - ready.since_s)
                self.buffer.add_duration(self._cost_s)
                self._free_s = self.now_s + self._cost_s


def hls(segment_s: float, seconds: float) -> list[tuple[float, float]]:
    """Return the arrivals of an HLS stream: a segment comes at once when it is complete."""
    found = []
    for k in range(int(seconds / segment_s)):
        frames = [k * segment_s + n / 25 for n in range(round(segment_s * 25))]
        late_s = 0.5 * (k % 3) / 2  # of the playlist
        found += [((k + 1) * segment_s + late_s + 0.01 * n, t) for n, t in enumerate(frames)]
    return found


@pytest.mark.parametrize("segment_s", [2.0, 4.0, 6.0, 10.0])
def test_hls_loses_no_step_and_is_live_throughout(segment_s, monkeypatch):
    """The network needs four fifths of the time, and so a segment's length for each segment."""
    simulation = Simulation(monkeypatch, cost_s=0.1)
    simulation.run(hls(segment_s, 120.0))
    assert simulation.buffer.dropped == 0
    assert len(simulation.taken) > 8 * 100
    assert set(simulation.states) == {"live"}


@pytest.mark.parametrize("arrivals", [hls(6.0, 120.0), [(k / 25, k / 25) for k in range(3000)]])
def test_a_network_that_is_too_slow_drops_what_is_late(arrivals, monkeypatch):
    simulation = Simulation(monkeypatch, cost_s=0.25)
    simulation.run(arrivals)
    assert simulation.buffer.crowded == 0
    assert simulation.buffer.late > 300
    assert max(simulation.lags) < MAX_LAG_S


def test_a_slow_link_is_not_a_reason_to_drop_anything_and_is_reported(monkeypatch, caplog):
    """The data come later and later, up to 12 s, and then at once."""
    simulation = Simulation(monkeypatch, cost_s=0.02)
    late = [(k / 25 + max(0.0, min((k - 250) / 25 / 2, 12.0)), k / 25) for k in range(1100)]
    caught_up = [(56.0 + k / 500, k / 25) for k in range(1100, 1400)]
    simulation.run(late)
    simulation.channel.spec = type("Spec", (), {"name": "door"})  # type: ignore[assignment]
    for _ in range(2):
        simulation.channel.log_delays(simulation.now_s, MAX_LAG_S)
    (said,) = caplog.messages
    assert "s late: its network is too slow" in said
    simulation = Simulation(monkeypatch, cost_s=0.02)
    simulation.run(late + caught_up)
    assert simulation.buffer.dropped == 0
    assert simulation.states.count("stalled") < 4


def test_a_feed_of_a_frame_every_two_seconds_is_live(monkeypatch):
    simulation = Simulation(monkeypatch, cost_s=0.1)
    simulation.run([(2.0 * k + 0.05 * (k % 2), 2.0 * k) for k in range(60)])
    assert len(simulation.taken) == 60
    assert set(simulation.states) == {"live"}


def test_a_stall_shows_by_the_time_of_the_last_data(monkeypatch):
    simulation = Simulation(monkeypatch, cost_s=0.02)
    frames = [(k / 25, k / 25) for k in range(1000)]
    simulation.run(frames[:-1])
    simulation._until(150.0)
    assert simulation.states[-1] == "stalled"
    # The decoder gives its last frame when the connection is given up: no data have come.
    simulation.feed._live = type("Source", (), {"connection": Connection("live", received_s=139.9)})
    list(simulation.feed._count([VideoFrame(999, 39.96, 999, lambda: PICTURE)]))
    assert simulation.feed.newest_s == 139.9


def test_delays_are_those_of_the_last_seconds():
    delays = ArrivalDelays()
    for k in range(60):
        delays.add(float(k), 6.0 if k < 10 else 0.5)
        if k < SPAN_S:  # too few to call them late
            assert (delays.least_s, delays.most_s) == (math.inf, 6.0)
        elif k < 2 * SPAN_S:
            assert (delays.least_s, delays.most_s) == (0.5, 6.0)
    assert (delays.least_s, delays.most_s) == (0.5, 0.5)
