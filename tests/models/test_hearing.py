"""A model of pictures and models of sound on one source: each gives what it gives alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

import costream
from costream.core.clock import SILENT_S
from costream.core.errors import ModelError
from costream.core.layouts import find_layout
from costream.core.records import (
    Alert,
    AudioBlock,
    Fault,
    Level,
    Prediction,
    Segment,
    SkeletonFrame,
    SourceInfo,
    VideoFrame,
)
from costream.models.base import GatedModel
from costream.models.catalogue import load_model
from costream.models.with_audio import HearingModel, with_sound
from costream.report.run_summary import RunSummary
from costream.runtime.pipeline import run
from costream.sinks.registry import make_sinks
from costream.sinks.result_reader import read_results
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from kit.object_nets import bright_model
from kit.paths import SAMPLES
from kit.rtsp_server import RtspServer, endless, needs_rtsp
from kit.streams import ItemSource, RecordSink
from kit.tcp_proxy import TcpProxy


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten seconds of the samples: the pictures of one, the sound of the other."""
    path = tmp_path_factory.mktemp("both") / "both.mkv"
    with (
        av.open(str(SAMPLES / "room.mp4")) as pictures,
        av.open(str(SAMPLES / "street.ogg")) as sounds,
        av.open(str(path), "w") as out,
    ):
        given = (pictures.streams.video[0], sounds.streams.audio[0])
        made = {id(stream): out.add_stream_from_template(stream) for stream in given}
        packets = [p for file in (pictures, sounds) for p in file.demux() if p.dts is not None]
        for packet in sorted(packets, key=lambda p: p.dts * p.time_base):
            if packet.dts * packet.time_base < 10 and id(packet.stream) in made:
                packet.stream = made[id(packet.stream)]
                out.mux(packet)
    return path


def frame(i: int, sound: tuple[AudioBlock, ...]) -> VideoFrame:
    rgb = np.random.default_rng(i).integers(0, 255, (80, 112, 3), np.uint8)
    return VideoFrame(i, i / 8, i, lambda: rgb, sound=sound)


def block(i: int, seed: int = 0) -> AudioBlock:
    wave = np.random.default_rng((seed, i)).standard_normal(4000).astype(np.float32)
    return AudioBlock(i, (i + 1) / 4, 0.1 * wave)


def test_in_a_batch_each_stream_is_what_each_network_gives_alone() -> None:
    picture, sound = load_model("cooadtr"), load_model("cosounds")
    both = load_model("cooadtr,cosounds")
    assert isinstance(both, HearingModel)
    count = len(picture.info.card.labels)
    assert [h.columns for h in both.info.heads] == [slice(0, count), slice(count, count + 64)]
    state = both.init_state(2)
    alone = [picture.init_state(1), picture.init_state(1)]
    heard = [sound.init_state(1), sound.init_state(1)]
    for i in range(24):
        blocks = [(block(i // 2, s),) if (i + s) % 2 else () for s in range(2)]
        items = [frame(i + 100 * s, blocks[s]) for s in range(2)]
        result = both.step(items, state)
        assert result.probabilities is not None
        for s in range(2):
            seen = picture.step([items[s]], alone[s])
            new = sound.steps(list(blocks[s]), heard[s]) if blocks[s] else []
            got = result.probabilities[s]
            np.testing.assert_allclose(got[:count], seen.probabilities[0], atol=2e-5)
            if new:
                np.testing.assert_allclose(got[count:], new[-1].probabilities[0], atol=2e-5)
            else:
                assert np.isnan(got[count:]).all()
        cost = 2 * picture.macs + sum(map(len, blocks)) * sound.macs
        assert result.macs == cost
    assert both.check(open_source(str(SAMPLES / "room.mp4")).open())["sound"].startswith("none")


def test_sound_that_was_away_starts_again() -> None:
    both, sound = load_model("cooadtr,cosounds"), load_model("cosounds")
    state, fresh = both.init_state(1), sound.init_state(1)
    for i in range(8):
        both.step([frame(i, (block(i),))], state)
    later = [block(8 + round(4 * SILENT_S) + 1 + k) for k in range(3)]
    for item in later:
        got = both.step([frame(item.i, (item,))], state).probabilities
        (new,) = sound.steps([item], fresh)
        np.testing.assert_allclose(got[0, -64:], new.probabilities[0], atol=2e-5)


def test_scores_of_sound_that_are_not_numbers_are_reported() -> None:
    both, loud = load_model("cooadtr,cosounds"), np.full(4000, 1e30, np.float32)
    state = both.init_state(2)
    for i in range(6):
        bad = AudioBlock(i, (i + 1) / 4, loud) if i == 3 else block(i)
        with np.errstate(all="ignore"):
            result = both.step([frame(i, (block(i),)), frame(i, (bad,))], state)
        assert result.overflowed == ((False, True) if i == 3 else None)
    assert not np.isnan(result.probabilities).any()


def test_a_gated_model_keeps_its_settings() -> None:
    both = with_sound(bright_model(), load_model("cosounds"))
    assert isinstance(both, GatedModel)
    state = both.init_state(1)
    state.tokens = 3
    for i in range(3):
        result = both.step([frame(0, (block(i),))], state)
    assert result.tokens is not None
    assert result.tokens[0] <= 3 < both.token_count(state)
    assert state.picture.tokens == 3
    assert both.step_macs(state, 3) == bright_model().step_macs(state.picture, 3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cooadtr,oadtr,cosounds", "cooadtr and oadtr cannot be combined; .*models of sound may"),
        ("cooadtr,cooadtr-b2", "cooadtr and cooadtr-b2 cannot be combined; .*models of sound may"),
    ],
)
def test_options_that_exclude_each_other_are_refused(name: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        load_model(name)


@pytest.mark.long
def test_a_file_has_the_timelines_of_both(clip: Path, tmp_path: Path) -> None:
    both = costream.detect(clip, "cooadtr,cosounds", output=tmp_path).collect()
    for name, alone in (
        ("cooadtr", costream.detect(clip, "cooadtr").collect()),
        ("cosounds", costream.listen(clip, "cosounds").collect()),
    ):
        ours = [(s.label, s.start_s, s.end_s) for s in both.segments if s.model == name]
        theirs = [(s.label, s.start_s, s.end_s) for s in alone.segments]
        assert ours == [
            (label, pytest.approx(a), pytest.approx(b, abs=0.06)) for label, a, b in theirs
        ]  # the sound ends earlier
        assert theirs
        scores = [p.top[0] for p in both.predictions if p.model == name]
        expected = [p.top[0] for p in alone.predictions]
        assert len(scores) == pytest.approx(len(expected), abs=1)
        for (label, score), (other, value) in zip(scores, expected, strict=False):
            assert label == other
            assert score == pytest.approx(value, abs=1e-4)
    assert RunSummary.of(read_results(tmp_path / "both.mkv.jsonl")).heads.names == (
        "cooadtr",
        "cosounds",
    )


@pytest.mark.long
def test_objects_and_sounds_in_files(clip: Path, tmp_path: Path) -> None:
    model = with_sound(bright_model(), load_model("cosounds"))
    assert model.info.beside is not None
    options = SourceOptions(box=model.info.box, extra_audio=model.info.beside)
    kept = RecordSink()
    sinks = make_sinks(("jsonl", "json", "csv", "srt"), tmp_path, "both")
    run(open_source(str(clip), options), model, [*sinks, kept])
    assert {s.model for s in kept.of(Segment)} >= {"cosounds"}
    document = json.loads((tmp_path / "both.json").read_text())
    assert all("boxes" in step for step in document["objects"])
    assert all(step["model"] == "cosounds" for step in document["predictions"])
    assert len(document["predictions"]) == len(kept.of(Prediction))
    again = costream.Results.read(tmp_path / "both.json")
    assert len(again.predictions) == len(costream.Results.read(tmp_path / "both.jsonl").predictions)
    assert "cosounds" in again.to_html()


class Finder:
    """The skeletons of frames, by their numbers."""

    def __init__(self, known: list[SkeletonFrame]) -> None:
        self._known = known

    def find(self, frame: VideoFrame) -> SkeletonFrame:
        return self._known[frame.i]

    def close(self) -> None:
        pass


def test_persons_in_pictures_and_the_sound_next_to_them() -> None:
    """Each has what it has alone: two persons, the second from the second second on."""
    layout, rng = find_layout("ntu-25"), np.random.default_rng(0)
    walk = rng.standard_normal((2, 25, 3)).astype(np.float32)
    known = []
    for k in range(45):
        walk = walk + 0.05 * rng.standard_normal(walk.shape).astype(np.float32)
        scores = np.array([1.0, k >= 15], np.float32)[:, None] * np.ones(25, np.float32)
        numbers = (1, 2 if k >= 15 else 0)
        known.append(SkeletonFrame(k, k / 15, walk * scores[..., None], scores, layout))
        known[-1] = replace(known[-1], persons=numbers)
    blocks = [block(i) for i in range(12)]
    pixels = np.zeros((4, 4, 3), np.uint8)
    frames = [VideoFrame(k, k / 15, k, lambda: pixels) for k in range(45)]
    items = sorted([*frames, *blocks], key=lambda item: (item.time_s, isinstance(item, VideoFrame)))
    model: Any = load_model("costgcn,cosounds")
    model.person.person_finder = lambda most: Finder(known)
    info = SourceInfo("two", "two", "video", 3.0, 15.0, extra_audio=True)
    both, alone = RecordSink(), RecordSink()
    run(ItemSource(info, items), model, [both])
    skeletons = replace(info, kind="skeleton", extra_audio=False)
    run(ItemSource(skeletons, known), load_model("costgcn"), [alone], follow_persons=True)
    given = both.of(Prediction)
    of_persons = [replace(p, model=None, pts=None) for p in given if p.person is not None]
    assert of_persons == alone.of(Prediction)
    assert {p.person for p in of_persons} == {1, 2}
    heard = [p for p in given if p.person is None]
    sound = load_model("cosounds")
    expected = sound.steps(blocks, sound.init_state(1))
    assert len(heard) == len(expected) - 1  # the last block ends after the last picture
    for one, other in zip(heard, expected, strict=False):
        assert one.model == "cosounds"
        assert other.probabilities is not None
        assert one.top[0][1] == pytest.approx(other.probabilities.max(), abs=1e-4)
    assert both.header.persons == 8
    assert [head.model for head in both.header.heads] == ["costgcn", "cosounds"]


@pytest.mark.long
@needs_rtsp
def test_a_feed_is_connected_to_once_for_both(tmp_path: Path) -> None:
    """Pictures and a tone, also after the connection was cut; rules about either."""
    rules = ["level >= -40dB for 1s", "any sound"]
    with RtspServer({"door": endless(sound=True)}) as server, TcpProxy(server.port) as proxy:
        url = f"rtsp://127.0.0.1:{proxy.port}/door"
        options: dict[str, Any] = {"on": rules, "levels": "dB", "timeout": 20, "output": tmp_path}
        heard, seen, alerts, levels = 0, 0, [], []
        with costream.watch(url, "cooadtr,cosounds", **options) as feeds:
            cut = False
            for _, record in feeds:
                if isinstance(record, Prediction):
                    heard += record.model == "cosounds"
                    seen += record.model == "cooadtr"
                alerts += [record] if isinstance(record, Alert) else []
                levels += [record] if isinstance(record, Level) else []
                if heard >= 10 and not cut:
                    assert proxy.accepted == 1
                    cut, heard, seen = True, 0, 0
                    proxy.cut()
                if cut and heard >= 10:
                    break
            assert feeds.status is not None
            assert feeds.status.feeds[0].reconnects == 1
            assert feeds.status.feeds[0].heads.keys() == {"cooadtr", "cosounds"}
            assert feeds.status.feeds[0].frames_hz < 27  # the blocks of sound are none
        assert proxy.accepted == 2
    assert 1.2 * heard < seen < 3.5 * heard
    assert {a.rule for a in alerts} == {"level >= -40dB for 1s"}
    assert np.median([level.db for level in levels]) == pytest.approx(-6.0, abs=2.0)


@needs_rtsp
def test_a_feed_without_sound_is_watched_all_the_same() -> None:
    with RtspServer({"door": endless()}) as server:
        found = []
        with costream.watch(server.url("door"), "cooadtr,cosounds", timeout=20) as feeds:
            for _, record in feeds:
                found.append(record)
                if sum(isinstance(r, Prediction) for r in found) >= 10:
                    break
    assert {r.model for r in found if isinstance(r, Prediction)} == {"cooadtr"}
    (fault,) = (r for r in found if isinstance(r, Fault))
    assert fault.message == "no sound: there is no sound in it, only video"
