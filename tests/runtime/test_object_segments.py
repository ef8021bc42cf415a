"""Timeline of objects: independent labels and their counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.core.records import Box, Segment
from costream.runtime.segments import PresenceSegmenter, Segmenter, best_scores
from costream.weights_io.card import Timeline

LABELS = ("person", "car")
RATE_HZ = 10.0
TIMELINE = Timeline(threshold=0.5, min_length_s=0.2, min_gap_s=0.2)

Step = list[tuple[str, float]]
STEPS = st.lists(
    st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from((0.2, 0.4, 0.6, 0.9)))), max_size=40
)


def boxes(step: Step) -> list[Box]:
    return [Box(0, 0, 1, 1, score, label) for label, score in step]


def timeline(
    steps: list[Step], gap_after: int | None = None, settings: Timeline = TIMELINE
) -> list[Segment]:
    presence, out = PresenceSegmenter(LABELS, settings, RATE_HZ), []
    for k, step in enumerate(steps):
        out += presence.push_boxes(k / RATE_HZ, boxes(step))
        if k == gap_after:
            out += presence.gap(k / RATE_HZ, (k + 1) / RATE_HZ)
    return [*out, *presence.flush()]


@settings(max_examples=120)
@given(
    STEPS,
    st.sampled_from([TIMELINE, Timeline(0.5, thresholds={"car": 0.8}, smooth_s=0.2)]),
)
def test_each_label_is_what_a_segmenter_makes_of_its_best_object(
    steps: list[Step], values: Timeline
) -> None:
    found = timeline(steps, settings=values)
    for label in LABELS:
        alone, expected = Segmenter((label,), values, RATE_HZ), []
        for k, step in enumerate(steps):
            best = max((score for name, score in step if name == label), default=0.0)
            expected += alone.push(k / RATE_HZ, np.array([best], np.float32))
        expected += alone.flush()
        own = [(s.start_s, s.end_s, s.score) for s in found if s.label == label]
        assert own == [(s.start_s, s.end_s, s.score) for s in expected]


@settings(max_examples=60)
@given(STEPS)
def test_the_count_is_the_most_of_its_label_at_once(steps: list[Step]) -> None:
    counts = {
        label: [sum(n == label and score >= 0.5 for n, score in step) for step in steps]
        for label in LABELS
    }
    for segment in timeline(steps):
        first, last = round(segment.start_s * RATE_HZ), round(segment.end_s * RATE_HZ)
        assert segment.count == max(counts[segment.label][first:last])


def test_labels_overlap_and_do_not_close_each_other() -> None:
    steps: list[Step] = [
        [("person", 0.9), *([("car", 0.95)] * (3 <= k < 7)), *([("person", 0.6)] * (k == 5))]
        for k in range(10)
    ]
    found = [(s.label, round(s.start_s, 6), round(s.end_s, 6), s.count) for s in timeline(steps)]
    assert sorted(found) == [("car", 0.3, 0.7, 1), ("person", 0.0, 1.0, 2)]


def test_a_gap_ends_every_label() -> None:
    steps: list[Step] = [[("person", 0.9), ("car", 0.9)] for _ in range(8)]
    found = timeline(steps, gap_after=3)
    assert [s.label for s in found] == ["person", "car", "person", "car"]
    assert {round(s.end_s, 6) for s in found} == {0.4, 0.8}
    smooth = PresenceSegmenter(LABELS, replace(TIMELINE, smooth_s=0.2), RATE_HZ)
    smooth.push_boxes(0.0, boxes(steps[0]))
    assert smooth.smoother.scores is not None
    smooth.gap(0.0, 9.0)
    assert smooth.smoother.scores is None


def test_classifiers_count_nothing() -> None:
    segmenter = Segmenter(LABELS, TIMELINE, RATE_HZ)
    for k in range(4):
        segmenter.push(k / RATE_HZ, np.array([0.9, 0.1]))
    assert [s.count for s in segmenter.flush()] == [None]


def test_scores_of_a_step() -> None:
    step = boxes([("car", 0.3), ("car", 0.4)])
    assert best_scores(step, LABELS).tolist() == np.array([0, 0.4], np.float32).tolist()
    assert best_scores((), LABELS).tolist() == [0, 0]
