"""Summary of a run, against plain sums over all its records."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.core.records import Box, Compute, Fault, Gap, Objects, Prediction, Segment
from costream.report.bins import Bins
from costream.report.label_stats import LabelStats
from costream.report.run_summary import DENSE, MACS, RunSummary
from costream.sinks.result_reader import read_results


@pytest.fixture
def digest(result):
    path = result(seconds=60.0, scores=True, gap=(20.0, 31.5), fault_s=10.0)
    return RunSummary.of(read_results(path), 40), list(read_results(path))


def test_labels_have_the_sums_of_their_segments(digest):
    found, records = digest
    segments = [r for r in records if isinstance(r, Segment)]
    assert {s.label for s in segments} == set(found.stats)
    for label, stats in found.stats.items():
        own = [s for s in segments if s.label == label]
        lengths = [s.end_s - s.start_s for s in own]
        assert stats.count == len(own)
        assert stats.total_s == pytest.approx(sum(lengths))
        mean = sum(s.score * n for s, n in zip(own, lengths, strict=True)) / sum(lengths)
        assert stats.score == pytest.approx(mean)
        assert stats.longest in own
        assert stats.longest.end_s - stats.longest.start_s == max(lengths)


def test_curves_have_the_sums_of_the_predictions(digest):
    found, records = digest
    predictions = [r for r in records if isinstance(r, Prediction)]
    assert found.steps == len(predictions)
    assert found.curves.steps.sum() == len(predictions)
    assert found.curves.most_in_a_bin() > 1, "the bins must have doubled for this test"
    for k, label in enumerate(found.header.labels):
        scores = [p.scores[k] for p in predictions]
        assert found.curves.total(found.labels[label]) == pytest.approx(sum(scores))
        assert found.curves.peak(found.labels[label]) == pytest.approx(max(scores))


def test_objects_and_sounds_of_a_step_are_one_step() -> None:
    """Sounds have an output at every second picture; neither curve is lowered by it."""
    found = RunSummary()
    for i in range(8):
        found.add(Objects(i, 0.2 * i, i, None, (Box(0, 0, 9, 9, 0.75, "chair"),)))
        if i % 2:
            found.add(Prediction(i, 0.2 * i, i, None, (("Siren", 0.5),), model="mn04"))
    assert found.steps == 8
    assert found.curves is not None
    assert found.curves.steps.sum() == 8
    assert found.curves.total(found.labels["chair"]) == pytest.approx(8 * 0.75)
    assert found.curves.total(found.labels["Siren"]) == pytest.approx(7 * 0.5)


def test_persons_have_curves_beside_the_objects_of_their_steps() -> None:
    records = []
    for i in range(4):
        time_s = i / 5
        records.append(Objects(i, time_s, i, i, (Box(0, 0, 1, 1, 0.8, "person", 2),)))
        for person, score in ((2, 0.5), (3, 0.25)):
            top = (("walk", score),)
            records.append(
                Prediction(i, time_s, i, i, top, None, None, False, True, "acts", person=person)
            )
    found = RunSummary.of(records)
    assert found.steps == 4
    assert found.curves is not None
    assert found.curves.total(found.labels["person"]) == pytest.approx(4 * 0.8)
    assert found.curves.total(found.labels["walk"]) == pytest.approx(4 * 0.5)


def test_cost_gaps_and_faults_are_counted(digest):
    found, records = digest
    costs = [r for r in records if isinstance(r, Compute)]
    assert found.cost.total(MACS) == sum(r.macs for r in costs)
    assert found.cost.total(DENSE) == sum(r.dense_macs for r in costs)
    assert found.cost_json()["macs"] == sum(r.macs for r in costs)
    assert found.gaps == [r for r in records if isinstance(r, Gap)]
    assert (found.gap_count, found.gap_s) == (1, 11.5)
    assert found.fault_count == sum(r.count for r in records if isinstance(r, Fault)) == 3
    assert found.span_s == (0.0, 60.0)
    assert found.complete


def test_a_document_has_the_same_cost_as_the_lines(result):
    path = result(formats="jsonl,json")
    lines = RunSummary.of(read_results(path)).cost_json()
    document = RunSummary.of(read_results(path.with_suffix(".json"))).cost_json()
    assert document["ms"]["network"] == pytest.approx(lines["ms"]["network"], abs=1e-6)
    for key in ("steps", "macs", "dense_macs", "macs_per_step", "dense_macs_per_step"):
        assert document[key] == lines[key]


def test_lists_are_cut_off_but_counts_are_not():
    found = RunSummary(most_segments=5)
    for k in range(100):
        found.add(Segment(float(k), k + 0.5, "walk", 0.5))
    assert (len(found.segments), found.segment_count) == (5, 100)
    assert found.stats["walk"].total_s == pytest.approx(50.0)
    assert found.spans.total(0) == pytest.approx(50.0)


def test_nothing_at_all_has_a_span():
    begin, end = RunSummary().span_s
    assert end > begin
    assert math.isnan(LabelStats().score)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.floats(0, 5000), st.floats(0, 1)), min_size=1, max_size=200),
    start=st.floats(0, 1e6),
)
def test_bins_lose_nothing_however_often_they_double(steps, start):
    steps = [(start, 0.5), *((start + t, v) for t, v in sorted(steps))]
    bins = Bins(16, 0.125)
    for time_s, value in steps:
        bins.add(time_s, [(5, value)])
    assert bins.steps.sum() == len(steps)
    assert bins.total(5) == pytest.approx(sum(v for _, v in steps))
    assert bins.peak(5) == max(v for _, v in steps)
    assert np.all(np.diff(bins.times()) > 0)
    assert bins.start_s + 16 * bins.bin_s >= steps[-1][0]
    assert bins.means(3).max() == 0


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(
        st.tuples(st.floats(0, 3), st.floats(0.01, 400), st.integers(0, 6)), min_size=1, max_size=40
    )
)
def test_spans_keep_their_seconds(lengths):
    bins = Bins(16, 0.125)
    now, expected = 7.0, [0.0] * 7
    for pause, length, column in lengths:
        now += pause
        bins.add_span(now, now + length, column)
        expected[column] += length
        now += length
    for column, seconds in enumerate(expected):
        assert bins.total(column) == pytest.approx(seconds, abs=1e-6)
