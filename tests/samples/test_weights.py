"""The shipped weights on the samples that scripts made: what is found is what is played."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from costream.core.records import Segment
from costream.evaluation.metrics.segment_metrics import match, overlap
from kit.data_packs import packs
from kit.paths import SAMPLES
from kit.runs import records, run

# Of each sample: the command, the model and what it calls that nothing happens.
SAMPLE = {
    "moves.csv": ("detect", "costgcn", "background"),
    "room.mp4": ("detect", "cooadtr", "background"),
    "street.ogg": ("listen", "cosounds", "silence"),
    "band.ogg": ("listen", "cotrans", "no music"),
}
SOUNDS = ["street.ogg", "band.ogg"]
KNOWN_AFTER_S = 0.7
OVERLAP = 0.25  # of what is found and what is true, over both together


@dataclass
class Played:
    """The records of a run over a sample, its script, all of its acts and those that are events."""

    records: list[dict[str, Any]]
    script: dict[str, Any]
    acts: list[Segment]
    events: list[Segment]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["type"] == kind]

    @property
    def segments(self) -> list[Segment]:
        """The timeline."""
        keys = ("start_s", "end_s", "label", "score")
        return [Segment(*(record[key] for key in keys)) for record in self.of("segment")]

    def called(self, act: Segment, after_s: float = KNOWN_AFTER_S) -> Counter[str]:
        """Count the best labels of the steps in an act."""
        steps = self.of("prediction")
        inside = (p for p in steps if act.start_s + after_s <= p["time_s"] < act.end_s)
        return Counter(p["top"][0][0] for p in inside)


@cache
def play(name: str) -> Played:
    command, model, nothing = SAMPLE[name]
    done = run(command, SAMPLES / name, "-m", model, "-f", "jsonl", "-q")
    script = json.loads((SAMPLES / name).with_suffix(".json").read_text("utf-8"))
    acts = [Segment(s["start_s"], s["end_s"], s["label"], 1.0) for s in script["segments"]]
    records = [json.loads(line) for line in done.stdout.splitlines()]
    return Played(records, script, acts, [act for act in acts if act.label != nothing])


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_the_script_covers_the_sample_and_all_of_it_is_seen(name: str) -> None:
    played = play(name)
    script, summary = played.script, played.records[-1]
    ends = [0.0, *(s["end_s"] for s in script["segments"])]
    assert [s["start_s"] for s in script["segments"]] == ends[:-1]
    sound = "samples" in script
    length_s = script["samples"] / script["rate_hz"] if sound else script["frames"] / script["fps"]
    assert ends[-1] == pytest.approx(length_s, abs=1e-3)
    assert summary["complete"]
    assert summary["media_s"] == pytest.approx(length_s, abs=0.25 if sound else 0.2)


@pytest.mark.parametrize("name", SAMPLE)
def test_every_act_is_mostly_called_what_it_is(name: str) -> None:
    played = play(name)
    for act in played.acts if name == "room.mp4" else played.events:
        called = played.called(act)
        assert called[act.label] > sum(called.values()) / 2, (act, called)


def test_pauses_of_a_skeleton_are_mostly_the_background() -> None:
    played = play("moves.csv")
    pauses = [played.called(act) for act in played.acts if act.label == "background"]
    right = sum(called["background"] for called in pauses)
    assert right > 0.8 * sum(sum(called.values()) for called in pauses)


@pytest.mark.parametrize("name", SAMPLE)
def test_the_timeline_has_every_event_and_hardly_another(name: str) -> None:
    played = play(name)
    for event in played.events:
        same = [s for s in played.segments if s.label == event.label]
        shared_s = sum(
            max(0.0, min(s.end_s, event.end_s) - max(s.start_s, event.start_s)) for s in same
        )
        enough_s = 0.5 * (event.end_s - event.start_s) if name in SOUNDS else 0.0
        assert shared_s > enough_s, event
    wrong = [
        s
        for s in played.segments
        if not any(
            s.label == e.label and s.start_s < e.end_s + 1 and s.end_s > e.start_s
            for e in played.events
        )
    ]
    assert len(wrong) <= max(1, len(played.events) / 4), wrong


def test_a_skeleton_has_an_output_from_the_first_frame_on() -> None:
    played = play("moves.csv")
    assert played.of("prediction")[0]["time_s"] == 0
    assert played.records[-1]["steps"] == 915
    assert len(played.of("prediction")) == 458  # the network speaks at every other step


def test_the_room_shows_every_action_where_it_is() -> None:
    played = play("room.mp4")
    assert {act.label for act in played.acts} == set(played.records[0]["labels"])
    right = sum(played.called(act, 0.0)[act.label] for act in played.acts)
    assert right / len(played.of("prediction")) >= 0.8
    actions = [e for e in played.events if e.end_s - e.start_s >= 1]
    found = match(played.segments, actions, OVERLAP)
    assert None not in found
    overlaps = [overlap(m, a) for a, m in zip(actions, found, strict=True) if m is not None]
    assert sum(overlaps) >= 0.6 * len(actions)
    assert len(played.segments) <= len(played.events) + 2
    long = [s for s in played.segments if s.end_s - s.start_s >= 2]
    assert [s.label for s in long if s.label == "fall"] == ["fall"]


@pytest.mark.long
def test_a_corridor_is_reported_from_a_room() -> None:
    """Nothing was learnt from such a place: few labels, no falls, and a line that says so."""
    played = run("detect", "-m", "cooadtr", SAMPLES / "corridor.mp4", "-f", "table", "-q").stdout
    assert "unlike the training data of cooadtr (rooms seen by a camera" in played
    assert not any(f" {label} " in played for label in ("stand up", "fall", "lie"))
    assert play("room.mp4").records[-1]["unfamiliar_s"] < 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("film", "labels"),
    [
        ("bottle-detection.mp4", set()),  # arms bring and take them
        ("car-detection.mp4", set()),
        ("asl-gestures-8-signs.mp4", set()),
        ("classroom-preview.mp4", {"sit"}),
        ("one-by-one-person-detection.mp4", {"walk"}),
    ],
)
def test_films_from_elsewhere_show_nothing_that_is_not_there(
    film: str, labels: set[str], tmp_path: Path
) -> None:
    with tarfile.open(packs("samples.tar") / "samples.tar") as archive:
        member = archive.getmember(f"samples/video/{film}")
        member.name = film
        archive.extract(member, tmp_path, filter="data")
    told = records(
        run("detect", "-m", "cooadtr", tmp_path / film, "-q", "-f", "jsonl").stdout, "segment"
    )
    assert {record["label"] for record in told} == labels


def test_the_samples_are_small() -> None:
    assert (SAMPLES / "corridor.mp4").stat().st_size < 500_000
    assert (SAMPLES / "room.mp4").stat().st_size < 1_500_000
    assert (SAMPLES / "moves.csv").stat().st_size < 1_000_000
