"""Runs of models that find objects: records, timeline, ids, files and reports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from costream.core.errors import UsageError
from costream.core.places import Crossing, ZoneEvent, parse_place
from costream.core.records import (
    OBJECT_DETECTION,
    Compute,
    Gap,
    Objects,
    Segment,
    SourceInfo,
    VideoFrame,
)
from costream.models.eventful.detector import ObjectModel
from costream.models.images import Pixels
from costream.options.budget import Budget
from costream.options.options import Options
from costream.report.report_builder import ReportBuilder
from costream.report.run_summary import RunSummary
from costream.runtime.options import check_model_options
from costream.runtime.pipeline import run
from costream.runtime.watch.feed_states import FeedStates
from costream.sinks.atomic import AtomicFile
from costream.sinks.registry import FORMATS, make_sinks, paths_for
from costream.sinks.result_reader import read_results
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from kit.media import make_video
from kit.object_nets import (
    ARGUMENTS,
    BOX,
    LABELS,
    bright_model,
    object_card,
    random_model,
    random_network,
)
from kit.streams import ItemSource, RecordSink

SIZE = (224, 160)


@pytest.fixture(autouse=True)
def _threads() -> None:
    torch.set_num_threads(1)


def scene(k: int, size: tuple[int, int]) -> np.ndarray:
    """A white square that goes to the right, and is away in steps 10 to 15 of ten a second."""
    picture = np.zeros((size[1], size[0], 3), np.uint8)
    if not 20 <= k < 32:
        picture[40:80, 20 + 3 * k : 60 + 3 * k] = 255
    return picture


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clips") / "street.mp4"
    return make_video(path, 48, size=SIZE, rate=20, pattern=scene)


def played(clip: Path, model: ObjectModel, **options: Any) -> RecordSink:
    kept = RecordSink()
    source = open_source(str(clip), SourceOptions(box=model.info.box))
    run(source, model, [kept], options=Options(**options))
    return kept


def test_a_step_writes_its_objects_and_its_cost(clip: Path) -> None:
    kept = played(clip, bright_model(), tokens=6)
    assert kept.header.task == OBJECT_DETECTION
    assert kept.header.labels == LABELS
    objects, costs = kept.of(Objects), kept.of(Compute)
    assert [o.i for o in objects] == [c.i for c in costs] == list(range(24))
    seen = [bool(o.boxes) for o in objects]
    assert seen == [not 10 <= i < 16 for i in range(24)]
    for step in objects:
        for box in step.boxes:
            left = 20 + 3 * step.frame
            near = (box.x1 - left, box.y1 - 40, box.x2 - left - 40, box.y2 - 80)
            assert max(map(abs, near)) <= 4, step
            assert (box.label, round(box.score, 6), box.id) == ("car", 0.9, None)
    assert [c.tokens for c in costs] == [35] + 23 * [6]
    assert all(0 < c.macs <= c.dense_macs for c in costs)
    assert kept.summary.macs == sum(c.macs for c in costs)


def test_a_share_of_the_tokens_or_those_that_have_changed(clip: Path) -> None:
    share, most, still = (
        [cost.tokens for cost in played(clip, bright_model(), tokens=tokens).of(Compute)]
        for tokens in ("25%", ">0", ">1e9")
    )
    assert share == [35] + 23 * [8]
    assert all(0 < count < 35 for count in most[1:10])  # around the car
    assert sum(most[11:16]) == 0  # an empty picture
    assert still == [35] + 23 * [0]


def test_the_timeline_says_when_something_was_there(clip: Path) -> None:
    kept = played(clip, bright_model())
    found = [(s.label, round(s.start_s, 6), round(s.end_s, 6), s.count) for s in kept.of(Segment)]
    assert found == [("car", 0.0, 1.0, 1), ("car", 1.6, 2.4, 1)]
    assert played(clip, bright_model(), min_gap_s=1.0).summary.segments == 1


def test_a_single_picture_is_one_step_of_which_everything_counts(tmp_path: Path) -> None:
    Image.fromarray(scene(0, SIZE)).save(path := tmp_path / "photo.png")
    zone = parse_place("all=0,0 1,0 1,1 0,1", "zone", "--zone")
    kept = played(path, bright_model(), zone=(zone,))
    (shown,) = kept.of(Objects)
    (box,) = shown.boxes
    assert (box.label, box.zones) == ("car", ("all",))
    (segment,) = kept.of(Segment)
    assert (segment.start_s, segment.end_s, segment.label) == (0.0, 0.1, "car")
    assert (segment.count, segment.score) == (1, pytest.approx(box.score))
    visits = [(e.event, e.time_s, e.now) for e in kept.of(ZoneEvent)]
    assert visits == [("enter", 0.0, 1), ("leave", 0.0, 0)]
    assert (kept.summary.steps, kept.summary.media_s, kept.summary.segments) == (1, 0.1, 1)


@pytest.mark.long
def test_boxes_below_the_threshold_are_left_out(clip: Path) -> None:
    kept = played(clip, bright_model(), threshold=0.95)
    assert not any(o.boxes for o in kept.of(Objects))
    assert kept.of(Segment) == []
    by_card = played(clip, random_model()).of(Objects)
    assert all(box.score >= 0.3 for o in by_card for box in o.boxes)
    assert any(o.boxes for o in by_card)


def test_ids_through_the_frames(clip: Path) -> None:
    kept = played(clip, bright_model(), track=True)
    ids = [[box.id for box in o.boxes] for o in kept.of(Objects)]
    assert ids == [[] if 10 <= i < 16 else [1] for i in range(24)]  # away for 0.6 s


def test_zones_and_lines_of_a_run(clip: Path, tmp_path: Path) -> None:
    """The square goes to the right, 60 pixels a second, and is away for 0.6 s."""
    zone = parse_place("right=0.5,0 1,0 1,1 0.5,1", "zone", "--zone")
    line = parse_place("mid=100,0 100,160", "line", "--line")  # downwards: to the left is in
    model, path = bright_model(), tmp_path / "street.mp4.jsonl"
    source = open_source(str(clip), SourceOptions(box=model.info.box, drawing=(320, 240)))
    kept = RecordSink()
    made = make_sinks(("jsonl", "mp4"), tmp_path, "street.mp4")
    run(source, model, [kept, *made], options=Options(zone=(zone,), line=(line,)))
    (crossing,) = kept.of(Crossing)
    assert (crossing.direction, crossing.id, crossing.outs) == ("out", 1, 1)
    assert [e.event for e in kept.of(ZoneEvent)] == ["enter", "leave"]
    # Its middle is at 40 + 60 t; it is seen again, in the zone, at 1.6 s.
    assert crossing.time_s == pytest.approx(1.6)
    assert [e.time_s for e in kept.of(ZoneEvent)] == pytest.approx([1.6, 2.3])
    last = kept.of(Objects)[-1].boxes[0]
    assert (last.id, last.zones) == (1, ("right",))
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [row["boxes"] for row in rows if row["type"] == "objects"][-1][0][6:] == [1, ["right"]]
    read = list(read_results(path))
    assert [r for r in read if isinstance(r, ZoneEvent)] == [
        replace(e, dwell_s=round(e.dwell_s, 6), time_s=round(e.time_s, 6))
        for e in kept.of(ZoneEvent)
    ]
    with av.open(str(tmp_path / "street.mp4.mp4")) as movie:
        picture = next(movie.decode(video=0)).to_ndarray(format="rgb24")
    left, middle = (int(x * 224 / 224 * picture.shape[1] / 224) for x in (100, 112))
    assert picture[60, left - 2 : left + 3, 0].max() > 150  # the line, on black
    assert picture[60, middle - 2 : middle + 3, 0].max() > 150
    with ReportBuilder([path]) as maker:
        assert list(maker.read())
        maker.write(AtomicFile(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "Zone or line" in page
    assert ">right<" in page


def test_what_is_masked_is_neither_seen_nor_computed(clip: Path) -> None:
    mask = parse_place("sky=0,0 1,0 1,0.75 0,0.75", "mask", "--mask")
    kept = played(clip, bright_model(), mask=(mask,))
    assert not any(o.boxes for o in kept.of(Objects))  # the square is in the upper part
    tokens = [c.tokens for c in kept.of(Compute)]
    # 5 rows of 7 tokens of 16 pixels, of which 60 of 80 are masked: 3 rows wholly.
    assert tokens == 24 * [14]
    seen = RecordSink()
    source = open_source(str(clip), SourceOptions(box=BOX))
    run(source, bright_model(), [seen], options=Options(mask=(mask,), tokens=6))
    assert [c.tokens for c in seen.of(Compute)] == [14] + 23 * [6]
    turned = parse_place("all=0,0 224,0 224,160 0,160", "mask", "--mask")
    assert {c.tokens for c in played(clip, bright_model(), mask=(turned,)).of(Compute)} == {0}


def test_a_gap_forgets_objects_but_not_how_many_tokens() -> None:
    times = [*(i / 10 for i in range(4)), *(5 + i / 10 for i in range(4))]
    rgb = scene(0, (112, 80))
    frames = [VideoFrame(i, t, i, rgb.copy, size=SIZE) for i, t in enumerate(times)]
    info, kept = SourceInfo("given", "given", "video", None, 10.0, size=SIZE), RecordSink()
    run(ItemSource(info, frames), bright_model(), [kept], options=Options(tokens=4, track=True))
    assert len(kept.of(Gap)) == 1
    assert [c.tokens for c in kept.of(Compute)] == [35, 4, 4, 4, 35, 4, 4, 4]
    assert [o.boxes[0].id for o in kept.of(Objects)] == 4 * [1] + 4 * [2]
    assert [round(s.end_s, 6) for s in kept.of(Segment)] == [0.4, 5.4]


def test_the_policy_is_chosen_and_recorded(clip: Path) -> None:
    torch.manual_seed(1)
    network = random_network(token_gate=[4, 2, 4])
    card = object_card(arguments={**ARGUMENTS, "token_gate": [4, 2, 4]})
    model = ObjectModel(card, network, Pixels(BOX))

    def costs(**options: Any) -> list[Compute]:
        sink = RecordSink()
        source = open_source(str(clip), SourceOptions(box=BOX))
        run(source, model, [sink], options=Options(**options))
        first, *others = sink.of(Compute)
        assert first.policy is None  # computed in full
        return others

    learned, same, distance, change = (
        costs(tokens=4),
        costs(tokens=4, policy="learned"),
        costs(tokens=4, policy="distance"),
        costs(tokens=">0.5"),
    )
    assert {c.policy for c in learned} == {c.policy for c in same} == {"learned"}
    assert {c.policy for c in distance} == {"distance"}
    assert {c.policy for c in change} == {"change"}
    assert {c.policy for c in costs()} == {None}
    assert [c.macs for c in learned] == [c.macs for c in same] != [c.macs for c in distance]
    budget = Budget.parse("50%")
    assert {c.policy for c in costs(budget=budget, policy="distance")} == {"distance"}


def test_a_policy_that_says_nothing_is_refused() -> None:
    model = random_model()
    for options, told in (
        ({"tokens": 4, "policy": "learned"}, "has no learned policy"),
        ({"policy": "distance"}, "--policy: says which of a number of tokens"),
        ({"tokens": ">2", "policy": "distance"}, "--policy: says which of a number of tokens"),
        ({"tokens": "100%", "policy": "distance"}, "--policy: says which of a number of tokens"),
    ):
        with pytest.raises(UsageError, match=told):
            check_model_options(Options(model="m", **options), model)  # type: ignore[arg-type]
    check_model_options(Options(model="m", tokens=4, policy="distance"), model)


def test_feeds_of_a_watch_each_have_their_own_state() -> None:
    model = random_model()
    rows = FeedStates(model, 2, tokens=5)
    frames = [
        VideoFrame(i, i / 10, i, scene(i, s).copy) for i, s in enumerate(((112, 80), (80, 80)))
    ]
    rows.step([0, 1], frames)
    counts = [int(r.updated[0].sum()) for r in rows.step([0, 1], frames)]  # type: ignore[index]
    assert counts == [5, 5]
    kept = rows.take(1)
    rows.reset(1)
    assert int(rows.step([1], frames[1:])[0].updated[0].sum()) == 25  # type: ignore[index]
    kept.tokens = 9  # of an earlier run
    rows.put(1, kept)
    assert int(rows.step([1], frames[1:])[0].updated[0].sum()) == 5  # type: ignore[index]


def test_every_format_and_a_report(clip: Path, tmp_path: Path) -> None:
    model = ObjectModel(
        replace(object_card(), rate_hz=5.0), random_model().network, bright_model().frontend
    )
    source = open_source(str(clip), SourceOptions(box=model.info.box, drawing=(320, 240)))
    run(
        source,
        model,
        make_sinks(tuple(FORMATS), tmp_path, "street.mp4"),
        options=Options(tokens=6),
    )
    for format in FORMATS:
        for path in paths_for(format, tmp_path, "street.mp4", objects=True):
            assert path.stat().st_size, path
    lines = [json.loads(line) for line in (tmp_path / "street.mp4.jsonl").open(encoding="utf-8")]
    digests = [
        RunSummary.of(read_results(tmp_path / f"street.mp4.{kind}")) for kind in ("jsonl", "json")
    ]
    for digest in digests:
        assert digest.steps == sum(line["type"] == "objects" for line in lines) == 12
        assert not digest.damages
        shown = {line["label"] for line in lines if line["type"] == "segment"}
        assert set(digest.heads.names) == shown  # a timeline for each
        assert digest.cost_json()["macs"] == lines[-1]["macs"]
        assert digest.curves is not None
    with ReportBuilder([tmp_path / "street.mp4.jsonl"], thumbnails=False) as maker:
        assert list(maker.read())
        maker.write(AtomicFile(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "at once" in page
    assert "if all were computed" in page
