"""Pieces of frames for fine-tuning a frontend."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from costream.errors import UsageError
from costream.labels.examples import to_examples
from costream.labels.reading import read_recordings
from costream.labels.recording import UNSCORED
from costream.models.registry import load_model
from costream.training.audio.trainer import AudioTrainer
from costream.training.skeleton.trainer import SkeletonTrainer
from costream.training.video import finetune
from costream.training.video.finetune import STEPS, Piece, Pieces, read_pieces
from kit import data_video


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
    monkeypatch.setattr(finetune, "MOST_BYTES", 3 * STEPS * pieces[0].frames[0].nbytes)
    few = read(0)
    assert len(few) == 3
    assert all(any(np.array_equal(p.frames, q.frames) for q in pieces) for p in few)


@pytest.mark.parametrize("trainer", [AudioTrainer, SkeletonTrainer])
def test_other_frontends_are_not_trained(trainer):
    card = SimpleNamespace(name="mine", arguments={"padding": "causal"})
    settings = SimpleNamespace(fine_tune=True, rate_hz=None)
    with pytest.raises(UsageError, match="--fine-tune: mine has no frontend to train"):
        trainer().check(card, settings)
