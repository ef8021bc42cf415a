"""Label hysteresis, against a plain reference loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.hysteresis import Hysteresis
from costream.core.records import LOW, Head
from costream.weights_io.card import Timeline

LABELS = ("nothing", "walk", "fall")


def reference(series, thresholds, background):
    """Follow the rule one label at a time, without arrays."""
    current, out = None, []
    for scores in series:
        best = None
        for label, score in zip(LABELS, scores, strict=True):
            opens = label != background and score >= thresholds.threshold_of(label)
            if opens and (best is None or score > scores[LABELS.index(best)]):
                best = label
        score = None if current is None else scores[LABELS.index(current)]
        if best is not None and (score is None or scores[LABELS.index(best)] > score):
            current = best
        elif score is not None and score < thresholds.low_of(current):
            current = None
        out.append(current)
    return out


levels = st.sampled_from([0.0, 0.125, 0.25, 0.3, 0.375, 0.5, 0.625, 0.75, 1.0])
timelines = st.builds(
    Timeline,
    threshold=st.sampled_from([0.375, 0.5, 0.625]),
    low=st.sampled_from([None, 0.0, 0.25, 0.375]),
    thresholds=st.dictionaries(st.sampled_from(LABELS), st.sampled_from([0.25, 0.5, 0.75])),
)


@given(
    st.lists(st.tuples(levels, levels, levels), max_size=60),
    timelines,
    st.sampled_from([None, "nothing"]),
)
def test_opens_and_closes_as_the_rule_reads(series, timeline, background):
    hysteresis = Hysteresis(LABELS, timeline, background)
    current, out = None, []
    for scores in series:
        current = hysteresis.step(np.array(scores), current)
        out.append(None if current is None else LABELS[current])
    assert out == reference(series, timeline, background)


@pytest.mark.parametrize("low", [None, 0.45])
def test_a_head_has_the_thresholds_of_its_timeline(low):
    head = Head("cotrans", "0" * 64, LABELS, "nothing", 0.0, 0.5, {"fall": 0.8}, low=low)
    timeline = Timeline(0.5, low, thresholds={"fall": 0.8})
    for label in LABELS:
        assert head.threshold_of(label) == timeline.threshold_of(label)
        assert head.low_of(label) == timeline.low_of(label)
    assert Head("cotrans", "0" * 64, LABELS, "nothing", 0.0, 0.5).low_of("walk") == LOW * 0.5


def test_a_lower_threshold_is_in_proportion_for_labels_with_their_own():
    timeline = Timeline(threshold=0.5, low=0.25, thresholds={"fall": 0.8})
    assert timeline.low_of("walk") == 0.25
    assert timeline.low_of("fall") == pytest.approx(0.4)
