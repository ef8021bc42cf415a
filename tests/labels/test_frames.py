"""Labels at the times of frames."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.evaluation.truth import fit_truth
from costream.labels.examples import to_examples
from costream.labels.recording import Label, Recording, frame_labels, frame_targets

NAMES = ("none", "a", "b")


def made(*labels, whole=True, duration_s=None):
    return Recording("x", tuple(Label(*told, "f, 1") for told in labels), "x", whole, duration_s)


def test_the_label_that_began_last_wins():
    recording = made((0.0, 4.0, "a"), (1.0, 2.0, "b"), (6.0, None, "b"))
    times = np.arange(8.0)
    assert frame_labels(recording, times, NAMES, "none").tolist() == [1, 2, 1, 1, 0, 0, 2, 2]
    assert frame_targets(recording, times, NAMES, "none").astype(int).tolist() == [
        *([0, 1, 0], [0, 1, 1], [0, 1, 0], [0, 1, 0]),
        *([1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 0, 1]),
    ]


@pytest.mark.parametrize(("whole", "background"), [(True, None), (False, "none"), (False, None)])
def test_frames_without_a_known_label_have_no_target(whole, background):
    recording = made((1.0, 2.0, "a"), whole=whole)
    assert frame_labels(recording, [0.0, 1.0, 2.0], NAMES, background).tolist() == [-1, 1, -1]
    assert not frame_targets(recording, [0.0, 2.0], NAMES, background).any()


@given(st.lists(st.integers(-1, 2), max_size=40), st.sampled_from([3.0, 4.0, 25.0, 30 / 1.001]))
def test_frames_rounded_to_milliseconds_come_back(rows, rate_hz):
    """A timeline in milliseconds gives each frame the label that it had."""
    stretches = [
        (round(k / rate_hz, 3), round((k + 1) / rate_hz, 3), NAMES[row])
        for k, row in enumerate(rows)
        if row >= 0
    ]
    times = np.arange(len(rows)) / rate_hz
    assert frame_labels(made(*stretches), times, NAMES, None).tolist() == rows


def test_time_without_a_label_is_background():
    recording = made((1.0, 2.0, "a"), (1.5, 3.0, "b"), (3.05, 4.0, "a"), duration_s=9.0)
    told = [(e.start_s, e.end_s, e.label) for e in to_examples([recording], "none")]
    assert told == [
        *((0.0, 1.0, "none"), (1.0, 2.0, "a"), (1.5, 3.0, "b"), (3.05, 4.0, "a")),
        (4.0, 9.0, "none"),
    ]


def test_time_that_nobody_can_use_is_reported(caplog):
    assert len(to_examples([made((1.0, 2.0, "a"))], None)) == 1
    warning = "unlabelled time left out, as there is no background class: x from 0 to 1 s"
    assert warning in caplog.text
    caplog.clear()
    to_examples([made((1.0, 2.0, "a"), whole=False)], None)
    assert not caplog.text


def test_recordings_are_spelt_as_the_model_does():
    (fitted,) = fit_truth([made((0.0, 1.0, "Dog_Bark"))], ["rain", "dog bark"])
    assert fitted.labels[0].label == "dog bark"


def test_what_is_not_an_event_is_the_background():
    one = made((0.0, 1.0, "None"), (1.0, 2.0, "nothing"), (2.0, 3.0, "dog"))
    (fitted,) = fit_truth([one], ["silence", "nothing", "dog"], background="silence")
    assert [label.label for label in fitted.labels] == ["silence", "nothing", "dog"]
