"""Online instances: what is reported when, what is revised, and the timeline in the end."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.core.records import Segment
from costream.runtime.instances import InstanceTracker, first_reports, instances
from costream.runtime.segments import Segmenter
from costream.weights_io.card import Timeline

LABELS = ("background", "wave", "sit")
TIMELINE = Timeline(threshold=0.6, low=0.4, min_length_s=0.2, min_gap_s=0.3)
RATE_HZ = 10.0


def reports(wave: list[float], **options: float):
    """All reports for scores of one label, ten steps a second."""
    rows = np.stack([1 - np.array(wave), wave, np.zeros(len(wave))], 1)
    tracker = InstanceTracker(LABELS, TIMELINE, RATE_HZ, background="background", **options)
    return instances(np.arange(len(wave)) / RATE_HZ, rows, tracker, len(wave) / RATE_HZ)


def brief(found):
    return [(i.number, i.start_s, i.end_s, i.known_s, i.revised, i.final) for i in found]


def test_an_instance_is_reported_when_it_is_long_enough_and_when_it_ends():
    found = reports([0, 0.7, 0.8, 0.5, 0.1, 0, 0, 0, 0])
    assert [i.label for i in found] == ["wave"] * 3
    assert brief(found) == [
        (1, 0.1, None, 0.2, 0, False),
        (1, 0.1, 0.4, 0.4, 0, False),
        (1, 0.1, 0.4, 0.7, 0, True),
    ]
    assert found[-1].score == (0.7 + 0.8 + 0.5) / 3


def test_an_end_is_taken_back_when_the_label_returns():
    found = reports([0.9, 0.9, 0.1, 0.9, 0.9, 0, 0, 0, 0, 0])
    assert brief(found) == [
        (1, 0.0, None, 0.1, 0, False),
        (1, 0.0, 0.2, 0.2, 0, False),
        (1, 0.0, None, 0.3, 1, False),
        (1, 0.0, 0.5, 0.5, 1, False),
        (1, 0.0, 0.5, 0.8, 1, True),
    ]
    assert [(i.start_s, i.end_s) for i in first_reports(found)] == [(0.0, 0.2)]


def test_a_start_reaches_back_to_steps_above_the_lower_threshold():
    wave = [0.5, 0.1, 0.5, 0.5, 0.7, 0.8, 0.1, 0.1, 0.1, 0.1, 0.1]
    assert reports(wave)[0].start_s == 0.4
    assert reports(wave, look_back_s=5.0)[0].start_s == 0.2
    assert reports(wave, look_back_s=0.1)[0].start_s == 0.3


def test_an_end_of_the_data_ends_an_instance():
    assert brief(reports([0.9, 0.9, 0.9]))[-1] == (1, 0.0, 0.3, 0.3, 0, True)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.floats(0, 1)] * 3), min_size=1, max_size=60))
def test_final_instances_are_the_timeline(rows):
    segmenter = Segmenter(LABELS, TIMELINE, RATE_HZ, background="background")
    times, wanted = np.arange(len(rows)) / RATE_HZ, []
    for time_s, row in zip(times, rows, strict=True):
        wanted += segmenter.push(time_s, np.array(row))
    wanted += segmenter.finish(len(rows) / RATE_HZ)
    tracker = InstanceTracker(LABELS, TIMELINE, RATE_HZ, background="background")
    found = instances(times, rows, tracker, len(rows) / RATE_HZ)
    final = [Segment(i.start_s, i.end_s, i.label, i.score) for i in found if i.final]
    assert final == wanted
    numbers = [i.number for i in found]
    assert sorted(set(numbers)) == list(range(1, len(wanted) + 1))
    assert all(i.known_s >= i.start_s for i in found)
    for number in set(numbers):
        mine = [i for i in found if i.number == number]
        assert [i.final for i in mine] == [False] * (len(mine) - 1) + [True]
        ends = [i.end_s for i in mine]
        assert all(a != b for a, b in itertools.pairwise(ends[:-1]))
