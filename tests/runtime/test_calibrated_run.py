"""Temperature, thresholds and smoothing of a card in a run."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from costream.core.clock import Tick
from costream.core.records import FeatureRow, Gap, Head, Header, Prediction, Segment, SourceInfo
from costream.core.schema import from_json
from costream.models.catalogue import load_model
from costream.models.joint import combine_models
from costream.models.streaming import StreamingModel
from costream.options.options import Options
from costream.runtime.alerts.alerts import AlertOptions
from costream.runtime.alerts.rules import RuleLabels
from costream.runtime.recorder import StreamRecorder
from costream.runtime.timelines import resume_smoothing
from costream.runtime.watch.feed_list import FeedSpec
from costream.runtime.watch.state_dir import Snapshot, StateDirectory
from costream.weights_io.card import Card, Timeline
from kit.streams import RecordSink

THRESHOLDS = {"walk": 0.15, "fall": 0.9}
TIMELINE = Timeline(0.3, min_length_s=0.0, min_gap_s=0.0, thresholds=THRESHOLDS, smooth_s=0.5)
INFO = SourceInfo("given", "given", "features", None, None, width=288)


@pytest.fixture(scope="module")
def shipped() -> StreamingModel:
    torch.set_num_threads(1)
    return load_model("cooadtr", device="cpu")


def with_card(model: StreamingModel, **changed: Any) -> StreamingModel:
    """The same network under another card; features go straight to it."""
    card: Card = replace(model.info.card, **changed)
    sha256 = model.info.weights_sha256
    return StreamingModel(card, model.network, model.frontend, weights_sha256=sha256)


def rows(count: int) -> list[FeatureRow]:
    """Tokens that wander about and never far away, so that labels change."""
    tokens = np.random.default_rng(0).standard_normal((count, 288)).astype(np.float32)
    for before, token in pairwise(tokens):
        token += 0.95 * before
    return [FeatureRow(i, i / 8, v) for i, v in enumerate(tokens * 0.6)]


def play(
    model: StreamingModel, items: list[FeatureRow], track: StreamRecorder, state: Any
) -> list[np.ndarray[Any, Any]]:
    out = []
    for item in items:
        scores = track.step(Tick(item.i, item.time_s, item, True), model.step([item], state), 0.0)
        out.append(scores[None].copy())
    return out


def track_of(model: StreamingModel, **options: Any) -> tuple[StreamRecorder, RecordSink]:
    kept = RecordSink()
    track = StreamRecorder(model, Options(scores=True, **options), [kept])
    track.open(INFO)
    return track, kept


def test_predictions_stay_as_they_are_and_the_timeline_is_smooth(shipped: StreamingModel) -> None:
    model = with_card(shipped, timeline=TIMELINE)
    track, kept = track_of(model)
    smooth = play(model, rows(60), track, model.init_state(1))
    plain = with_card(shipped, timeline=replace(TIMELINE, smooth_s=0.0))
    raw = play(plain, rows(60), track_of(plain)[0], plain.init_state(1))
    written = [p.scores for p in kept.of(Prediction)]
    assert np.array_equal(np.array(written, np.float32), np.array(raw, np.float32))
    expected = raw[0]
    for row, average in zip(raw[1:], smooth[1:], strict=True):
        expected = expected + (1 - np.exp(-0.125 / 0.5)) * (row - expected)
        np.testing.assert_allclose(average, expected, atol=1e-12)
    assert np.abs(np.array(raw) - smooth).max() > 0.1


def test_a_watch_continues_with_them_bit_for_bit(shipped: StreamingModel, tmp_path: Path) -> None:
    model = with_card(shipped, timeline=TIMELINE)
    items, spec = rows(60), FeedSpec("door", "rtsp://cam/x", "rtsp://cam/x", AlertOptions())
    whole = play(model, items, track_of(model)[0], model.init_state(1))
    track, state = track_of(model)[0], model.init_state(1)
    assert track.smoothed() == ()
    play(model, items[:31], track, state)
    keeper = StateDirectory(tmp_path, model)
    at = Snapshot(31, time.time() - 10, 10.0, items[30].time_s, track.smoothed(), 0)
    keeper.save(spec, at, state)
    keeper.close()
    saved = StateDirectory(tmp_path, model).restore(spec)
    assert saved is not None
    later = track_of(model)[0]
    later.gap(Gap(items[30].time_s, items[31].time_s, "not running"))
    resume_smoothing(later.timelines.current, saved.smoothed)
    rest = play(model, items[31:], later, saved.state)
    assert np.array_equal(rest, whole[31:])
    assert track_of(shipped)[0].smoothed() == ()


def test_a_gap_ends_the_average(shipped: StreamingModel) -> None:
    model = with_card(shipped, timeline=replace(TIMELINE, threshold=0.01, thresholds={}))
    track, state = track_of(model)[0], model.init_state(1)
    play(model, rows(10), track, state)
    assert track.active is not None
    track.gap(Gap(9 / 8, 30.0, "nothing came"))
    assert track.smoothed() == ()
    assert track.active is None
    after = play(model, rows(1), track, model.init_state(1))[0]
    raw = play(shipped, rows(1), track_of(shipped)[0], shipped.init_state(1))[0]
    assert np.array_equal(after, raw)


def test_the_header_says_what_was_in_force(shipped: StreamingModel) -> None:
    model = with_card(shipped, timeline=TIMELINE, temperature=1.25)
    _, kept = track_of(model)
    header = kept.header
    assert header.options["timeline"] == TIMELINE
    assert header.options["temperature"] == 1.25
    _, kept = track_of(model, threshold=0.7)
    overridden = kept.header.options["timeline"]
    assert [overridden.threshold_of(label) for label in ("walk", "fall", "sit")] == [0.7] * 3
    assert overridden.smooth_s == 0.5


@pytest.mark.parametrize(
    ("length_s", "options", "threshold"),
    [
        *((0.9, {}, 0.3), (1.0, {}, 0.8), (None, {}, 0.8), (9.0, {"end_s": 0.5}, 0.3)),
        *((9.0, {"start_s": 8.5}, 0.3), (0.9, {"threshold": 0.7}, 0.7)),
    ],
)
def test_short_recordings_go_by_a_threshold_of_their_own(
    shipped: StreamingModel, length_s: float | None, options: dict[str, Any], threshold: float
) -> None:
    timeline = Timeline(0.8, low=0.5, thresholds={"fall": 0.9}, short=0.3)
    kept, model = RecordSink(), with_card(shipped, timeline=timeline)
    track = StreamRecorder(model, Options(**options), [kept])
    track.open(replace(INFO, duration_s=length_s))
    used = kept.header.options["timeline"]
    (entry,) = track.timelines.current
    assert entry.timeline == used
    assert used.threshold == threshold
    assert used.threshold_of("fall") == (0.7 if "threshold" in options else 0.9)
    scores = np.array([0.35 * (label == "walk") for label in model.info.card.labels])
    entry.segmenter.push(0.0, scores)
    assert entry.segmenter.label == ("walk" if threshold == 0.3 else None)


def test_each_head_goes_by_its_own(shipped: StreamingModel) -> None:
    sounds = [load_model(name, device="cpu") for name in ("cotrans", "cosounds")]
    about: list[dict[str, Any]] = [
        {"temperature": 2.0},
        {"timeline": Timeline(smooth_s=1.0), "temperature": 1.0},
    ]
    joint = combine_models([with_card(m, **more) for m, more in zip(sounds, about, strict=True)])
    kept = RecordSink()
    StreamRecorder(joint, Options(), [kept]).open(SourceInfo("x", "x", "audio", None, None))
    first, second = kept.header.heads
    assert (first.temperature, first.smooth_s) == (2.0, 0.0)
    assert (second.temperature, second.smooth_s) == (1.0, 1.0)
    logits = torch.randn(1, len(joint.info.card.labels))
    scores = joint.scores.probabilities(logits)
    split = len(first.labels)
    np.testing.assert_array_equal(scores[:, :split], (logits[:, :split] / 2).softmax(-1).numpy())
    np.testing.assert_array_equal(scores[:, split:], logits[:, split:].softmax(-1).numpy())


def test_alerts_and_status_go_by_the_thresholds_of_labels(shipped: StreamingModel) -> None:
    classes = RuleLabels.of([(shipped.info.card, TIMELINE)])
    by_label = dict(zip(classes.labels, classes.thresholds, strict=True))
    assert (by_label["walk"], by_label["fall"], by_label["sit"]) == (0.15, 0.9, 0.3)

    def active_of(track: StreamRecorder, label: str, score: float) -> str | None:
        scores = np.array([1 - score if name == "background" else 0.0 for name in classes.labels])
        scores[classes.labels.index(label)] = score
        smoother = track.timelines.current[0].segmenter.smoother
        time_s = 0.0 if smoother.time_s is None else smoother.time_s + 0.125
        track.timelines.current[0].segmenter.push(time_s, scores)
        return track.active

    track, _ = track_of(with_card(shipped, timeline=replace(TIMELINE, smooth_s=0.0)))
    for label, score, active in (("walk", 0.2, "walk"), ("fall", 0.85, None), ("sit", 0.2, None)):
        assert active_of(track, label, score) == active
    # Of what has just appeared nothing is said.
    track, _ = track_of(with_card(shipped, timeline=Timeline(0.6, presence_s=1.0)))
    said = [active_of(track, *each) for each in [("walk", 0.0), *[("walk", 0.9)] * 20]]
    first = said.index("walk")
    assert 5 < first < 15
    assert said == [None] * first + ["walk"] * (21 - first)


def test_the_longest_average_keeps_segments_of_what_lasts(shipped: StreamingModel) -> None:
    lasting = replace(TIMELINE, thresholds={}, smooth_s=2.0)
    counts = []
    for timeline in (replace(lasting, smooth_s=0.0), lasting):
        model = with_card(shipped, timeline=timeline)
        track, kept = track_of(model)
        play(model, rows(300), track, model.init_state(1))
        track.flush()
        counts.append(len(kept.of(Segment)))
    assert counts[0] > counts[1] > 0


def test_heads_of_older_results_are_read() -> None:
    values = {"model": "a", "labels": ["x"], "threshold": 0.5, "delay_s": 0}
    header = from_json("header", {"labels": ["x"], "rate_hz": 4, "heads": [values]})
    assert isinstance(header, Header)
    assert header.heads is not None
    (head,) = header.heads
    assert head == Head("a", "", ("x",), None, 0.0, 0.5)
    assert head.threshold_of("x") == 0.5
