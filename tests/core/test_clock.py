"""Times as text, and the fixed-rate clock against its definition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.clock import TOLERANCE_S, Tick, format_time, parse_time, resample, utc
from costream.core.errors import UsageError
from costream.core.records import Data, Fault, FeatureRow, Gap, Item, VideoFrame

NOTHING = np.zeros(1, np.float32)


def row(i: int, time_s: float) -> FeatureRow:
    return FeatureRow(i, time_s, NOTHING)


# --- parse and format -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("62", 62.0),
        ("62.5", 62.5),
        (".5", 0.5),
        ("7.", 7.0),
        ("5s", 5.0),
        ("5 S", 5.0),
        ("1m", 60.0),
        ("1h30m", 5400.0),
        ("2D", 172_800.0),
        ("1d 2h 3m 4.5s", 93_784.5),
        (" 0 ", 0.0),
        ("1:02", 62.0),
        ("90:00", 5400.0),
        ("01:02:03.456", 3723.456),
        ("100:00:00", 360000.0),
        ("0:00:00.001", 0.001),
    ],
)
def test_parse_time(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        *[
            "s",
            "-1",
            "1:60",
            "1:60:00",
            "1:2:3:4",
            "m",
            "30m1h",
            "1m 5",
            "9" * 400,
            "9" * 400 + "d",
            "9" * 400 + ":10",
            "1e3",
            "nan",
            "inf",
            "1,5",
            "٣",
            "1:",
            ":1",
        ],
    ],
)
def test_parse_time_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="not a time"):
        parse_time(text)


def test_format_time() -> None:
    assert format_time(0) == "00:00:00.000"
    assert format_time(3723.4564) == "01:02:03.456"
    assert format_time(3723.4564, ",") == "01:02:03,456"
    assert format_time(59.9996) == "00:01:00.000"
    assert format_time(360000.5) == "100:00:00.500"
    assert format_time(-1.5) == "-00:00:01.500"
    assert format_time(-0.0001) == "00:00:00.000"


@given(st.integers(0, 10**9))
def test_format_then_parse(milliseconds: int) -> None:
    assert parse_time(format_time(milliseconds / 1000)) == pytest.approx(milliseconds / 1000)


# --- resample ---------------------------------------------------------------------------------


def brute_force(
    items: list[FeatureRow], rate: float, tolerance: float
) -> list[tuple[int, int, bool] | str]:
    """The definition: look at every grid point, and for each at every item."""
    slack = min(TOLERANCE_S, 0.1 / rate)
    first, last = items[0].time_s, items[-1].time_s
    out: list[tuple[int, int, bool] | str] = []
    before: FeatureRow | None = None
    for k in range(int((last - first) * rate) + 2):
        tick = first + k / rate
        if tick > last + slack:
            break
        newest = [item for item in items if item.time_s <= tick + slack][-1]
        later = [item for item in items if item.time_s > tick + slack]
        pause = bool(later) and later[0].time_s - newest.time_s > tolerance
        if pause and tick > newest.time_s + slack:
            if out[-1] != "gap":
                out.append("gap")
            continue
        out.append((k, newest.i, newest is not before))
        before = newest
    return out


rates = st.sampled_from([0.5, 1.0, 4.0, 10.0, 24.0, 25.0, 29.97, 30.0, 60.0])
steps_ms = st.lists(st.integers(0, 900), min_size=0, max_size=40)


@given(rates, steps_ms, st.floats(-5, 90000))
def test_ticks_are_those_of_the_definition(rate: float, steps: list[int], start: float) -> None:
    times = [start + sum(steps[:k]) / 1000 for k in range(len(steps) + 1)]
    items = [row(i, t) for i, t in enumerate(times)]
    ticks = list(resample(items, rate, 1.0))
    assert [(t.i, t.item.i, t.fresh) for t in ticks if isinstance(t, Tick)] == brute_force(
        items, rate, 1.0
    )
    assert all(t.time_s == times[0] + t.i / rate for t in ticks if isinstance(t, Tick))


@given(rates, st.lists(st.sampled_from([7, 40, 333, 1500, 3001, 64000]), max_size=30))
def test_gaps_are_those_of_the_definition(rate: float, steps: list[int]) -> None:
    steps = [ms for step in steps for ms in (40, 40, 40, step)]  # no slow source
    times = [sum(steps[:k]) / 1000 for k in range(len(steps) + 1)]
    items = [row(i, t) for i, t in enumerate(times)]
    out = list(resample(items, rate, 1.0))
    expected = [x for x in brute_force(items, rate, 1.0) if x != "gap"]
    assert [(t.i, t.item.i, t.fresh) for t in out if isinstance(t, Tick)] == expected
    pauses = [(a, b) for a, b in itertools.pairwise(times) if b - a > 1.0]
    assert [(g.start_s, g.end_s) for g in out if isinstance(g, Gap)] == pauses
    # Each gap stands between the ticks it separates.
    for at, event in enumerate(out):
        if isinstance(event, Gap):
            assert all(t.time_s <= event.start_s + TOLERANCE_S for t in out[:at] if is_tick(t))
            assert all(t.time_s >= event.end_s - TOLERANCE_S for t in out[at:] if is_tick(t))


@pytest.mark.parametrize("apart_s", [1.0, 2.0, 4.9])
def test_a_slow_source_has_a_tick_for_each_item_and_no_gap(apart_s: float) -> None:
    jitter = np.random.default_rng(0).uniform(-0.05, 0.05, 40)
    times = [float(k * apart_s + jitter[k]) for k in range(40)]
    items = [row(i, t) for i, t in enumerate(times)]
    out = list(resample(items, 8.0, 1.0))
    assert not any(isinstance(x, Gap) for x in out)
    fresh = [t for t in out if isinstance(t, Tick) and t.fresh]
    assert [t.item.i for t in fresh] == list(range(40 if apart_s > 1 else 39))
    assert all(0 <= t.time_s - t.item.time_s + TOLERANCE_S < 0.13 for t in fresh)
    assert (len(out) == 40) == (apart_s > 1)  # one a second is repeated, as a faster one is
    # It is known at once, not with the item after it; and an outage is a gap.
    late = row(40, times[-1] + 3.5 * apart_s)
    assert [isinstance(x, Gap) for x in resample([*items, late], 8.0, 1.0)].count(True) == 1


def is_tick(event: object) -> bool:
    return isinstance(event, Tick)


def test_no_drift_over_days() -> None:
    """Five days at 25 Hz: the times are those of exact arithmetic."""
    rate, far = 25.0, 5 * 86400
    ticks = [t for t in resample([row(0, 0.0), row(1, float(far))], rate, 1.0) if is_tick(t)]
    last = ticks[-1]
    assert isinstance(last, Tick)
    assert last.i == far * 25
    assert abs(Fraction(last.time_s) - Fraction(last.i) / 25) < Fraction(1, 10**9)


def test_frame_rate_and_tick_rate_are_equal_in_milliseconds() -> None:
    """Matroska rounds to 1 ms; at the file's own rate every frame must still get its tick."""
    frames = [row(k, round(k / 24, 3)) for k in range(240)]
    ticks = [t for t in resample(frames, 24.0, 1.0) if isinstance(t, Tick)]
    assert [t.item.i for t in ticks] == list(range(240))
    assert all(t.fresh for t in ticks)


def test_variable_rate_thirty_then_ten() -> None:
    times = [k / 30 for k in range(150)] + [5 + k / 10 for k in range(100)]
    ticks = list(resample([row(i, t) for i, t in enumerate(times)], 10.0, 1.0))
    by_index = {t.i: t for t in ticks if isinstance(t, Tick)}
    assert by_index[100].item.i == 200
    assert by_index[100].time_s == 10.0


def test_faults_and_gaps_of_the_source_keep_their_place() -> None:
    fault = Fault(0.3, "damaged")
    gap = Gap(0.5, 0.9, "lost")
    end = Fault(1.0, "the end", fatal=True)
    items: list[Item] = [row(0, 0.0), row(1, 0.25), fault, row(2, 0.5), gap, row(3, 1.0), end]
    out = [x.item.i if isinstance(x, Tick) else x for x in resample(items, 4.0, 10.0)]
    # The grid point 0.75 lies in the source's gap and is left out.
    assert out == [0, 1, fault, 2, gap, 3, end]


def test_a_gap_reported_by_the_source_is_not_reported_twice() -> None:
    gap = Gap(0.0, 60.0, "lost")
    out = list(resample([row(0, 0.0), gap, row(1, 60.0)], 4.0, 1.0))
    assert [x for x in out if isinstance(x, Gap)] == [gap]
    assert [x.i for x in out if isinstance(x, Tick)] == [0, 240]


def test_nothing_but_faults() -> None:
    fault = Fault(None, "nothing to see", fatal=True)
    assert list(resample([fault], 4.0, 1.0)) == [fault]
    assert list(resample([], 4.0, 1.0)) == []


def test_pictures_of_skipped_frames_are_not_converted() -> None:
    converted: list[int] = []

    def frame(i: int) -> VideoFrame:
        def convert() -> np.ndarray:
            converted.append(i)
            return np.zeros((2, 2, 3), np.uint8)

        return VideoFrame(i, i / 30, i, convert)

    for tick in resample(map(frame, range(60)), 10.0, 1.0):
        assert isinstance(tick, Tick)
        assert isinstance(tick.item, VideoFrame)
        _ = tick.item.rgb
    assert converted == list(range(0, 60, 3))


def test_at_most_one_item_is_read_ahead() -> None:
    taken: list[Data] = []

    def source() -> Iterator[Data]:
        for i in range(20):
            item = row(i, i / 4)
            taken.append(item)
            yield item

    for tick in resample(source(), 4.0, 1.0):
        assert isinstance(tick, Tick)
        assert len(taken) <= tick.item.i + 2


@pytest.mark.parametrize(("rate", "tolerance"), [(0, 1), (-1, 1), (math.nan, 1), (4, 0)])
def test_senseless_rates(rate: float, tolerance: float) -> None:
    with pytest.raises(UsageError):
        list(resample([row(0, 0.0)], rate, tolerance))


def test_the_time_of_the_day_in_utc():
    assert utc(0.0) == "1970-01-01T00:00:00.000Z"
    assert utc(1795316449.1236) == "2026-11-22T03:00:49.123Z"


def picture(i: int, time_s: float) -> VideoFrame:
    return VideoFrame(i, time_s, i, lambda: np.zeros((1, 1, 3), np.uint8))


def test_ticks_of_several_pictures() -> None:
    items: list[Item] = [picture(i, i / 24) for i in range(20)]
    items.insert(9, Fault(0.3, "damage"))
    ticks = [t for t in resample(items, 4.0, 1.0, frames=6) if isinstance(t, Tick)]
    assert [t.i for t in ticks] == [0, 1, 2]
    assert [t.time_s for t in ticks] == pytest.approx([(6 * k + 5) / 24 for k in range(3)])
    seen = [[f.i for f in (*t.item.earlier, t.item)] for t in ticks]  # type: ignore[union-attr]
    assert seen == [list(range(6 * k, 6 * k + 6)) for k in range(3)]


def test_a_chunk_starts_again_after_a_gap() -> None:
    times = [*(i / 24 for i in range(9)), *(5 + i / 24 for i in range(7))]
    items = [picture(i, t) for i, t in enumerate(times)]
    events = list(resample(items, 4.0, 1.0, frames=6))
    assert [type(e) for e in events] == [Tick, Gap, Tick]
    last = events[-1].item  # type: ignore[union-attr]
    assert [f.i for f in (*last.earlier, last)] == list(range(9, 15))  # type: ignore[union-attr]


def test_other_items_are_never_chunks() -> None:
    rows = [row(i, i / 4) for i in range(5)]
    assert list(resample(rows, 4.0, 1.0, frames=6)) == list(resample(rows, 4.0, 1.0))
    assert list(resample([], 4.0, 1.0, frames=6)) == []
