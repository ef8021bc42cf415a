"""Several persons of a feed in watch: a timeline, rules and a line of the dashboard for each."""

from __future__ import annotations

import csv
import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import costream
from costream.core.layouts import find_layout
from costream.core.places import PlaceCount
from costream.core.records import Alert, Prediction, Segment, SkeletonFrame, VideoFrame
from costream.core.status import PersonStatus
from costream.runtime.alerts.alerts import read_options
from costream.runtime.alerts.evaluator import RuleEvaluator
from costream.runtime.alerts.rules import RuleLabels, parse_rule
from costream.runtime.persons import GONE_S, PersonRows
from costream.runtime.watch.feed_list import FeedSpec
from costream.runtime.watch.home_assistant import descriptions
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from costream.ui.screen import Viewport
from costream.ui.watch.dashboard import Board
from kit.paths import SAMPLES
from kit.watched import feed, watch

RATE_HZ, FIRST = 15, 150  # rows of the sample a second; the row that the table begins with
LATER = 210  # the second person moves as the first one did so many rows before
COMES = 60  # rows until the second person comes


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two persons of the sample's motions, side by side; the second comes after four seconds."""
    with (SAMPLES / "moves.csv").open() as file:
        head, *rows = list(csv.reader(file))
    path = tmp_path_factory.mktemp("persons") / "two.csv"
    sideways = [name.endswith("_x") for name in head]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["person", *head])
        for t in range(400):
            moment = f"{t / RATE_HZ:.4f}"
            writer.writerow(["a", moment, *rows[FIRST + t][1:]])
            if t >= COMES:
                other = zip(rows[FIRST + LATER + t], sideways, strict=True)
                values = [str(float(v) + 4.0) if side else v for v, side in other]
                writer.writerow(["b", moment, *values[1:]])
    return path


@pytest.mark.long
def test_each_person_of_a_feed_has_a_timeline_and_alerts(table: Path, tmp_path: Path) -> None:
    model = costream.load_model("costgcn")
    rules = ["*>=0.5 for 0.5s every 0", "lost"]
    feeds = costream.watch(
        [table], model, realtime=True, speed=60, on_late="block", on=rules, output=tmp_path
    )
    records = []
    numbers: set[int] = set()
    for _, record in feeds:
        records.append(record)
        if feeds.status is not None:
            numbers |= {p.number for p in feeds.status.feeds[0].persons or ()}
    expected = costream.detect(table, model).collect()
    segments = [r for r in records if isinstance(r, Segment)]
    assert {s.person for s in segments} == {1, 2}
    assert segments == list(expected.segments)
    assert [r for r in records if isinstance(r, Prediction)] == list(expected.predictions)
    alerts = [r for r in records if isinstance(r, Alert)]
    assert {(a.person, a.label) for a in alerts} >= {
        (1, "raise both hands"),
        (2, "wave both hands"),
    }
    for alert in alerts:  # it names the person whose label it is
        since_s, until_s = alert.since_s, alert.time_s
        own = [s for s in segments if (s.person, s.label) == (alert.person, alert.label)]
        assert any(s.start_s - 0.5 <= since_s and until_s - 2.5 <= s.end_s for s in own)
    assert numbers <= {1, 2}
    lines = [json.loads(line) for line in (tmp_path / "two.csv.jsonl").read_text().splitlines()]
    assert lines[0]["persons"] == 8
    assert {x["person"] for x in lines if x["type"] == "alert"} == {a.person for a in alerts}
    page = costream.Results.read(tmp_path / "two.csv.jsonl").to_html()
    assert "person 1" in page
    assert "person 2" in page


def test_rules_hold_for_each_person() -> None:
    """Half of the time of one and half of that of another make no alert; `every` is of each."""
    rule = parse_rule("fall>=0.8 for 2s every 10s")
    classes = RuleLabels(("none", "fall"), (0.5, 0.5), frozenset({0}))
    firing, alerts = RuleEvaluator(rule, classes), []
    high, low = np.array([0.1, 0.9]), np.array([0.9, 0.1])
    for step in range(80):
        scores: dict[int | None, Any] = {1: high if step < 15 else low}
        if step >= 15:
            scores[2] = high
        if 30 <= step < 60:
            scores[3] = high
        alerts += firing.push(step / 10, scores)
        assert firing.holding is (step >= 35)
    assert [(a.person, a.time_s) for a in alerts] == [(2, 3.5), (3, 5.0)]


class Finder:
    """Persons in frames: so many as the frame's number says; it counts the times it was closed."""

    def __init__(self, source: list[Any]) -> None:
        self.source, self.closed = source, 0

    def find(self, frame: VideoFrame) -> Any:
        return self.source[frame.i]

    def close(self) -> None:
        self.closed += 1


def test_persons_in_pictures_are_followed_as_those_of_recordings(table: Path) -> None:
    model = costream.load_model("costgcn").network
    source = open_source(str(table), SourceOptions(persons=8))
    source.open()
    given: list[Any] = list(source.items())[40:160]
    source.close()
    finder = Finder(given)
    model.person_finder = lambda most: finder if most == 8 else None  # type: ignore[attr-defined]
    expected, rows = PersonRows(model), PersonRows(model)
    for k, item in enumerate(given):
        frame = VideoFrame(k, item.time_s, k, lambda: np.zeros((4, 4, 3), np.uint8))
        one, other = expected.step(item), rows.step(frame)
        assert one.persons == other.persons
        assert one.probabilities is None or np.allclose(one.probabilities, other.probabilities)
        assert other.skeletons == (item,)
        assert not other.nobody
    assert rows.numbers == [1, 2]
    rows.reset()
    assert finder.closed == 1


def test_without_anybody_nobody_is_shown(table: Path) -> None:
    model = costream.load_model("costgcn").network
    with_two = costream.detect(table, costream.LoadedModel(model), duration=6).collect()
    assert with_two.header.persons == 8
    summary = with_two.summary
    assert summary.persons == 2
    assert summary.persons_s == pytest.approx(8, abs=0.3)  # the second comes after four
    acting_s = sum(s.end_s - s.start_s for s in with_two.segments if s.person)
    assert summary.acting_s == pytest.approx(acting_s)
    rows = PersonRows(model)
    layout = find_layout("ntu-25")
    joints = np.random.default_rng(0).standard_normal((1, 25, 3)).astype(np.float32)
    seen = []
    for k in range(90):
        there = 30 <= k < 40
        scores = np.full((1, 25), float(there), np.float32)
        frame = SkeletonFrame(k, k / 15, joints * there, scores, layout, persons=(3,))
        seen.append(not rows.step(frame).nobody)
    assert seen == [30 <= k <= 39 + round(GONE_S * 15) for k in range(90)]
    assert rows.numbers == [3]


WALKS = PersonStatus(1, "walk", (("walk", 0.91), ("sit", 0.05)), ("walk",) * 30)
SITS = PersonStatus(12, None, (("sit", 0.31),), (None,) * 50 + ("sit",) * 10)


def test_a_line_for_each_person_on_the_dashboard() -> None:
    status = watch(feed("hall", persons=(WALKS, SITS)), feed("yard"), strips={"hall": ("walk",)})
    lines = [line.plain for line in Board().lines(status, Viewport(80, 24))]
    first, second = (next(line for line in lines if line.startswith(n)) for n in WHO)
    assert "walk          0.91" in first
    assert "sit           0.31" in second
    assert max(map(len, lines)) <= 80
    assert "sit" in second[30:]
    few = [line.plain for line in Board().lines(status, Viewport(80, 7))]
    assert any(line == "and 2 more persons" for line in few) or "hall 1 " in "\n".join(few)


def test_hostile_labels_of_persons_and_places_stay_in_their_lines() -> None:
    label = "\x1b[31mred\u202e[bold]\n"
    bad = PersonStatus(4, 3 * label, ((3 * label, 0.7),), (label,) * 5)
    places = (PlaceCount(f"door {label}", "zone", label, 3, 12, 9),)
    hall = feed("hall", persons=(WALKS, bad), places=places)
    status = watch(hall, feed(3 * label), strips={"hall": (label,)})
    lines = [line.plain for line in Board().lines(status, Viewport(80, 24))]
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert not [c for c in "".join(lines) if unicodedata.category(c) in ("Cc", "Cf")]
    assert any(line.startswith("hall 4 ") and "0.70" in line for line in lines)
    assert any(line.startswith("hall  door ?[31mred") for line in lines)


WHO = ("hall 1 ", "hall 12")


def test_persons_for_home_assistant() -> None:
    spec = FeedSpec("hall", "rtsp://x", "rtsp://x", read_options({}))
    payloads = dict(descriptions([spec], "costream", "costgcn", persons=True))
    several = dict(descriptions([spec], "costream", "a,b", heads=["a/b", "b"]))
    assert several["sensor/costream_hall/label_b"]["state_topic"] == "costream/hall/label/b"
    assert len([topic for topic in several if "label" in topic]) == 3
    entity = payloads["sensor/costream_hall/persons"]
    assert entity["state_topic"] == "costream/hall/persons"
    assert entity["value_template"] == "{{ value_json.now }}"
