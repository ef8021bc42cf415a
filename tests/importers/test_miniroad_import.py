"""MiniROAD checkpoints on random weights, against the published modules."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from costream.errors import ModelError
from costream.importers.run import import_files
from costream.labels.names import THUMOS14
from costream.models.build import build

LABELS = {"labels": "thumos14"}


class Published(nn.Module):
    """The modules as the authors name them."""

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.gru = nn.GRU(12, 8, layers, batch_first=True)
        self.layer1 = nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.ReLU(), nn.Dropout(0.2))
        self.f_classification = nn.Sequential(nn.Linear(8, 22))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, _ = self.gru(self.layer1(x))
        logits: torch.Tensor = self.f_classification(torch.relu(rows))
        return logits


def wrapped(state: dict[str, Any], kind: str) -> Any:
    if kind == "training":
        return {"model": state, "epoch": 3, "args": argparse.Namespace(lr=1e-4)}
    if kind == "parallel":
        return {f"module.{name}": value for name, value in state.items()}
    return state


@pytest.mark.parametrize("kind", ["plain", "training", "parallel"])
@torch.no_grad()
def test_a_checkpoint_says_what_it_said(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    theirs = Published().eval()
    nn.init.normal_(theirs.layer1[1].weight)
    nn.init.normal_(theirs.layer1[1].bias)
    torch.save(wrapped(theirs.state_dict(), kind), tmp_path / "best_71.82.pth")
    card, tensors = import_files([tmp_path / "best_71.82.pth"], "mine", LABELS)
    assert (card.architecture, card.rate_hz, card.background) == ("miniroad", 4.0, "Background")
    assert card.labels == THUMOS14.names
    network, _ = build(card, tensors)
    x = torch.randn(2, 11, 6)
    torch.testing.assert_close(network.eval()(x).logits, theirs(x))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gru.bias_hh_l0": None}, r"missing: gru\.bias_hh_l0"),
        ({"gru.weight_ih_l0": torch.zeros(24, 11)}, r"weight_ih_l0 is \(24, 11\), not \(24, 12\)"),
        ({"anticipation_layer.0.bias": torch.zeros(8)}, "left over: anticipation_layer"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    state = {**Published().state_dict(), **change}
    file = tmp_path / "x.pth"
    torch.save({name: value for name, value in state.items() if value is not None}, file)
    with pytest.raises(ModelError, match=message):
        import_files([file], "x", LABELS)


def test_more_layers_and_other_sizes_are_told(tmp_path: Path) -> None:
    torch.save(Published(2).state_dict(), tmp_path / "x.pth")
    with pytest.raises(ModelError, match=r"left over: gru\.bias_hh_l1"):
        import_files([tmp_path / "x.pth"], "x", LABELS)
    torch.save(Published().state_dict(), tmp_path / "x.pth")
    with pytest.raises(ModelError, match="embed_dim=13 contradicts"):
        import_files([tmp_path / "x.pth"], "x", {**LABELS, "embed_dim": "13"})
    with pytest.raises(ModelError, match="does not contain labels"):
        import_files([tmp_path / "x.pth"], "x", {})
