"""The shipped action weights on the rendered sample."""

from __future__ import annotations

import json

import pytest

import costream
from costream.evaluation.metrics.segments import match, overlap
from costream.records import Prediction, Segment
from costream.sources.base import SourceOptions
from kit.paths import SAMPLES

OVERLAP = 0.25  # of what is told and what is true, over both together


class Kept:
    """A sink that keeps its records."""

    def __init__(self):
        self.records = []

    def open(self, header):
        self.header = header

    def write(self, record):
        self.records.append(record)

    def close(self, summary):
        self.summary = summary


@pytest.fixture(scope="module")
def script():
    return json.loads((SAMPLES / "room.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def kept():
    sink = Kept()
    model = costream.load_model("cooadtr", SAMPLES.parent / "weights", device="cpu")
    source = costream.open_source(str(SAMPLES / "room.mp4"), SourceOptions(box=model.info.box))
    costream.run(source, model, [sink])
    return sink


def truth(script):
    return [
        Segment(s["start_s"], s["end_s"], s["label"], 1.0)
        for s in script["segments"]
        if s["label"] != "background"
    ]


def test_script_covers_the_clip_and_every_label(script, kept):
    ends = [0.0, *(s["end_s"] for s in script["segments"])]
    assert [s["start_s"] for s in script["segments"]] == ends[:-1]
    assert ends[-1] == pytest.approx(script["frames"] / script["fps"])
    assert {s["label"] for s in script["segments"]} == set(kept.header.labels)
    assert kept.summary.complete
    assert kept.summary.media_s == pytest.approx(ends[-1], abs=0.2)


def test_most_steps_have_the_right_label(script, kept):
    steps = [r for r in kept.records if isinstance(r, Prediction)]
    right = 0
    for step in steps:
        true = next(s for s in script["segments"][::-1] if s["start_s"] <= step.time_s)
        right += step.top[0][0] == true["label"]
    assert right / len(steps) >= 0.8


def test_every_action_is_found_where_it_is(script, kept):
    told = [r for r in kept.records if isinstance(r, Segment)]
    actions = [s for s in truth(script) if s.end_s - s.start_s >= 1]
    missed = [a for a, m in zip(actions, match(told, actions, OVERLAP), strict=True) if m is None]
    assert not missed
    assert sum(
        overlap(m, a) for a, m in zip(actions, match(told, actions, OVERLAP), strict=True)
    ) >= (0.6 * len(actions))


def test_hardly_anything_is_made_up(script, kept):
    told = [r for r in kept.records if isinstance(r, Segment)]
    assert len(told) <= len(truth(script)) + 2
    assert [s.label for s in told if s.end_s - s.start_s >= 2 and s.label == "fall"] == ["fall"]


def test_the_sample_is_small():
    assert (SAMPLES / "room.mp4").stat().st_size < 1_500_000
