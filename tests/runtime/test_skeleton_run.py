"""Skeletons and strided networks through a run."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from costream.api.results import Results
from costream.core.errors import SourceError
from costream.core.layouts import BODY_15
from costream.core.records import (
    Compute,
    Gap,
    Header,
    Picture,
    Prediction,
    Record,
    Segment,
    SkeletonFrame,
    SourceInfo,
)
from costream.models.skeleton.joints import JointStreams
from costream.models.skeleton.network import SkeletonNet
from costream.models.streaming import StreamingModel
from costream.options.options import Options
from costream.report.run_summary import RunSummary
from costream.runtime.pipeline import run
from costream.sinks.registry import make_sinks, paths_for
from costream.sinks.result_reader import read_results
from costream.ui.run.state import RunState
from costream.ui.run.view import LiveLayout
from costream.ui.screen import Viewport
from costream.ui.timeline import FinalTimeline
from costream.weights_io.card import Card, Timeline
from kit.streams import ItemSource, RecordSink

RATE_HZ = 15.0


def made(padding: str = "same") -> StreamingModel:
    torch.manual_seed(0)
    options = {"layout": "body-15", "streams": ["joint"]}
    joints = JointStreams(**options)
    bones = [list(bone) for bone in BODY_15.bones]
    sizes = {"widths": [4, 4, 8], "strides": [1, 2, 1], "kernel": 3, "pool": 4, "persons": 1}
    arguments = {"num_classes": 2, "joints": 15, "bones": bones, "channels": 3, **sizes}
    arguments["padding"] = padding
    card = Card(
        *("tiny", "skeleton actions", "costgcn", arguments, ("wave", "walk"), RATE_HZ),
        delay_s=0.2,
        frontend="joints",
        frontend_arguments=options,
        timeline=Timeline(threshold=0.3, min_length_s=0.0, min_gap_s=0.0),
    )
    return StreamingModel(card, SkeletonNet(**arguments), joints)


def skeletons(count: int, break_at: int | None = None) -> ItemSource:
    """A source of bodies that sway, with a break."""
    random = np.random.default_rng(0)
    moves = random.standard_normal((count, 1, 15, 3)).cumsum(0) / 10
    joints = (random.standard_normal((1, 15, 3)) + moves).astype(np.float32)
    ones = np.ones((1, 15), np.float32)
    times = [i / RATE_HZ + (0 if break_at is None or i < break_at else 10) for i in range(count)]
    info = SourceInfo("poses", "poses", "skeleton", None, RATE_HZ, layout="body-15", axes=3)
    return ItemSource(
        info, [SkeletonFrame(i, t, joints[i], ones, BODY_15) for i, t in enumerate(times)]
    )


def people(count: int, present: list[range]) -> tuple[ItemSource, list[ItemSource]]:
    """A source of persons who come and go, and a source of each alone, while it is there."""
    random = np.random.default_rng(1)
    moves = random.standard_normal((count, len(present), 15, 3)).cumsum(0) / 10
    joints = (random.standard_normal((1, len(present), 15, 3)) + moves).astype(np.float32)
    scores = np.array([[[t in p] * 15 for p in present] for t in range(count)], np.float32)
    joints *= scores[..., None]
    numbers = tuple(range(1, len(present) + 1))
    info = SourceInfo("poses", "poses", "skeleton", None, RATE_HZ, layout="body-15", axes=3)
    frames = [
        SkeletonFrame(t, t / RATE_HZ, joints[t], scores[t], BODY_15, persons=numbers)
        for t in range(count)
    ]
    alone = [
        ItemSource(
            info,
            [
                SkeletonFrame(t, t / RATE_HZ, joints[t, m : m + 1], scores[t, m : m + 1], BODY_15)
                for t in range(part.start, min(part.stop + 30, count))
            ],
        )
        for m, part in enumerate(present)
    ]
    return ItemSource(info, frames), alone


@pytest.mark.parametrize("padding", ["same", "causal"])
def test_each_person_is_a_row_with_its_own_timeline(padding: str) -> None:
    """The scores are those of a run over the person alone, whoever comes and goes beside."""
    model, kept = made(padding), RecordSink()
    source, alone = people(100, [range(100), range(20, 60), range(30, 100)])
    options = Options(scores=True)
    summary = run(source, model, [kept], options=options, follow_persons=True)
    assert kept.header.persons == 8
    assert summary.steps == 100 == len(kept.of(Compute))
    found = {n: [p for p in kept.of(Prediction) if p.person == n] for n in (1, 2, 3)}
    assert sum(map(len, found.values())) == len(kept.of(Prediction))
    for number, own in enumerate(alone, 1):
        by_itself = RecordSink()
        run(own, model, [by_itself], options=options)
        expected = {round(p.time_s, 6): p.scores for p in by_itself.of(Prediction)}
        ours = {round(p.time_s, 6): p.scores for p in found[number]}
        # Beside others a row has outputs from its first step on, as rows of feeds do.
        times = [t for t in ours if t >= min(expected)]
        assert times == [t for t in expected if t <= max(ours)]
        np.testing.assert_allclose(
            [ours[t] for t in times], [expected[t] for t in times], atol=1e-5
        )
        segments = [s for s in kept.of(Segment) if s.person == number]
        assert segments
        first = [s for s in by_itself.of(Segment) if s.end_s <= 60 / RATE_HZ - 1]
        assert [(s.label, s.start_s) for s in segments][: len(first)] == [
            (s.label, pytest.approx(s.start_s)) for s in first
        ]
    # Who has left for two seconds has no more predictions.
    assert found[2][-1].time_s == pytest.approx(59 / RATE_HZ + 2, abs=0.2)
    costs = [c.macs for c in kept.of(Compute)]
    assert max(costs[30:60]) > 2.5 * max(costs[:10])


def test_without_anybody_a_row_continues() -> None:
    model, kept = made("causal"), RecordSink()
    source, _ = people(120, [range(10, 20), range(110, 112)])
    summary = run(source, model, [kept], follow_persons=True)
    assert summary.steps == 120
    assert len(kept.of(Prediction)) in (60, 61)
    assert {p.person for p in kept.of(Prediction)} == {1, 2}


def test_persons_in_files_and_views(tmp_path: Path) -> None:
    model, kept = made("causal"), RecordSink()
    source, _ = people(60, [range(60), range(10, 60)])
    names = ("jsonl", "json", "csv", "srt", "eaf", "audacity", "raven", "rttm", "table", "lines")
    sinks = make_sinks(names, tmp_path, "a")
    console = Console(file=io.StringIO(), width=100)
    view = FinalTimeline(console, "a")
    state: list[RunState] = []

    class Watched(RecordSink):
        def open(self, header: Header) -> None:
            state.append(RunState(header, 0.0))

        def write(self, record: Record) -> None:
            state[0].add(record)

    run(source, model, [*sinks, kept, view, Watched()], follow_persons=True)
    segments = kept.of(Segment)
    assert {s.person for s in segments} == {1, 2}
    text = {p.name.removeprefix("a."): p.read_text() for p in tmp_path.iterdir()}
    head, *rows = text["timeline.csv"].strip().split("\n")
    assert head == "person,start_s,end_s,length_s,label,score"
    assert sorted(row.split(",")[0] for row in rows) == sorted(str(s.person) for s in segments)
    assert text["predictions.csv"].startswith("person,i,time_s")
    told = [line.split("\t") for line in text["lines.txt"].strip().split("\n")]
    assert [int(person) for person, *_ in told] == [p.person for p in kept.of(Prediction)]
    assert 'TIER_ID="person 2"' in text["eaf"]
    for suffix in ("srt", "table", "audacity.txt", "raven.txt", "rttm"):
        shown = text["txt" if suffix == "table" else suffix]
        assert shown.replace("_", " ").count("(person 2)") == sum(s.person == 2 for s in segments)
    starts = [line.split()[0] for line in text["txt"].split("\n") if "person 2" in line]
    assert starts == sorted(starts)
    table = text["txt"].split("\n")[2:-4]
    assert len({line.rindex(".") for line in table if line}) == 1
    shown = console.file.getvalue()
    assert "person" in shown.split("\n")[1]
    assert list(state[0].head_states) == ["person 1", "person 2"]
    lines = "\n".join(map(str, LiveLayout(state[0], "a").lines(Viewport(100, 40), 1.0)))
    assert "person 1" in lines
    assert "person 2" in lines
    results = tmp_path / "a.jsonl"
    again = Results.read(results).segments
    assert [(s.label, s.person) for s in again] == [(s.label, s.person) for s in segments]
    digest = RunSummary.of(read_results(results))
    assert digest.heads.names == ("person 1", "person 2")
    assert [s for _, s in digest.timeline("person 2")] == [
        replace(s, model="person 2") for s in again if s.person == 2
    ]
    page = Results.read(results).to_html()
    assert "person 2" in page
    # One person alone is shown as ever.
    alone, one = RecordSink(), FinalTimeline(console, "b")
    run(people(60, [range(60)])[0], model, [alone, one], follow_persons=True)
    heading, *_ = console.file.getvalue().split("b\n")[-1].split("\n")
    assert "person" not in heading
    assert {s.person for s in alone.of(Segment)} == {1}


class Drawn(RecordSink):
    def draw(self, picture: Picture) -> None:
        self.records.append(picture)


def test_steps_without_output_are_counted_but_predict_nothing() -> None:
    model, kept = made(), RecordSink()
    summary = run(skeletons(60), model, [kept])
    first = model.network.delay
    assert summary.steps == 60 == len(kept.of(Compute))
    assert [p.i for p in kept.of(Prediction)] == list(range(first, 60, 2))
    assert summary.macs == sum(c.macs for c in kept.of(Compute)) > 0
    assert (kept.header.kind, kept.header.delay_s) == ("skeleton", 0.2)
    assert "pose" not in kept.header.options


def test_an_output_stands_for_the_steps_until_the_next() -> None:
    """No holes in the timeline, and it ends where the data do."""
    model, kept = made(), RecordSink()
    run(skeletons(60), model, [kept])
    predictions, segments = kept.of(Prediction), kept.of(Segment)
    for one, next_ in pairwise(segments):
        assert next_.start_s == pytest.approx(one.end_s)
    assert segments[0].start_s == pytest.approx(predictions[0].time_s - 0.2)
    assert segments[-1].end_s == pytest.approx(60 / RATE_HZ)


def test_a_rate_that_is_given_is_the_recordings_not_the_models() -> None:
    kept = RecordSink()
    run(skeletons(40), made("causal"), [kept], options=Options(rate_hz=30.0))
    assert (kept.header.rate_hz, kept.header.delay_s) == (RATE_HZ, 0.2)
    assert len(kept.of(Prediction)) == 20  # of two steps each


def test_a_gap_starts_again() -> None:
    model, joined, alone = made("causal"), RecordSink(), RecordSink()
    source = skeletons(40, break_at=20)
    run(source, model, [joined], options=Options(scores=True))
    rest = ItemSource(source.info, source.given[20:])
    run(rest, model, [alone], options=Options(scores=True))
    assert len(joined.of(Gap)) == 1
    late = [p.scores for p in joined.of(Prediction) if p.time_s > 10]
    np.testing.assert_allclose(late, [p.scores for p in alone.of(Prediction)], atol=1e-6)


def test_sinks_that_draw_get_a_picture_a_step_and_others_none() -> None:
    source, plain, drawn = skeletons(20), RecordSink(), Drawn()
    run(source, made("causal"), [plain, drawn])
    pictures = drawn.of(Picture)
    assert [p.skeleton for p in pictures] == [p.item for p in pictures] == source.given
    assert not plain.of(Picture)
    others = [r for r in drawn.records if not isinstance(r, Picture)]
    assert others == plain.records
    # What a step has written comes before its picture.
    at = drawn.records.index(pictures[4])
    assert drawn.records[at - 1].i == 4


@pytest.mark.long
def test_a_skeleton_run_writes_every_format(tmp_path: Path) -> None:
    formats = ("jsonl", "json", "csv", "srt", "vtt", "audacity", "mp4")
    sinks = make_sinks(formats, tmp_path, "poses.csv")
    run(skeletons(30), made("causal"), sinks)
    for format in formats:
        assert all(
            path.stat().st_size for path in paths_for(format, tmp_path, "poses.csv", objects=False)
        )


def test_what_does_not_fit_is_refused_before_anything_is_written() -> None:
    source, kept = skeletons(5), RecordSink()
    source.info = replace(source.info, axes=2)
    with pytest.raises(SourceError, match="2 axes, but tiny takes 3"):
        run(source, made(), [kept])
    assert kept.header is None
