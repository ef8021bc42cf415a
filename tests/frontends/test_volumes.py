from __future__ import annotations

from typing import Any

import torch

from costream.checkpoints.card import Card
from costream.frontends.base import load_frontend
from costream.models.oad.cooadtr import CoOadTR
from costream.models.streaming import StreamingModel
from costream.records import VideoFrame

SMALL: dict[str, Any] = {
    "size": 19,
    "short_side": 24,
    "widths": (8, 12),
    "depths": (1, 2),
    "stem_width": 4,
    "head": (6, 10),
    "pool": 4,
}


def test_cooadtr_from_pixel_to_label() -> None:
    """Nothing is computed twice, and each stream of a batch gets what it would alone."""
    torch.manual_seed(0)
    frontend = load_frontend("cox3d", **SMALL)
    network = CoOadTR(10, 3, embed_dim=8, num_heads=2, feedforward=8, window=5)
    card = Card("x", "online action detection", "cooadtr", {"input_width": 10}, ("a", "b", "c"), 5)
    model = StreamingModel(card, network, frontend, device="cpu", dtype="float64")
    assert model.info.box == (72, 48)
    assert model.info.in_time
    assert frontend.dense_macs > 3 * frontend.count_macs()
    pictures = [torch.randint(0, 256, (24, 30, 3), dtype=torch.uint8).numpy() for _ in range(12)]
    frames = [VideoFrame(i, i / 5, i, rgb.copy) for i, rgb in enumerate(pictures)]
    both, alone = model.init_state(2), model.init_state()
    for k in range(0, 12, 2):
        pair = model.step(frames[k : k + 2], both)
        single = model.step(frames[k : k + 1], alone)
        assert pair.probabilities is not None
        assert single.probabilities is not None
        assert abs(pair.probabilities[0] - single.probabilities[0]).max() < 1e-6
    assert single.macs == frontend.count_macs() + network.count_macs()
    assert single.warmup == (False,)
