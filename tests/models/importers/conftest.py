from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from costream.models.build import build
from costream.models.eventful import yolos
from costream.models.importing import import_files
from costream.models.video.movinet import importer as movinet
from costream.models.video.video3d import importer as video3d
from costream.weights_io.card import Card
from kit import paths
from kit.foreign_eventful import YOLOS_TABLE
from kit.foreign_video import SIZES
from kit.movinet_clip import SMALL

REFS = paths.REFS / "transformers"
Import = Callable[..., tuple[Card, Any]]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def reference() -> Callable[[str], tuple[dict[str, np.ndarray], dict[str, Tensor]]]:
    """Arrays and state dict of a file of reference arrays."""

    def load(name: str) -> tuple[dict[str, np.ndarray], dict[str, Tensor]]:
        if not REFS.is_dir():
            pytest.skip("needs the reference arrays: put them at ../shared/refs/transformers")
        with np.load(REFS / name) as file:
            arrays = dict(file)
        weights = {k[3:]: torch.from_numpy(v) for k, v in arrays.items() if k.startswith("sd/")}
        return arrays, weights

    return load


@pytest.fixture
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the small video networks of the kit the published ones."""
    monkeypatch.setattr(video3d, "SIZES", SIZES)
    monkeypatch.setattr(movinet, "SIZES", {"small": SMALL})
    monkeypatch.setattr(yolos, "TABLES", {math.prod(YOLOS_TABLE): YOLOS_TABLE})


@pytest.fixture
def load(tmp_path: Path) -> Import:
    """Save a checkpoint with torch.save, import it, return its card and network."""

    def run(content: object, form: str | None = None, **config: object) -> tuple[Card, Any]:
        path = tmp_path / "checkpoint.pth"
        torch.save(content, path)
        pairs = {key: str(value) for key, value in config.items()}
        card, tensors = import_files([path], "test", pairs, form)
        return card, build(card, tensors)[0].eval()

    return run


@pytest.fixture
def perturb() -> Callable[[Any], Any]:
    """Make every parameter random, so that no bias is zero and no norm is one."""

    def run(module: Any) -> Any:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        return module.eval()

    return run
