"""CoNystrom: steps against clips, and its published sizes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from costream.checkpoints.card import Card
from costream.models.build import save_model
from costream.models.oad.conystrom import CoNystrom, CoNystromAudio
from costream.models.oad.cooadtr import CoOadTR
from costream.models.registry import load_model
from costream.records import FeatureRow

SIZES: dict[str, Any] = {"embed_dim": 16, "num_heads": 4, "feedforward": 24, "window": 6}


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.mark.parametrize("landmarks", ["continual", "fixed"])
@pytest.mark.parametrize("depth", [1, 2])
def test_steps_and_clip_agree(depth: int, landmarks: str) -> None:
    model = CoNystrom(10, 5, depth=depth, num_landmarks=4, landmarks=landmarks, **SIZES)
    model = model.double().eval()
    x = torch.randn(2, 20, 10, dtype=torch.float64)
    state = model.init_state(2)
    steps = [model.forward_step(row, state).logits for row in x.unbind(1)]
    torch.testing.assert_close(torch.stack(steps, 1), model(x).logits)


def test_sizes_of_the_paper() -> None:
    with torch.device("meta"):
        video, sound = CoNystrom(4096, 22), CoNystromAudio(10)
        exact = CoOadTR(4096, 22)
    assert sum(p.numel() for p in video.parameters()) == sum(p.numel() for p in exact.parameters())
    assert sum(p.numel() for p in sound.parameters()) == pytest.approx(286e3, rel=0.01)
    assert (video.encoder.attention[0].num_landmarks, video.window) == (16, 64)
    assert (sound.encoder.attention[0].num_landmarks, sound.window) == (4, 120)


@pytest.mark.parametrize("architecture", ["conystrom", "conystrom-audio"])
def test_from_a_weight_file(architecture: str, tmp_path: Path) -> None:
    arguments = {"input_width": 10, "num_classes": 3, "num_landmarks": 2, "landmarks": "fixed"}
    card = Card("mine", "online action detection", architecture, {**arguments, **SIZES},
                ("none", "a", "b"), 4.0)  # fmt: skip
    kind = {"conystrom": CoNystrom, "conystrom-audio": CoNystromAudio}[architecture]
    network = kind(**card.arguments).eval()
    save_model(tmp_path / "mine.safetensors", card, network)
    model = load_model(str(tmp_path / "mine.safetensors"), device="cpu")
    state, rows = model.init_state(), np.random.default_rng(0).normal(size=(9, 10))
    for t, row in enumerate(rows.astype(np.float32)):
        result = model.step([FeatureRow(t, t / 4, row)], state)
    clip = network(torch.from_numpy(rows.astype(np.float32))[None]).logits[0, -1].softmax(-1)
    assert result.probabilities[0] == pytest.approx(clip.numpy(), abs=1e-5)
    assert result.macs == network.count_macs() < result.dense_macs
