"""Verification of weight files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from costream.checkpoints.card import Card
from costream.errors import ModelError
from costream.frontends.base import load_frontend
from costream.models.build import save_model
from costream.models.oad.cooadtr import CoOadTR
from costream.models.oad.encoders import PlainEncoder
from costream.models.verify import verify

FRONTEND = {"box": (32, 24), "widths": (4, 4, 6, 8), "motion_width": 4, "lags": (1, 3)}
SIZES = {"embed_dim": 8, "num_heads": 2, "feedforward": 8, "window": 4}


@pytest.mark.parametrize("kind", ["features", "video", "encoder"])
@pytest.mark.parametrize("poison", [None, float("nan"), float("inf")])
def test_models_of_every_kind(tmp_path: Path, kind: str, poison: float | None) -> None:
    file = tmp_path / "x.safetensors"
    frontend = load_frontend("tdn", **FRONTEND) if kind == "video" else None
    fields: dict[str, Any] = {"architecture": "cooadtr"}
    if kind == "encoder":
        fields = {"architecture": "encoder", "labels": ()}
        arguments = {**SIZES, "depth": 2}
        network: Any = PlainEncoder(**arguments)
    else:
        width = 6 if frontend is None else frontend.token_width
        arguments = {"input_width": width, "num_classes": 3, **SIZES}
        network = CoOadTR(**arguments)
    if kind == "video":
        fields |= {"frontend": "tdn", "frontend_arguments": FRONTEND}
    if poison is not None:
        with torch.no_grad():
            next(p for p in network.parameters() if p.ndim > 1)[0, 0] = poison
    fields = {"name": "x", "task": "t", "labels": ("a", "b", "c"), "rate_hz": 4.0} | fields
    digest = save_model(file, Card(arguments=arguments, **fields), network, frontend)
    if poison is None:
        assert verify(file) == digest
    else:
        with pytest.raises(ModelError, match=r"x\.safetensors: .*not finite"):
            verify(file)
