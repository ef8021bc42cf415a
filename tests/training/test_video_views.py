"""Custom videos: augmented views of a recording, labels of steps, pieces for fine-tuning."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from costream.core.errors import UsageError
from costream.labels.examples import Example, to_examples
from costream.labels.reading import read_recordings
from costream.labels.recording import UNSCORED
from costream.models.build import build
from costream.models.catalogue import load_model
from costream.training.audio.audio_trainer import AudioTrainer
from costream.training.feature_cache import FeatureCache
from costream.training.skeleton.skeleton_trainer import SkeletonTrainer
from costream.training.video import pieces as video_pieces
from costream.training.video.pieces import STEPS, Piece, Pieces, read_pieces
from costream.training.video.video_reader import VideoBranch, VideoReader, labels_at
from costream.training.video.video_views import PAUSE, VideoView
from costream.weights_io.file import read_weights
from kit import data_video

BOX = (32, 24)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = data_video.write_tiny_weights(tmp_path_factory.mktemp("base") / "tiny.safetensors")
    stored = read_weights(path)
    return stored.card, build(stored.card, stored.tensors)[1].eval()


def stretch(start, end, label, source="a"):
    return Example(source, label, start, end, "g", "w")


@given(st.integers(0, 2**31), st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_a_view_shows_the_same_however_its_pictures_come(seed, pieces):
    view = VideoView(np.random.default_rng(seed), BOX)
    total = sum(pieces)
    whole = view.chosen(0, total)
    begin, parts = 0, []
    for count in pieces:
        parts.append(begin + view.chosen(begin, count))
        begin += count
    assert np.array_equal(np.concatenate(parts), whole)
    assert set(np.diff(whole).tolist()) <= {0, 1, 2}
    assert 0.75 * total - 1 <= len(whole) <= 1.3 * total + 1
    assert 0 <= view.lead <= PAUSE >= view.tail >= 0


def test_views_differ_and_stay_in_range():
    frames = torch.randint(0, 256, (4, 3, 24, 32), dtype=torch.uint8)
    rng = np.random.default_rng(0)
    shown = [VideoView(rng, BOX).show(frames) for _ in range(2)]
    for one in shown:
        assert one.shape == frames.shape
        assert one.min() >= 0
        assert one.max() <= 255
    assert (shown[0] - shown[1]).abs().mean() > 1


def test_of_labels_that_overlap_the_newest_counts():
    examples = [stretch(4, None, "b"), stretch(1, 6, "a"), stretch(5, 5.5, "a")]
    times = np.array([np.nan, 0, 1, 3.9, 4, 5, 5.5, 99, np.nan])
    labels = labels_at(examples, times, ("x", "a", "b"), still=0)
    assert labels.tolist() == [0, UNSCORED, 1, 1, 2, 1, 2, 2, 0]


def test_tokens_are_those_of_a_run_whatever_the_chunks(base, tmp_path):
    card, frontend = base
    file = data_video.write_clip(tmp_path / "a.mp4", [("slide", 40), ("grow", 30)], 3)
    cache = FeatureCache(None, card, frontend)
    examples = [stretch(0.0, 5.0, "slide", str(file)), stretch(5.0, None, "grow", str(file))]
    (seen,) = VideoReader(card, frontend, 2, 0, cache).read(examples)
    assert np.allclose(seen.times[0], np.arange(70) / 8)
    streams = seen.streams(("background", "grow", "slide"), still=0)
    assert streams[0].labels.tolist() == [2] * 40 + [1] * 30
    for view in streams[1:]:
        edges = np.flatnonzero(np.diff(view.labels)).tolist()
        order = view.labels[[0, *(e + 1 for e in edges)]].tolist()
        assert [label for label in order if label] == [2, 1]
    (again,) = VideoReader(card, frontend, 0, 0, cache).read(examples)
    assert torch.equal(again.tokens[0], seen.tokens[0])


@torch.no_grad()
def test_a_gap_is_forgotten_as_in_a_run(base):
    _, frontend = base
    frames = torch.randint(0, 256, (20, 3, 24, 32), dtype=torch.uint8)
    eye = VideoBranch(frontend, None)
    eye.process(frames, torch.zeros(20, 0), np.arange(20.0))
    eye.reset()
    eye.process(frames, torch.zeros(20, 0), np.arange(20.0))
    tokens, _ = eye.close(stretch(0, None, "a"))
    assert torch.equal(tokens[:20], tokens[20:])


def test_an_example_between_two_steps_has_the_nearest(base, tmp_path):
    card, frontend = base
    file = data_video.write_clip(tmp_path / "a.mp4", [("slide", 20)], 3)
    example = stretch(1.01, 1.02, "slide", str(file))
    (seen,) = VideoReader(card, frontend, 0, 0, FeatureCache(None, card, frontend)).read([example])
    assert seen.steps(example).tolist() == [8]


def test_a_label_after_the_end_is_named(base, tmp_path):
    card, frontend = base
    file = data_video.write_clip(tmp_path / "a.mp4", [("slide", 20)], 3)
    reader = VideoReader(card, frontend, 0, 0, FeatureCache(None, card, frontend))
    with pytest.raises(UsageError, match="w: begins after the end of its recording"):
        reader.read([stretch(0, 1, "slide", str(file)), stretch(7, 9, "slide", str(file))])


def test_what_is_read_does_not_hang_on_where_labels_begin(base, tmp_path):
    card, frontend = base
    file = data_video.write_clip(tmp_path / "a.mp4", [("slide", 20)], 3)
    cache = FeatureCache(Path(tmp_path / "cache"), card, frontend)
    for start, end in ((0.5, 1.5), (0.7, 2.0)):
        VideoReader(card, frontend, 1, 0, cache).read([stretch(start, end, "slide", str(file))])
    assert len(list((tmp_path / "cache").iterdir())) == 1


def piece(labels):
    labels = np.array(labels)
    frames = np.arange(len(labels), dtype=np.uint8)[:, None, None, None]
    return Piece(np.broadcast_to(frames, (len(labels), 3, 6, 8)).copy(), labels)


def test_a_short_piece_is_filled_with_still_pictures():
    filled = piece([1, 1, UNSCORED]).filled(2, 0)
    assert len(filled.labels) == len(filled.frames) == STEPS
    assert filled.labels[:6].tolist() == [0, 0, 1, 1, UNSCORED, 0]
    assert filled.frames[:6, 0, 0, 0].tolist() == [0, 0, 0, 1, 2, 2]


def test_classes_are_drawn_equally_often():
    pieces = Pieces([piece([1] * 40)] * 9 + [piece([2] * 40)], (8, 6), UNSCORED)
    frames, labels = pieces.batch(200, np.random.default_rng(0))
    assert frames.shape == (200, STEPS, 3, 6, 8)
    assert frames.dtype == torch.float32
    assert 70 < int((labels.amax(1) == 2).sum()) < 130


def test_recordings_are_cut_up_and_memory_is_bounded(tmp_path, monkeypatch):
    media, labels = data_video.write_recordings(tmp_path, 2)
    model = load_model(str(data_video.write_tiny_weights(tmp_path / "tiny.safetensors")))
    examples = to_examples(read_recordings(media, labels), "background")

    def read(seed):
        return read_pieces(model.info.card, model.frontend, examples, data_video.LABELS, seed)

    pieces = read(0)
    per_recording = 12 + 6 * (16 + 12)
    assert [len(p.labels) for p in pieces] == 2 * [48, 48, 48, per_recording % 48]
    assert pieces[0].labels.tolist()[8:32] == [0] * 4 + [pieces[0].labels[12]] * 16 + [0] * 4
    monkeypatch.setattr(video_pieces, "MOST_BYTES", 3 * STEPS * pieces[0].frames[0].nbytes)
    few = read(0)
    assert len(few) == 3
    assert all(any(np.array_equal(p.frames, q.frames) for q in pieces) for p in few)


@pytest.mark.parametrize("trainer", [AudioTrainer, SkeletonTrainer])
def test_other_frontends_are_not_trained(trainer):
    card = SimpleNamespace(name="mine", arguments={"padding": "causal"}, frontend="logmel")
    settings = SimpleNamespace(fine_tune=True, rate_hz=None)
    with pytest.raises(UsageError, match="--fine-tune: mine has no frontend to train"):
        trainer().check(card, settings)
