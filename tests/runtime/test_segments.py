"""Segmenter and smoothing: examples, and slow offline references."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.core.errors import UsageError
from costream.core.hysteresis import Smoother
from costream.core.records import Segment
from costream.runtime.segments import IndependentSegmenter, Segmenter
from costream.weights_io.card import Timeline

LABELS = ("nothing", "walk", "sit", "fall")
RATE_HZ = 10.0
SLACK_S = 1e-6


@dataclass(frozen=True)
class Case:
    """Steps (time, scores) and gaps (start, end) in the order in which they come."""

    events: tuple[tuple[float, np.ndarray] | tuple[float, float], ...]
    timeline: Timeline
    delay_s: float = 0.0
    background: str | None = "nothing"


def scores(label: int, confidence: float) -> np.ndarray:
    rest = (1 - confidence) / (len(LABELS) - 1)
    return np.where(np.arange(len(LABELS)) == label, confidence, rest).astype(np.float32)


def case(pattern: str, confidence: float = 0.9, **timeline: Any) -> Case:
    """One letter a step (n, w, s, f); a bar is a gap of 2 s."""
    events: list = []
    time_s = 0.0
    for letter in pattern:
        if letter == "|":
            events.append((time_s - 1 / RATE_HZ, time_s + 2.0))
            time_s += 2.0
        else:
            label = [name[0] for name in LABELS].index(letter)
            events.append((time_s, scores(label, confidence)))
            time_s += 1 / RATE_HZ
    return Case(tuple(events), Timeline(**timeline))


def make(case: Case) -> Segmenter:
    return Segmenter(LABELS, case.timeline, RATE_HZ, case.delay_s, case.background)


def stream(case: Case) -> list[list[Segment]]:
    """What comes out at each event, and at the end."""
    segmenter = make(case)
    out = []
    for first, second in case.events:
        if isinstance(second, np.ndarray):
            out.append(segmenter.push(first, second))
        else:
            out.append(segmenter.gap(first, second))
    return [*out, end(segmenter, case)]


def end(segmenter: Segmenter, case: Case) -> list[Segment]:
    """What comes out when the data end with the last step."""
    times = [first for first, second in case.events if isinstance(second, np.ndarray)]
    if not times:
        return segmenter.flush()
    end_s = times[-1] + 1 / RATE_HZ
    return segmenter.finish(end_s, end_s - times[0] if len(times) == len(case.events) else math.inf)


def found(case: Case) -> list[tuple[float, float, str]]:
    flat = [s for group in stream(case) for s in group]
    return [(round(s.start_s, 6), round(s.end_s, 6), s.label) for s in flat]


# --- the reference: whole arrays, steps by index, nothing incremental ------------------------


def reference(case: Case) -> list[Segment]:
    stretches: list[list[tuple[float, np.ndarray]]] = [[]]
    for first, second in case.events:
        if isinstance(second, np.ndarray):
            stretches[-1].append((first, second))
        else:
            stretches.append([])
    return [
        s
        for k, stretch in enumerate(stretches)
        if stretch
        for s in _stretch(stretch, case, k == len(stretches) - 1, len(stretches) == 1)
    ]


def _runs(labels: Iterable[int | None]) -> list[list[int]]:
    """Return the runs of equal labels: label, first step, last step."""
    runs: list[list[int]] = []
    for k, label in enumerate(labels):
        if label is None:
            continue
        if runs and runs[-1][0] == label and runs[-1][2] == k - 1:
            runs[-1][2] = k
        else:
            runs.append([label, k, k])
    return runs


def _stretch(
    steps: list[tuple[float, np.ndarray]], case: Case, last: bool, alone: bool
) -> list[Segment]:
    """``last``: the data end with it; ``alone``: there are no gaps."""
    times = np.array([t for t, _ in steps])
    p = smooth(times, np.array([values for _, values in steps], dtype=np.float64), case)
    starts = np.maximum(times - case.delay_s, times[0])
    ends = np.maximum(times + 1 / RATE_HZ - case.delay_s, times[0])
    ends[-1] = times[-1] + 1 / RATE_HZ  # no later step says anything else of the time up to here
    runs = _runs(_labels(p, case))

    def short(run: list[int]) -> bool:
        length = ends[run[2]] - starts[run[1]]
        if alone and length > 0 and length >= ends[-1] - times[0] - SLACK_S:
            return False
        return length <= 0 or length < case.timeline.min_length_s - SLACK_S

    def joins(a: list[int], b: list[int]) -> bool:
        near = starts[b[1]] - ends[a[2]] <= case.timeline.min_gap_s + SLACK_S
        return a[0] == b[0] and near

    rows = np.array([values for _, values in steps])
    there = presence(times, rows, case)
    if last:  # as if the last step went on for ever
        there[-1] |= presence(times[-1:], rows[-1:], case)[0]
    kept: list[list[int]] = []
    for run in runs:
        if kept and short(kept[-1]) and not joins(kept[-1], run):
            kept.pop()
        if kept and joins(kept[-1], run):
            kept[-1][2] = run[2]
        else:
            kept.append(list(run))
    return [
        Segment(starts[a], ends[b], LABELS[label], float(p[a : b + 1, label].mean()))
        for label, a, b in kept
        if not short([label, a, b]) and there[a : b + 1].any()
    ]


def presence(times: np.ndarray, p: np.ndarray, case: Case) -> np.ndarray:
    """Whether the smooth 1 - background is at least the threshold, [T]."""
    line = case.timeline
    if not line.presence_s or case.background is None:
        return np.ones(len(times), np.bool_)
    alone = replace(case, timeline=replace(line, smooth_s=line.presence_s))
    column = LABELS.index(case.background)
    return smooth(times, 1 - p[:, column : column + 1], alone)[:, 0] >= min(line.threshold, 0.8)


def smooth(times: np.ndarray, p: np.ndarray, case: Case) -> np.ndarray:
    """Each row as a sum over all rows before it, as the definition unrolls."""
    if not case.timeline.smooth_s:
        return p
    kept = np.exp(-np.diff(times) / case.timeline.smooth_s)  # of what was, at each step
    out = []
    for k in range(len(p)):
        shares = np.append(1.0, 1 - kept[:k]) * np.append(np.cumprod(kept[:k][::-1])[::-1], 1.0)
        out.append(shares @ p[: k + 1])
    return np.array(out)


def _labels(p: np.ndarray, case: Case) -> list[int | None]:
    high = [case.timeline.threshold_of(name) for name in LABELS]
    low = [case.timeline.low_of(name) for name in LABELS]
    events = [k for k, name in enumerate(LABELS) if name != case.background]
    out: list[int | None] = []
    for row in p:
        last = out[-1] if out else None
        sure = [k for k in events if row[k] >= high[k]]
        best = max(sure, key=lambda k: row[k], default=None)
        if best is not None and (last is None or row[best] > row[last]):
            out.append(best)
        else:
            out.append(last if last is not None and row[last] >= low[last] else None)
    return out


@st.composite
def cases(draw: st.DrawFn) -> Case:
    runs = draw(
        st.lists(
            st.tuples(
                st.integers(0, len(LABELS) - 1),
                st.integers(1, 7),
                st.sampled_from([0.3, 0.35, 0.45, 0.5, 0.6, 0.9]),
                st.sampled_from([False, False, False, True]),
            ),
            max_size=25,
        )
    )
    time_s, events = draw(st.sampled_from([0.0, 12.3])), []
    for label, length, confidence, gap in runs:
        if gap and events:
            events.append((time_s - 1 / RATE_HZ, time_s + 1.5))
            time_s += 1.5
        for _ in range(length):
            events.append((time_s, scores(label, confidence)))
            time_s += 1 / RATE_HZ
    timeline = Timeline(
        threshold=draw(st.sampled_from([0.34, 0.5, 0.8])),
        low=draw(st.sampled_from([None, 0.2, 0.34])),
        min_length_s=draw(st.sampled_from([0.0, 0.1, 0.3, 0.5])),
        min_gap_s=draw(st.sampled_from([0.0, 0.2, 0.5])),
        thresholds=draw(
            st.dictionaries(st.sampled_from(LABELS), st.sampled_from([0.31, 0.4, 0.52, 0.85]))
        ),
        smooth_s=draw(st.sampled_from([0.0, 0.0, 0.11, 0.37])),
        presence_s=draw(st.sampled_from([0.0, 0.0, 0.23, 0.61])),
    )
    delay_s, background = (
        draw(st.sampled_from([0.0, 0.25])),
        draw(st.sampled_from([None, LABELS[0]])),
    )
    return Case(tuple(events), timeline, delay_s, background)


@settings(max_examples=200, deadline=None)
@given(cases())
def test_equals_the_offline_reference(case: Case) -> None:
    groups, timeline = stream(case), case.timeline
    streamed = [s for group in groups for s in group]
    expected = reference(case)
    assert [s.label for s in streamed] == [s.label for s in expected]
    for a, b in zip(streamed, expected, strict=True):
        np.testing.assert_allclose(
            [a.start_s, a.end_s, a.score], [b.start_s, b.end_s, b.score], atol=1e-9
        )
    # Ordered, disjoint and long enough, and within what steps cover.
    for before, after in itertools.pairwise(streamed):
        assert before.end_s <= after.start_s + 1e-9
    times = [first for first, second in case.events if isinstance(second, np.ndarray)]
    steps = [(t - case.delay_s, t - case.delay_s + 1 / RATE_HZ) for t in times]
    for s in streamed:
        whole = s.start_s == min(times) and s.end_s == max(times) + 1 / RATE_HZ
        assert whole or s.end_s - s.start_s >= max(timeline.min_length_s, 1e-9) - SLACK_S
        assert s.label != case.background
        assert 0 <= s.score <= 1
        assert any(a < s.end_s - 1e-9 and b > s.start_s - case.delay_s + 1e-9 for a, b in steps)
        assert s.end_s <= max(times) + 1 / RATE_HZ + 1e-9
        assert s.start_s >= min(times) - 1e-9
    # A segment comes as soon as it is final: never later than the gap time after its end.
    covered_s = 0.0
    for event, group in itertools.zip_longest(case.events, groups):
        if event is not None and isinstance(event[1], np.ndarray):
            covered_s = event[0] + 1 / RATE_HZ - case.delay_s
        for s in group:
            late_s = covered_s - s.end_s - timeline.min_gap_s
            assert late_s <= 1 / RATE_HZ + SLACK_S  # time passes in steps


# --- the rules, one by one -------------------------------------------------------------------


WALK = [(0.2, 0.8, "walk")]
APART = [(0.0, 0.6, "walk"), (0.6, 0.9, "fall"), (0.9, 1.5, "walk")]


@pytest.mark.parametrize(
    ("pattern", "options", "expected"),
    [
        ("nnwwwwwwnn", {}, WALK),
        ("nnnnnnnnnnnn", {}, []),  # the background is never a segment
        ("wwwwwwssssss", {}, [(0.0, 0.6, "walk"), (0.6, 1.2, "sit")]),  # another takes over
        ("nnwwwwnnnnnnnnnnnn", {}, []),  # too short
        ("nnwwwwwnnnnnnnnnnn", {}, [(0.2, 0.7, "walk")]),  # exactly long enough
        ("wwwwwwnnnnnwwwwww", {}, [(0.0, 1.7, "walk")]),  # joined over a pause
        ("wwwwwwnnnnnnwwwwww", {}, [(0.0, 0.6, "walk"), (1.2, 1.8, "walk")]),
        ("wwwwwwffwwwwww", {}, [(0.0, 1.4, "walk")]),  # joined over a blip
        ("wwwwwwfffwwwwww", {"min_length_s": 0.3}, APART),  # a long enough other label separates
        ("wwwnnwwwnnnnnnnn", {}, [(0.0, 0.8, "walk")]),  # short pieces join to a long one
        ("nnwwwwwwffffffnnn", {}, [*WALK, (0.8, 1.4, "fall")]),
        ("nnwwwwwwffffffnnn", {"thresholds": {"fall": 0.95}}, WALK),
        ("nnwwwwwwffffffnnn", {"confidence": 0.4, "thresholds": {"walk": 0.4}}, WALK),
        # A gap ends everything and joins nothing.
        ("wwwwww|wwwwww", {"min_gap_s": 10.0}, [(0.0, 0.6, "walk"), (2.6, 3.2, "walk")]),
    ],
)
def test_examples(pattern: str, options: dict[str, Any], expected: list[Any]) -> None:
    assert found(case(pattern, **options)) == expected


def test_score_is_the_mean_over_the_steps() -> None:
    segmenter = make(case(""))
    for i, p in enumerate((0.9, 0.7, 0.8, 0.6, 0.5)):
        segmenter.push(i / RATE_HZ, scores(1, p))
    assert segmenter.flush()[0].score == pytest.approx(0.7)


def test_the_background_never_closes_a_segment() -> None:
    # 0.35 for walk is above 0.6 x 0.5, and 0.65 for the background does not take over.
    segmenter = Segmenter(("nothing", "walk"), Timeline(), RATE_HZ, 0.0, "nothing")
    for i, walk in enumerate((0.6, 0.6, 0.35, 0.35, 0.35, 0.35, 0.35, 0.35)):
        assert segmenter.push(i / RATE_HZ, np.array([1 - walk, walk])) == []
    assert segmenter.flush()[0].end_s == pytest.approx(0.8)


def test_without_background_every_label_counts() -> None:
    plain = Case(case("nnnnnnwwwwww").events, Timeline(), background=None)
    assert found(plain) == [(0.0, 0.6, "nothing"), (0.6, 1.2, "walk")]


def test_a_tie_takes_nothing_over() -> None:
    segmenter = Segmenter(("a", "b"), Timeline(), RATE_HZ)
    for i, p in enumerate(([0.4, 0.6], *([0.5, 0.5],) * 5)):
        segmenter.push(i / RATE_HZ, np.array(p))
    assert [s.label for s in segmenter.flush()] == ["b"]


def test_where_the_best_label_is_not_sure_enough_another_may_open() -> None:
    timeline = Timeline(threshold=0.8, thresholds={"sit": 0.3}, min_length_s=0.1)
    segmenter = Segmenter(LABELS, timeline, RATE_HZ, background="nothing")
    segmenter.push(0.0, np.array([0.0, 0.6, 0.4, 0.0]))
    assert [s.label for s in segmenter.flush()] == ["sit"]


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(0, 60))
def test_a_snapshot_continues_as_if_uninterrupted(case: Case, cut: int) -> None:
    case = replace(case, timeline=replace(case.timeline, smooth_s=0.0))  # it is saved elsewhere
    first, second = case.events[:cut], case.events[cut:]
    begun, out = make(case), list[Segment]()
    for one, two in first:
        out += begun.push(one, two) if isinstance(two, np.ndarray) else begun.gap(one, two)
    resumed = make(case)
    resumed.restore(json.loads(json.dumps(begun.snapshot())))
    for one, two in second:
        out += resumed.push(one, two) if isinstance(two, np.ndarray) else resumed.gap(one, two)
    assert [*out, *end(resumed, case)] == [s for group in stream(case) for s in group]


def test_low_is_in_proportion_to_the_threshold() -> None:
    assert Timeline(0.5).low_of("walk") == pytest.approx(0.3)
    assert Timeline(0.5, 0.4).low_of("walk") == 0.4
    own = Timeline(0.5, 0.4, thresholds={"walk": 0.25})
    assert (own.low_of("walk"), own.low_of("sit")) == (pytest.approx(0.2), 0.4)
    assert Timeline(0.5, thresholds={"walk": 0.8}).low_of("walk") == pytest.approx(0.48)


def test_smooth_scores_pass_over_a_flicker() -> None:
    flicker = "wwwwwwwwwwwwfwwwfwwwwwwwwwwwww"
    rough = found(case(flicker, min_gap_s=0.0, min_length_s=0.1))
    assert [label for _, _, label in rough] == ["walk", "fall", "walk", "fall", "walk"]
    calm = found(case(flicker, min_gap_s=0.0, min_length_s=0.1, smooth_s=0.3))
    assert calm == [(0.0, 3.0, "walk")]


def test_an_object_that_has_just_appeared_is_not_reported() -> None:
    there = replace(case("nnnnwwwwwwwwnnnnnnnn"), background=LABELS[0])
    lasting = replace(there, timeline=Timeline(0.7, presence_s=1.0))
    assert found(there) == [(0.4, 1.2, "walk")]
    assert found(lasting) == []
    # What has been there for long is told from its start, whatever it does now.
    for timeline in (Timeline(0.7), Timeline(0.7, presence_s=1.0)):
        long = replace(case("nnnn" + 12 * "w" + "ffffffnn"), background=LABELS[0])
        told = found(replace(long, timeline=timeline))
        assert told == [(0.4, 1.6, "walk"), (1.6, 2.2, "fall")]
    # A flicker before it counts takes nothing away, and the surest threshold can be reached.
    flicker = replace(case("nn" + 8 * "w" + "f" + 20 * "w"), background=LABELS[0])
    for threshold in (0.7, 0.85):
        told = found(replace(flicker, timeline=Timeline(threshold, presence_s=1.5)))
        assert told == [(0.2, 3.1, "walk")]


def test_given_out_as_soon_as_it_is_final() -> None:
    groups = stream(case("wwwwwwnnnnnnnnnn"))
    assert [k for k, group in enumerate(groups) if group] == [11]  # 0.6 + 0.5 s have passed
    groups = stream(case("wwwwwwssssssssss"))
    assert [k for k, group in enumerate(groups) if group] == [10, 16]  # sit has lasted 0.5 s
    groups = stream(case("wwwwww|nnn"))
    assert [k for k, group in enumerate(groups) if group] == [6]


def test_steps_behind_the_last_data_are_cut_off() -> None:
    segmenter = make(case(""))
    for i in range(20):
        segmenter.push(i / RATE_HZ, scores(1, 0.9))
    assert segmenter.gap(0.9, 5.0)[0].end_s == pytest.approx(1.0)


def test_delay_shifts_back_but_not_before_the_start() -> None:
    late = Case(case("nnnnnwwwwwwnnnnnnnnn").events, Timeline(), delay_s=0.3)
    assert found(late) == [(0.2, 0.8, "walk")]
    late = Case(case("wwwwwwwwwnnnnnnnnn").events, Timeline(), delay_s=0.3)
    assert found(late) == [(0.0, 0.6, "walk")]


def test_scores_that_are_not_numbers_open_nothing() -> None:
    segmenter = make(case(""))
    for i in range(20):
        segmenter.push(i / RATE_HZ, np.full(len(LABELS), np.nan))
    assert segmenter.flush() == []
    segmenter = make(case(""))  # nor does nothing at all
    assert segmenter.gap(0.0, 5.0) == []
    assert segmenter.flush() == []


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("threshold", [0.0, 1.5, float("nan")]),
        ("low", [0.7, -0.1]),
        ("min_length_s", [-1.0]),
        ("min_gap_s", [float("nan")]),
        ("thresholds", [{"walk": 0.0}, {"walk": 1.5}]),
        ("smooth_s", [-1.0]),
        ("presence_s", [-1.0]),
    ],
)
def test_settings_that_make_no_sense(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(UsageError):
            Segmenter(LABELS, Timeline(**{name: value}), RATE_HZ)


# --- smoothing

TIMES = st.lists(st.sampled_from([0.0, 0.01, 0.1, 0.125, 0.7, 30.0]), min_size=1, max_size=30)


def rows(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).dirichlet(np.ones(3), count)


def smoothed(smoother: Smoother, times: np.ndarray[Any, Any], p: np.ndarray[Any, Any]) -> list[Any]:
    return [smoother.push(t, row).copy() for t, row in zip(times, p, strict=True)]


@given(TIMES, st.sampled_from([0.05, 0.5, 10.0]), st.integers(0, 99))
def test_is_the_average_with_weights_that_fade(
    steps: list[float], smooth_s: float, seed: int
) -> None:
    times, p = np.cumsum(steps), rows(len(steps), seed)
    out = np.array(smoothed(Smoother(smooth_s), times, p))
    for k in range(len(p)):
        # What is up to a time counts exp(-age / smooth_s); the first row stands for all before.
        fade = np.exp(-(times[k] - times[: k + 1]) / smooth_s)
        expected = np.diff(fade, prepend=0.0) @ p[: k + 1]
        np.testing.assert_allclose(out[k], expected, atol=1e-12)
    np.testing.assert_allclose(out.sum(1), 1.0)
    assert out.min() >= 0


@given(TIMES, st.integers(0, 29))
def test_continues_bit_for_bit(steps: list[float], cut: int) -> None:
    times, p = np.cumsum(steps), rows(len(steps))
    whole = smoothed(Smoother(0.3), times, p)
    first, second = Smoother(0.3), Smoother(0.3)
    out = smoothed(first, times[:cut], p[:cut])
    if first.scores is not None:
        kept = json.loads(json.dumps([first.time_s, *first.scores.tolist()]))
        second.time_s, second.scores = kept[0], np.array(kept[1:])
    out += smoothed(second, times[cut:], p[cut:])
    assert np.array_equal(out, whole)


def test_zero_seconds_change_no_bit_and_a_reset_leaves_nothing() -> None:
    p = rows(20)
    assert np.array_equal(smoothed(Smoother(0.0), np.arange(20) / 8, p), p)
    smoother = Smoother(5.0)
    smoothed(smoother, np.arange(9.0), rows(9))
    smoother.reset()
    assert smoother.time_s is None
    assert np.array_equal(smoother.push(9.1, rows(1)[0]), rows(1)[0])


def test_a_clock_that_stands_still_changes_nothing() -> None:
    smoother = Smoother(1.0)
    first, second = rows(2)
    smoother.push(4.0, first)
    assert np.array_equal(smoother.push(4.0, second), first)


# --- steps that are things of their own, as lines of text ------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from([1e-5, 0.004, 0.2, 1.0, 1.7, 9.0]), st.integers(0, 3)),
        min_size=1,
        max_size=40,
    )
)
def test_no_line_is_lost_however_close_they_come(lines: list[tuple[float, int]]) -> None:
    """A run of lines with one label is a segment, from its first line to the next of another."""
    segmenter = Segmenter(LABELS, Timeline(), 1.0, 0.0, "nothing", each=True)
    times = np.cumsum([apart_s for apart_s, _ in lines]).tolist()
    out: list[Segment] = []
    for time_s, (_, label) in zip(times, lines, strict=True):
        out += segmenter.push(time_s, scores(label, 0.9))
        assert segmenter.label == (LABELS[label] if label else None)
    out += segmenter.finish(times[-1] + 1)
    expected: list[list[Any]] = []
    for k, (time_s, (_, label)) in enumerate(zip(times, lines, strict=True)):
        end_s = min(time_s + 1, times[k + 1] if k + 1 < len(times) else math.inf)
        if label and expected and expected[-1][3] == k - 1 and expected[-1][2] == LABELS[label]:
            expected[-1][1], expected[-1][3] = end_s, k
        elif label:
            expected.append([time_s, end_s, LABELS[label], k])
    assert [[s.start_s, s.end_s, s.label] for s in out] == [
        [pytest.approx(start_s), pytest.approx(end_s), label]
        for start_s, end_s, label, _ in expected
    ]


@pytest.mark.parametrize("pattern", ["nwwwwwwnn", "wwwwwwnnsss", "wwwwwwwwssssssssn", "nnnwwn"])
def test_what_is_pending_is_what_the_end_would_return_and_nothing_changes(pattern: str) -> None:
    for presence_s in (0.0, 0.4):
        asked, other = (make(case(pattern, presence_s=presence_s)) for _ in range(2))
        for time_s, p in case(pattern).events:
            assert asked.push(time_s, p) == other.push(time_s, p)
            pending = asked.pending(time_s + 0.1)
            ended = make(case(pattern, presence_s=presence_s))
            ended.restore(json.loads(json.dumps(other.snapshot())))
            ended.presence.now = other.presence.now
            assert pending == ended.finish(time_s + 0.1)
        assert asked.flush() == other.flush()


@pytest.mark.parametrize("seed", range(6))
def test_labels_that_do_not_exclude_one_another_have_the_segments_of_each_alone(seed):
    """Beginning, gaps, a resumed state and the end are the same for quiet labels."""
    rng, labels = np.random.default_rng(seed), ("a", "b", "c", "d")
    timeline = Timeline(threshold=0.7, min_length_s=0.4, min_gap_s=0.5, thresholds={"b": 0.9})
    together = IndependentSegmenter(labels, timeline, 4.0, 0.3 * (seed % 2))
    alone = [Segmenter((name,), timeline, 4.0, 0.3 * (seed % 2)) for name in labels]
    found: list[list[Segment]] = [[], []]

    def note(one: list[Segment], each: list[list[Segment]]) -> None:
        found[0] += one
        found[1] += sorted((s for part in each for s in part), key=lambda s: s.start_s)

    together.begin(-0.1)
    for each in alone:
        each.begin(-0.1)
    scores, time_s = np.zeros(4), 0.0
    for _ in range(80):
        scores = np.where(rng.random(4) < 0.3, rng.random(4), scores)
        time_s += 0.25
        parts = [e.push(time_s, scores[k : k + 1]) for k, e in enumerate(alone)]
        note(together.push(time_s, scores), parts)
        if rng.random() < 0.1:
            note(together.gap(time_s, time_s + 2), [e.gap(time_s, time_s + 2) for e in alone])
            time_s += 2
        assert together.snapshot() == {"labels": [each.snapshot() for each in alone]}
        if rng.random() < 0.1:
            resumed = IndependentSegmenter(labels, timeline, 4.0, 0.3 * (seed % 2))
            resumed.restore(together.snapshot())
            assert resumed.snapshot() == together.snapshot()
    note(together.finish(time_s + 1), [each.finish(time_s + 1) for each in alone])
    assert found[0] == found[1]
    assert len(found[0]) > 10
