"""--write events: every event at once, steps around events, and a thinned score curve."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from costream.core.records import (
    Alert,
    Compute,
    Gap,
    Header,
    Prediction,
    Record,
    Segment,
    StageTimes,
    Summary,
)
from costream.sinks.written_part import AROUND_S, EVERY_S, HOLD_S, WrittenPart

HEADER = Header("0", "m", "0", ("a",), None, 4.0, 0.0, "x", "video", None, {"top_k": 3})
SUMMARY = Summary(1, 0, 0, 0, 1.0, 1.0, 1.0, 1, 1, True, 0)
MS = StageTimes(1.0, 1.0, 1.0, 1.0)
RATE_HZ = 4


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.header: Header | None = None

    def open(self, header: Header) -> None:
        self.header = header

    def write(self, record: Record) -> None:
        self.records.append(record)

    def close(self, summary: Summary) -> None:
        pass

    def times(self, kind: type) -> list[float]:
        return [record.time_s for record in self.records if isinstance(record, kind)]


def run(length_s: float, events: list[tuple[float, Record]], part="events") -> Kept:
    """Return what is written of steps and of events, each at the time when it gets known."""
    kept = Kept()
    sink = WrittenPart(kept, part)
    sink.open(HEADER)
    waiting = sorted(events, key=lambda pair: pair[0])
    for i in range(int(length_s * RATE_HZ)):
        time_s = i / RATE_HZ
        sink.write(Prediction(i, time_s, i, None, (("a", 0.5),)))
        sink.write(Compute(i, time_s, 1, 1, MS))
        while waiting and waiting[0][0] <= time_s:
            sink.write(waiting.pop(0)[1])
    for _, record in waiting:
        sink.write(record)
    sink.close(SUMMARY)
    return kept


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 30), st.floats(0, 25)),
        max_size=6,
    )
)
def test_steps_near_events_and_one_in_ten_seconds_are_written(spans):
    """Whatever the order in which events become known, up to HOLD_S after they began."""
    events = [
        (min(end := start + length, 120) + late, Segment(start, end, "a", 0.9))
        for start, length, late in spans
    ]
    kept = run(120, events)
    assert [r for r in kept.records if isinstance(r, Segment)] == [
        record for _, record in sorted(events, key=lambda pair: pair[0])
    ]
    times = kept.times(Prediction)
    assert times == sorted(set(times))  # in order, none twice
    edges = [edge for _, s in events for edge in (s.start_s, s.end_s)]
    near = {
        i / RATE_HZ
        for i in range(120 * RATE_HZ)
        if any(abs(i / RATE_HZ - edge) <= AROUND_S for edge in edges)
    }
    regular = {float(s) for s in range(0, 120, int(EVERY_S))}
    assert set(times) == near | regular
    assert set(kept.times(Compute)) == regular


def test_events_do_not_wait_for_steps():
    kept = Kept()
    sink = WrittenPart(kept, "events")
    sink.open(HEADER)
    sink.write(Prediction(0, 0.0, 0, None, (("a", 0.5),)))
    alert = Alert(0.0, "a", "a", 0.9, 0.0)
    sink.write(alert)
    assert kept.records == [alert]
    assert kept.header is not None
    assert kept.header.options == {"top_k": 3, "write": "events"}
    sink.write(gap := Gap(1.0, 9.0, "no data"))
    assert [type(r) for r in kept.records] == [Alert, Prediction, Gap]
    assert kept.records[-1] is gap  # behind the steps before it


def test_steps_are_held_back_for_a_minute_at_most():
    kept = Kept()
    sink = WrittenPart(kept, "events")
    sink.open(HEADER)
    for i in range(1000):
        sink.write(Prediction(i, i / RATE_HZ, i, None, (("a", 0.5),)))
    assert kept.times(Prediction)[-1] >= 999 / RATE_HZ - HOLD_S - EVERY_S


def test_write_steps_leaves_costs_out():
    kept = run(10, [], "steps")
    assert len(kept.times(Prediction)) == 40
    assert kept.times(Compute) == []


def test_lines_of_text_are_all_written_at_once():
    kept = Kept()
    sink = WrittenPart(kept, "events")
    sink.open(HEADER)
    line = Prediction(0, 0.0, 0, None, (("error", 0.9),), text="disk full")
    sink.write(line)
    assert kept.records == [line]
