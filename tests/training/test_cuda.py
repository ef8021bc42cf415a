"""``costream train --device cuda``: every kind of training, where there is a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from costream.models.catalogue import load_model
from costream.training.checkpoint import TrainingCheckpoint
from costream.training.command import train
from costream.training.tokens.landmarks import centres
from costream.weights_io.file import read_card, read_weights
from kit import data_audio, data_objects, data_skeleton, data_video
from kit.data_training import train_settings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

PRUNED = {"adapter": "splora", "rank": 2, "density": 0.6}
WHOLE = {"fine_tune": True}


def _train(kit, folder, **options):
    """Train tiny weights of a kind on its examples; return the paths of both weights."""
    base, path = folder / "tiny.safetensors", folder / "own.safetensors"
    if not base.exists():  # otherwise what was stopped goes on
        kit.write_tiny_weights(base)
        if kit is data_objects:
            options["labels"] = kit.write_pictures(folder / "examples", 5)
        else:
            kit.write_folder(folder / "examples", 3)
    options = {"steps": 6, "verbosity": 0, "device": "cuda", **options}
    with torch.enable_grad():
        train(train_settings(path, model=str(base), data=folder / "examples", **options))
    return base, path


@pytest.mark.parametrize(
    ("kit", "options"),
    [
        (data_skeleton, {}),
        (data_skeleton, PRUNED),
        (data_audio, {}),
        (data_audio, WHOLE),
        (data_audio, WHOLE | PRUNED),
        (data_video, {"adapter": "lora", "rank": 2}),
        (data_video, WHOLE),
        (data_video, WHOLE | PRUNED),
        (data_video, WHOLE | {"density": 0.6}),
        (data_video, {"scratch": True}),
        (data_objects, WHOLE),
        (data_objects, WHOLE | PRUNED),
        (data_objects, {"fine_tune": False}),
    ],
)
def test_every_kind_is_trained_on_a_gpu(kit, options, tmp_path):
    torch.cuda.reset_peak_memory_stats()
    base, path = _train(kit, tmp_path, **options)
    assert torch.cuda.max_memory_allocated() > 0
    before, after = read_weights(base).tensors, read_weights(path).tensors
    assert all(bool(tensor.isfinite().all()) for tensor in after.values())
    same = [k for k in after if k in before and after[k].shape == before[k].shape]
    assert not all(torch.equal(after[k], before[k]) for k in same)
    assert load_model(str(path), device="cpu").info.card.labels == read_card(path).labels


def test_a_training_on_a_gpu_continues(tmp_path, monkeypatch):
    def stopped(self, steps, parts):
        if steps == 4:
            self.write(steps, parts)
            raise RuntimeError("stopped")

    monkeypatch.setattr(TrainingCheckpoint, "note", stopped)
    with pytest.raises(RuntimeError, match="stopped"):
        _train(data_skeleton, tmp_path, **PRUNED)
    first = []
    monkeypatch.setattr(TrainingCheckpoint, "note", lambda self, steps, parts: first.append(steps))
    _train(data_skeleton, tmp_path, **PRUNED)
    assert first == [5, 6]


def test_landmarks_are_found_on_a_gpu():
    near = torch.randn(1, 200, 4).cuda() * 0.01
    points = torch.cat([near, near + 5], 1)
    found = centres(points, 2, np.random.default_rng(0))
    assert found.device == points.device
    assert found[0].mean(1).sort().values.tolist() == pytest.approx([0.0, 5.0], abs=0.1)
