"""Rules that fire at some times of day, at most so often, and again while their condition holds."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.core.errors import UsageError
from costream.runtime.alerts.daytimes import DayTimes
from costream.runtime.alerts.evaluator import RuleEvaluator
from costream.runtime.alerts.rules import Rule, RuleLabels, parse_rule

CLASSES = RuleLabels(("nothing", "walk"), (0.5, 0.5), frozenset({0}))
ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Pacific/Apia")
WORK = frozenset(range(5))
HOLIDAYS = date(2026, 12, 24), date(2026, 12, 26)
NEW_YEAR = date(2027, 1, 1), date(2027, 1, 1)


def fired(text: str, scores, step_s: float = 1.0, clock=datetime.now) -> list[float]:
    """Return the times of the alerts of a rule; ``clock`` returns the time of day at a step."""
    at = [0.0]
    evaluator = RuleEvaluator(parse_rule(text), CLASSES, now=lambda: clock(at[0]))
    found = []
    for number, score in enumerate(scores):
        at[0] = number * step_s
        step = {None: np.array([1 - score, score])}
        found += [alert.time_s for alert in evaluator.push(at[0], step)]
    return found


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("walk between 22:00-06:00", {"times": DayTimes(1320, 360)}),
        ("walk between 8-17 on Mon-Fri", {"times": DayTimes(480, 1020, WORK)}),
        ("walk on sat,SUNDAY", {"times": DayTimes(days=frozenset({5, 6}))}),
        ("walk on Fri-Mon", {"times": DayTimes(days=frozenset({4, 5, 6, 0}))}),
        ("walk between 0:00-24:00", {"times": DayTimes()}),
        (
            "walk not on 2026-12-24..2026-12-26,2027-01-01 between 22-6",
            {"times": DayTimes(1320, 360, without=(HOLIDAYS, NEW_YEAR))},
        ),
        ("walk at most 3 an hour", {"most": 3, "most_s": 3600.0}),
        ("walk every 5s at most 1 a day", {"every_s": 5.0, "most": 1, "most_s": 86_400.0}),
        ("walk again after 10min", {"again_s": 600.0}),
        ("walk again after 5s", {"again_s": 5.0, "every_s": 5.0}),
        ("put on jacket on Mon", {"label": "put on jacket", "times": DayTimes(days={0})}),
        ('"look at most people"', {"label": "look at most people"}),
    ],
)
def test_what_the_clauses_mean(text, fields):
    assert parse_rule(text) == Rule(text, **{"kind": "label", "label": "walk", **fields})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("walk between 22:00", "times of day, as in 22:00-06:00, not '22:00'"),
        ("walk between 22:00-25:00", "times of day"),
        ("walk between 8:00-8:00", "times of day"),
        ("walk not on Mon", "dates, as in 2026-12-24 or 2026-12-24..2026-12-26, not 'Mon'"),
        ("walk not on 2026-12-24..2026-12-23", "dates, as in"),
        ("walk not on 2026-02-30", "dates, as in"),
        ("walk at most 0 an hour", "an integer of at least 1"),
        ("walk at most 3 a week", "'a minute', 'an hour' or 'a day', not 'week'"),
        ("walk between 8-9 between 10-11", "'for', 'until', 'every', 'on', 'not on', 'at most'"),
        ("car crosses gate again after 5s", "'every', 'between', 'on', 'not on' or 'at most'"),
    ],
)
def test_mistakes_name_the_place(text, wanted):
    with pytest.raises(UsageError) as error:
        parse_rule(text)
    assert wanted in str(error.value)


def in_a_window(times: DayTimes, at: datetime) -> bool:
    """Return whether one of the windows that began today or yesterday contains a moment."""
    wall = at.replace(tzinfo=None)
    for ago in (0, 1):
        midnight = datetime(wall.year, wall.month, wall.day) - timedelta(days=ago)
        begin, end = (midnight + timedelta(minutes=m) for m in (times.begin, times.end))
        end += timedelta(days=times.end <= times.begin)
        day, without = midnight.date(), times.without
        is_silent = any(first <= day <= last for first, last in without)
        if midnight.weekday() in times.days and begin <= wall < end and not is_silent:
            return True
    return False


@given(
    st.integers(946_684_800, 1_900_000_000),  # 2000 to 2030, with days that some zones skipped
    st.sampled_from(ZONES),
    st.integers(0, 1439),
    st.integers(1, 1440),
    st.frozensets(st.integers(0, 6), min_size=1),
    st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 2)), max_size=2),
)
def test_times_are_those_of_the_wall_clock(seconds, zone, begin, end, days, silent):
    """In all zones, whether or not summer time begins or ends there."""
    if begin != end:
        at = datetime.fromtimestamp(seconds, ZoneInfo(zone))
        firsts = [(at.date() + timedelta(days=k), length) for k, length in silent]
        without = tuple((day, day + timedelta(days=length)) for day, length in firsts)
        times = DayTimes(begin, end, days, without)
        assert times.contains(at) == in_a_window(times, at)


def test_the_hour_that_occurs_twice_is_in_the_night_twice():
    zone, times = ZoneInfo("Europe/Berlin"), DayTimes(120, 180)
    first = datetime(2026, 10, 25, 0, 0, tzinfo=ZoneInfo("UTC"))  # 2:00, then again 2:00
    minutes = [(first + timedelta(minutes=m)).astimezone(zone) for m in range(180)]
    assert sum(map(times.contains, minutes)) == 120
    skipped = datetime(2026, 3, 29, 0, 0, tzinfo=ZoneInfo("UTC"))  # 2:00 does not occur
    minutes = [(skipped + timedelta(minutes=m)).astimezone(zone) for m in range(180)]
    assert sum(map(times.contains, minutes)) == 0


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from([0.0, 0.9]), max_size=60),
    st.lists(st.integers(-2000, 2000), min_size=60, max_size=60),  # a clock that is set each time
    st.integers(1, 4),
)
def test_no_alert_outside_the_time_and_none_too_many(scores, jumps_min, most):
    noon = datetime(2026, 11, 29, 12)
    rule = f"walk between 22:00-06:00 every 0 at most {most} a minute"

    def clock(time_s: float) -> datetime:
        return noon + timedelta(minutes=jumps_min[int(time_s / 10)])

    alerts = fired(rule, scores, 10.0, clock)
    night = parse_rule(rule).times
    assert all(night.contains(clock(time_s)) for time_s in alerts)
    for time_s in alerts:
        assert sum(time_s <= other < time_s + 60 for other in alerts) <= most


def test_a_condition_that_holds_fires_when_its_time_begins():
    clock = lambda s: datetime(2026, 11, 29, 21, 59) + timedelta(seconds=s)  # noqa: E731
    assert fired("walk for 5s between 22:00-6:00", [0.9] * 90, 1.0, clock) == [60.0]
    assert fired("walk between 22:00-6:00 on Mon", [0.9] * 90, 1.0, clock) == []  # a Sunday


def test_a_condition_that_goes_on_fires_again():
    assert fired("walk again after 10s", [0.9] * 35) == [0.0, 10.0, 20.0, 30.0]
    assert fired("walk again after 10s every 15s", [0.9] * 35) == [0.0, 15.0, 30.0]
    assert fired("walk again after 10s at most 2 a minute", [0.9] * 75) == [0.0, 10.0, 60.0, 70.0]
    assert fired("walk", [0.9] * 35) == [0.0]
    assert fired("walk again after 10s", [0.9] * 5 + [0.0] * 20) == [0.0]


def test_alerts_beyond_the_limit_are_counted():
    evaluator = RuleEvaluator(parse_rule("walk every 0 at most 1 an hour"), CLASSES)
    for number, score in enumerate([0.9, 0.0] * 4):
        evaluator.push(float(number), {None: np.array([1 - score, score])})
    assert evaluator.held == 3
