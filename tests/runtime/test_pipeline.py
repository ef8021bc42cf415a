"""Runs of one source and one model into sinks, failures included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from costream.core.clock import Tick, resample
from costream.core.errors import ExitCode, OutputError, SourceError
from costream.core.records import (
    Fault,
    FeatureRow,
    Gap,
    Prediction,
    Segment,
    SourceInfo,
    VideoFrame,
)
from costream.models.oad.cooadtr import CoOadTR
from costream.models.oad.tdn import TemporalDifferenceNet
from costream.models.streaming import StreamingModel
from costream.options.options import Options
from costream.runtime.pipeline import run
from costream.runtime.stop import StopHandler
from costream.sinks.registry import make_sinks
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from costream.weights_io.card import Card, Timeline
from kit.media import make_video
from kit.streams import ItemSource, RecordSink

LABELS = ("none", "walk", "sit")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    frontend = TemporalDifferenceNet()
    size = {"input_width": frontend.token_width, "num_classes": 3, "embed_dim": 32}
    arguments = {**size, "num_heads": 4, "feedforward": 32, "window": 12}
    card = Card(
        name="tiny",
        task="online action detection",
        architecture="cooadtr",
        arguments=arguments,
        labels=LABELS,
        background="none",
        rate_hz=8.0,
        frontend="tdn",
        gap_tolerance_s=1.0,
        timeline=Timeline(threshold=0.34, min_length_s=0.25, min_gap_s=0.25),
    )
    return StreamingModel(card, CoOadTR(**arguments), frontend, weights_sha256="0" * 64)


def given(items, width=256):
    return ItemSource(SourceInfo("given", "given", "features", None, None, width=width), items)


def rows(count, start_s=0.0, seed=0):
    values = np.random.default_rng(seed).standard_normal((count, 256)).astype(np.float32)
    return [FeatureRow(i, start_s + i / 8, v) for i, v in enumerate(values)]


def test_equals_the_offline_network_on_the_same_pictures(model, tmp_path):
    path = make_video(tmp_path / "clip.mp4", frames=75, rate=25, size=(224, 168))
    options = SourceOptions(box=model.info.box)
    kept = RecordSink()
    summary = run(open_source(str(path), options), model, [kept], options=Options(scores=True))
    source = open_source(str(path), options)
    source.open()
    pictures = [
        model.frontend.prepare(tick.item.rgb)
        for tick in resample(source.items(), 8.0, 1.0)
        if isinstance(tick, Tick)
    ]
    source.close()
    with torch.inference_mode():
        clip = torch.from_numpy(np.stack(pictures))[None]
        expected = model.network(model.frontend(clip)).logits.softmax(-1)[0].numpy()
    got = np.array([p.scores for p in kept.of(Prediction)])
    assert got.shape == expected.shape == (summary.steps, 3)
    assert summary.steps == 24
    np.testing.assert_allclose(got, expected, atol=2e-5)


def test_feature_rows_cost_no_frontend(model, tmp_path):
    kept = RecordSink()
    summary = run(given(rows(4)), model, [kept])
    network = model.network
    assert summary.macs == 4 * network.count_macs()
    assert summary.dense_macs == 4 * network.dense_macs
    path = make_video(tmp_path / "clip.mp4", frames=4, rate=8, size=(64, 48))
    video = run(open_source(str(path), SourceOptions(box=model.info.box)), model, [])
    frontend = 4 * model.frontend.count_macs()
    assert video.macs == summary.macs + frontend
    assert video.dense_macs == summary.dense_macs + frontend


def test_a_delay_is_so_many_steps_whatever_time_they_take(model):
    kept = RecordSink()
    model.info = replace(model.info, card=replace(model.info.card, delay_s=0.25))
    run(given(rows(4)), model, [kept], options=Options(rate_hz=4.0))
    assert (kept.header.rate_hz, kept.header.delay_s) == (4.0, 0.5)


def test_a_gap_resets_the_state_and_is_reported(model):
    before, after = rows(20), rows(20, start_s=60.0, seed=5)
    joined, alone = RecordSink(), RecordSink()
    options = Options(scores=True)
    run(given([*before, *after]), model, [joined], options=options)
    run(given(rows(20, seed=5)), model, [alone], options=options)
    (gap,) = joined.of(Gap)
    assert (gap.start_s, gap.end_s) == (before[-1].time_s, 60.0)
    late = [p.scores for p in joined.of(Prediction) if p.time_s >= 60]
    assert late == [p.scores for p in alone.of(Prediction)]
    assert joined.of(Prediction)[20].warmup


def test_scores_that_are_not_numbers_are_reported(model):
    """Once for steps that follow one another."""
    items = rows(30)
    for k in (9, 10, 11, 20):
        items[k] = replace(items[k], values=np.full(256, 1e38, np.float32))
    sink = RecordSink()
    summary = run(given(items), model, [sink])
    message = "the network's scores are NaN; the state of the stream was reset"
    assert sink.of(Fault) == [Fault(9 / 8, message), Fault(20 / 8, message)]
    assert summary.errors == 2
    assert summary.complete
    assert [p.i for p in sink.of(Prediction)] == [k for k in range(30) if k not in (9, 10, 11, 20)]


def test_damage_is_counted_and_a_fatal_fault_makes_the_run_partial(model):
    kept = RecordSink()
    items = [*rows(5), Fault(0.7, "3 damaged packets", count=3), Fault(0.7, "cut off", fatal=True)]
    summary = run(given(items), model, [kept])
    assert (summary.errors, summary.complete, summary.exit) == (4, False, ExitCode.PARTIAL)
    assert [f.message for f in kept.of(Fault)] == ["3 damaged packets", "cut off"]
    assert len(kept.of(Prediction)) == 5


@pytest.mark.parametrize("presence_s", [0.0, 60.0])
def test_what_is_there_when_the_input_ends_is_reported(model, presence_s):
    """It lasts until then, however late the model is, and would count if the input went on."""
    line = Timeline(threshold=0.34, min_length_s=0.5, min_gap_s=0.25, presence_s=presence_s)
    card = replace(model.info.card, delay_s=0.75, timeline=line)
    late = StreamingModel(card, model.network, model.frontend)
    for count in (1, 2, 3, 5, 9):
        kept = RecordSink()
        run(given(rows(count)), late, [kept])
        last = kept.of(Prediction)[-1].top[0]
        segments = kept.of(Segment)
        if last[0] != "none" and 1 - dict(kept.of(Prediction)[-1].top).get("none", 1) > 0.34:
            assert segments[-1].label == last[0]
            assert segments[-1].end_s == pytest.approx(count / 8)
        for segment in segments:
            assert 0 <= segment.start_s < segment.end_s <= count / 8
    kept = RecordSink()
    run(given(rows(3)), late, [kept], options=Options(min_length_s=0.5))
    assert kept.of(Segment) == []  # who gives a length wants no shorter ones


def test_no_data_is_an_error_and_files_say_so(model):
    kept, source = RecordSink(), given([])
    with pytest.raises(SourceError, match="nothing could be read"):
        run(source, model, [kept])
    assert kept.summary.complete is False
    assert source.closed


def test_features_of_another_width_are_refused_before_anything_is_written(model):
    kept = RecordSink()
    with pytest.raises(SourceError, match=r"1000.*256"):
        run(given(rows(3), width=1000), model, [kept])
    assert kept.header is None


def test_a_full_disk_ends_the_run_and_the_other_sinks_are_finished(model):
    class Full(RecordSink):
        def write(self, record):
            raise OutputError("cannot write (No space left on device)", where="out.jsonl")

    kept, full = RecordSink(), Full()
    with pytest.raises(OutputError, match="No space"):
        run(given(rows(30)), model, [kept, full])
    assert kept.summary.complete is False
    assert kept.summary.exit == ExitCode.PARTIAL
    assert full.summary is not None


def test_stop_ends_between_steps_and_nothing_is_lost(model):
    stop = StopHandler()

    class Stopping(RecordSink):
        def write(self, record):
            super().write(record)
            if isinstance(record, Prediction) and record.i == 6:
                stop.request()

    kept = Stopping()
    summary = run(given(rows(100)), model, [kept], stop=stop)
    together = model.info.chunk  # steps that are taken at once are all kept
    assert len(kept.of(Prediction)) == -(-7 // together) * together == summary.steps
    assert (summary.complete, summary.exit) == (False, ExitCode.SIGINT)


def test_steps_without_a_new_picture_are_marked(model, tmp_path):
    path = make_video(tmp_path / "slow.mp4", frames=12, rate=4, size=(64, 48))
    kept = RecordSink()
    run(open_source(str(path), SourceOptions(box=model.info.box)), model, [kept])
    fresh = [p.fresh for p in kept.of(Prediction)]
    assert fresh == [k % 2 == 0 for k in range(len(fresh))]
    assert [p.frame for p in kept.of(Prediction)] == [k // 2 for k in range(len(fresh))]


def test_wait_writes_no_predictions_before_the_window_is_full(model):
    kept = RecordSink()
    summary = run(given(rows(20)), model, [kept], options=Options(wait=True))
    assert [p.i for p in kept.of(Prediction)] == list(range(11, 20))
    assert summary.steps == 20


@pytest.mark.slow
def test_memory_is_flat(model, tmp_path):
    """The run over a long file keeps neither pictures nor records."""
    psutil = pytest.importorskip("psutil", reason="pip install psutil")
    path = make_video(tmp_path / "long.mp4", frames=1500, rate=12, size=(320, 240))
    process = psutil.Process()
    seen = []

    class Watch(RecordSink):
        def write(self, record):
            if isinstance(record, Prediction) and record.i % 100 == 99:
                seen.append(process.memory_info().rss)

    sinks = make_sinks(("jsonl", "json", "csv"), tmp_path / "out", "long.mp4")
    run(open_source(str(path), SourceOptions(box=model.info.box)), model, [*sinks, Watch()])
    assert len(seen) >= 9
    # 800 pictures of the frame's size would be 184 MB.
    assert max(seen[2:]) - seen[2] < 20e6


def test_frames_are_not_converted_unless_a_step_needs_them(model, tmp_path):
    converted = []
    path = make_video(tmp_path / "fast.mp4", frames=50, rate=50, size=(64, 48))
    source = open_source(str(path), SourceOptions(box=model.info.box))

    class Counting:
        open, stop, close = source.open, source.stop, source.close

        def items(self):
            for item in source.items():
                assert isinstance(item, VideoFrame)
                convert = item.convert
                yield VideoFrame(
                    item.i, item.time_s, item.pts, lambda c=convert: converted.append(1) or c()
                )

    summary = run(Counting(), model, [])
    assert len(converted) == summary.steps < 10
