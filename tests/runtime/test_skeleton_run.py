"""Skeletons and strided networks through a run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from costream.checkpoints.card import Card, Timeline
from costream.errors import SourceError
from costream.frontends.joints import JointStreams
from costream.layouts import BODY_15
from costream.models.skeleton.network import SkeletonNet
from costream.models.streaming import StreamingModel
from costream.options import Options
from costream.records import (
    Compute,
    Gap,
    Picture,
    Prediction,
    Segment,
    SkeletonFrame,
    SourceInfo,
)
from costream.runtime.pipeline import run
from costream.sinks.registry import make_sinks, paths_for
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
    """No holes in the timeline, and it ends a stride after the last output, less the delay."""
    model, kept = made(), RecordSink()
    run(skeletons(60), model, [kept])
    predictions, segments = kept.of(Prediction), kept.of(Segment)
    for one, next_ in pairwise(segments):
        assert next_.start_s == pytest.approx(one.end_s)
    assert segments[0].start_s == pytest.approx(predictions[0].time_s)
    end_s = predictions[-1].time_s + 2 / RATE_HZ - 0.2
    assert segments[-1].end_s == pytest.approx(end_s)


def test_a_rate_that_is_given_is_the_recordings_not_the_models() -> None:
    kept = RecordSink()
    run(skeletons(40), made("causal"), [kept], options=Options(rate_hz=30.0))
    assert (kept.header.rate_hz, kept.header.delay_s) == (RATE_HZ, 0.2)
    assert len(kept.of(Prediction)) == 20  # of two steps each


def test_a_gap_begins_anew() -> None:
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
