"""The shipped audio weights on the synthesised samples."""

from __future__ import annotations

import json
import sys
from collections import Counter

import numpy as np
import pytest

from kit.paths import SAMPLES
from kit.runs import run

NAMES = {"street": ("cosounds", "silence"), "band": ("cotrans", "no music")}
KNOWN_AFTER_S = 0.75


@pytest.fixture(scope="module", params=NAMES)
def heard(request):
    """Records of a run over a sample, its script, and what is no event."""
    model, nothing = NAMES[request.param]
    done = run("listen", SAMPLES / f"{request.param}.ogg", "-m", model, "-q")
    script = json.loads((SAMPLES / f"{request.param}.json").read_text("utf-8"))
    events = [s for s in script["segments"] if s["label"] != nothing]
    return [json.loads(line) for line in done.stdout.splitlines()], events, script


def test_every_event_is_mostly_called_what_it_is(heard):
    records, events, _ = heard
    predictions = [r for r in records if r["type"] == "prediction"]
    for event in events:
        said = Counter(
            p["top"][0][0]
            for p in predictions
            if event["start_s"] + KNOWN_AFTER_S <= p["time_s"] < event["end_s"]
        )
        assert said[event["label"]] > sum(said.values()) / 2, (event, said)


def test_the_timeline_has_every_event_in_its_time(heard):
    records, events, _ = heard
    segments = [r for r in records if r["type"] == "segment"]
    for event in events:
        shared = sum(
            max(0.0, min(s["end_s"], event["end_s"]) - max(s["start_s"], event["start_s"]))
            for s in segments
            if s["label"] == event["label"]
        )
        assert shared > 0.5 * (event["end_s"] - event["start_s"]), event


def test_all_of_it_is_heard(heard):
    records, _, script = heard
    length_s = script["samples"] / script["rate_hz"]
    assert abs(records[-1]["media_s"] - length_s) <= 0.25


def test_the_scripts_are_those_that_make_writes(monkeypatch):
    monkeypatch.syspath_prepend(str(SAMPLES))
    for module in ("pieces", "recording", "sounds"):
        sys.modules.pop(module, None)
    import pieces
    import recording
    import sounds

    for name, made in (("street", sounds.street()), ("band", pieces.band())):
        wave, segments = recording.joined(made, NAMES[name][1])
        script = json.loads((SAMPLES / f"{name}.json").read_text("utf-8"))
        assert script["segments"] == segments
        assert script["samples"] == len(wave)
        assert 0.1 < np.abs(wave).max() < 1
