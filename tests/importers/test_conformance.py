"""Conformance of every registered importer to the contract in ``importers/base.py``."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from costream.errors import ModelError
from costream.importers.base import IMPORTERS
from costream.importers.config import KEYS
from costream.importers.run import import_files
from costream.models.build import build
from kit.paths import ROOT

EVERY = pytest.mark.parametrize("name", list(IMPORTERS))


@EVERY
def test_declares_how_it_is_recognised_and_set(name: str) -> None:
    entry = IMPORTERS.get(name)
    assert entry.info["summary"]
    assert callable(entry.target)
    assert set(entry.info["keys"]) <= set(KEYS), "a key that --config does not document"


@EVERY
def test_recognises_no_foreign_tensors(name: str) -> None:
    detect = IMPORTERS.get(name).info["detect"]
    assert not detect({})
    assert not detect({"weight": torch.zeros(2, 2), "layer1.0.bias": torch.zeros(2)})


@EVERY
def test_a_checkpoint_without_its_tensors_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pth"
    torch.save({"weight": torch.zeros(2, 2)}, path)
    with pytest.raises(ModelError) as caught:
        import_files([path], "test", {}, name)
    assert "\n" not in str(caught.value)


def test_orders_of_detection_differ() -> None:
    orders = [entry.info["order"] for entry in IMPORTERS.entries().values()]
    assert orders == sorted(set(orders))


OUTSIDE = '''
from __future__ import annotations

from costream.importers.base import importer
from costream.importers.rules import ImportedNetwork


@importer(
    "gru-zoo",
    summary="GRU of a made-up project",
    detect=lambda tensors: "cell.weight_ih" in tensors,
    keys=("num_classes",),
)
def convert(foreign, settings):
    """Return the network."""
    t = foreign.tensors
    settings.check("num_classes", t["out.weight"].shape[0])
    width = t["embed.weight"].shape[1]
    return ImportedNetwork("features", {"embed_dim": width}, {}, None, None, "", task="features")
'''


def test_one_file_outside_adds_an_importer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gru_zoo.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(IMPORTERS, "_added", dict(IMPORTERS._added))
    import_module("gru_zoo")
    tensors = {
        "embed.weight": torch.randn(4, 3),
        "embed.bias": torch.randn(4),
        "cell.weight_ih": torch.randn(12, 4),
        "out.weight": torch.randn(2, 4),
        "out.bias": torch.randn(2),
    }
    torch.save(tensors, tmp_path / "zoo.pth")
    card, weights = import_files([tmp_path / "zoo.pth"], "zoo", {"num_classes": "2"})
    assert (card.architecture, card.arguments) == ("features", {"embed_dim": 3})
    assert card.description == "Imported from a checkpoint of: GRU of a made-up project."
    assert build(card, weights)[0] is not None
    with pytest.raises(ModelError, match="num_classes"):
        import_files([tmp_path / "zoo.pth"], "zoo", {"num_classes": "3"})


def test_listing_imports_no_torch() -> None:
    code = "import sys; from costream.importers.base import *; print(*IMPORTERS); "
    code += "sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[:3] == ["oadtr", "miniroad", "cooadtr"]
