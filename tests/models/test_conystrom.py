"""CoNystrom: steps against clips, and its published sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from costream.models.oad.conystrom import CoNystrom, CoNystromAudio
from costream.models.oad.cooadtr import CoOadTR

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
