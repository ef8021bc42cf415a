"""Whole training states, which name the classes of the trainer beside the weights."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from costream.errors import ModelError
from costream.importers.pickles import read_foreign

WEIGHTS = {"model.a": torch.arange(3.0)}


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """A class of Lightning's, which is not installed here."""
    name = "pytorch_lightning.callbacks.model_checkpoint"
    for part in ("pytorch_lightning", "pytorch_lightning.callbacks", name):
        monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    made = type("ModelCheckpoint", (), {"__module__": name})
    sys.modules[name].ModelCheckpoint = made  # type: ignore[attr-defined]
    return made


class Call:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def scheduler() -> dict[str, Any]:
    """The state of a scheduler as older versions of torch save it, with one of its methods."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], 0.1)
    made = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    method = Call(getattr, torch.optim.lr_scheduler.OneCycleLR, "_annealing_cos")
    return {**made.state_dict(), "anneal_func": method}


def test_the_weights_are_found_and_the_trainer_is_not_needed(
    trainer: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {
        "callbacks": {trainer: {"best_model_path": "x.ckpt"}},
        "callback": trainer(),
        "lr_schedulers": [scheduler()],
        "hyper_parameters": {"pool_size": -1},
        "state_dict": WEIGHTS,
    }
    torch.save(state, tmp_path / "x.ckpt")
    monkeypatch.delitem(sys.modules, trainer.__module__)
    found = read_foreign(tmp_path / "x.ckpt")
    assert torch.equal(found.tensors["a"], WEIGHTS["model.a"])
    assert found.args == {"pool_size": -1}


@pytest.mark.parametrize("kind", ["system", "getattr", "import"])
def test_what_lies_beside_a_trainers_class_is_refused_all_the_same(
    trainer: type[Any], tmp_path: Path, kind: str
) -> None:
    marker = tmp_path / "marker"
    malice = {
        "system": Call(os.system, f"touch {marker}"),
        "getattr": Call(getattr, "", "join"),
        "import": Call(__import__, "os"),
    }[kind]
    state = {"callbacks": {trainer: 1}, "state_dict": WEIGHTS, "x": malice}
    torch.save(state, tmp_path / "x.ckpt")
    with pytest.raises(ModelError, match=r"refused: it references .* nothing was executed"):
        read_foreign(tmp_path / "x.ckpt")
    assert not marker.exists()
