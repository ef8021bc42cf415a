"""Timeline of objects: independent labels and their counts."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.checkpoints.card import Timeline
from costream.records import Box, Segment
from costream.runtime.segments import PresenceSegmenter, Segmenter, best_scores

LABELS = ("person", "car")
RATE_HZ = 10.0
TIMELINE = Timeline(threshold=0.5, min_length_s=0.2, min_gap_s=0.2)

Step = list[tuple[str, float]]
STEPS = st.lists(
    st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from((0.2, 0.4, 0.6, 0.9)))), max_size=40
)


def boxes(step: Step) -> list[Box]:
    return [Box(0, 0, 1, 1, score, label) for label, score in step]


def timeline(steps: list[Step], gap_after: int | None = None) -> list[Segment]:
    presence, out = PresenceSegmenter(LABELS, TIMELINE, RATE_HZ), []
    for k, step in enumerate(steps):
        out += presence.push(k / RATE_HZ, boxes(step))
        if k == gap_after:
            out += presence.gap(k / RATE_HZ, (k + 1) / RATE_HZ)
    return [*out, *presence.flush()]


@settings(max_examples=60)
@given(STEPS)
def test_each_label_is_what_a_segmenter_makes_of_its_surest_object(steps: list[Step]) -> None:
    found = timeline(steps)
    for label in LABELS:
        alone, expected = Segmenter((label,), TIMELINE, RATE_HZ), []
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


def test_classifiers_count_nothing() -> None:
    segmenter = Segmenter(LABELS, TIMELINE, RATE_HZ)
    for k in range(4):
        segmenter.push(k / RATE_HZ, np.array([0.9, 0.1]))
    assert [s.count for s in segmenter.flush()] == [None]


def test_scores_of_a_step() -> None:
    step = boxes([("car", 0.3), ("car", 0.4)])
    assert best_scores(step, LABELS).tolist() == np.array([0, 0.4], np.float32).tolist()
    assert best_scores((), LABELS).tolist() == [0, 0]


def test_labels_with_thresholds_of_their_own_and_smooth_scores() -> None:
    timeline = Timeline(0.5, min_length_s=0.0, min_gap_s=0.0, thresholds={"car": 0.8}, smooth_s=0.2)
    presence = PresenceSegmenter(LABELS, timeline, RATE_HZ)
    segmenters = [Segmenter((label,), timeline, RATE_HZ) for label in LABELS]
    scores = np.random.default_rng(0).uniform(0.3, 1.0, (60, 2)).round(3)
    out, alone = [], []
    for k, row in enumerate(scores):
        found = boxes(zip(LABELS, row.tolist(), strict=True))
        out += presence.push(k / RATE_HZ, found)
        for segmenter, score in zip(segmenters, best_scores(found, LABELS), strict=True):
            alone += segmenter.push(k / RATE_HZ, np.array([score]))
    out += presence.flush()
    alone += [s for segmenter in segmenters for s in segmenter.flush()]
    assert {(s.label, s.start_s, s.end_s) for s in out} == {
        (s.label, s.start_s, s.end_s) for s in alone
    }
    assert len({s.label for s in out}) == 2
    smoothest = presence.smoother.scores
    assert smoothest is not None
    assert presence.gap(6.0, 9.0) == []
    assert presence.smoother.scores is None
