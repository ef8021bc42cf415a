"""Registered networks: what is listed, and a network that one file outside the package adds."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch

from costream.core.records import FeatureRow
from costream.models.catalogue import list_models, load_model
from costream.models.spec import (
    MODELS,
    architectures,
    is_gated,
    model_benches,
    model_spec,
    model_summaries,
    register_model,
)
from costream.nn.video3d.sizes import SIZES

OUTSIDE = """
import torch
from torch import nn

from costream.models.oad.cooadtr import OadOutput
from costream.models.spec import register_model
from costream.nn.state import State, zeros
from dataclasses import dataclass


@dataclass
class SumState(State):
    total: torch.Tensor


@register_model(
    "running-sum",
    summary="the sum of all rows so far",
    bench="running_sum:table",
    arguments={"input_width": 3, "num_classes": 2},
)
class RunningSum(nn.Module):
    delay, window = 0, 1

    def __init__(self, input_width, num_classes):
        super().__init__()
        self.head = nn.Linear(input_width, num_classes)

    def init_state(self, batch_size=1):
        return SumState(zeros(batch_size, self.head.in_features, like=self.head.weight))

    def warmup(self, state):
        return (False,) * state.batch_size

    def forward_step(self, x, state):
        state.total += x
        return OadOutput(self.head(state.total), None)

    def count_macs(self):
        return self.head.weight.numel()

    dense_macs = property(count_macs)


def table(model, rounds, threads):
    from costream.core.tables import Table
    return Table(model, ("rounds", "threads"), ((rounds, threads),))
"""
PROGRAM = """
import sys
import running_sum
from costream.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_names_are_read_without_an_import_and_agree_with_it() -> None:
    code = (
        "import sys; from costream.models.spec import *; import json\n"
        "print(json.dumps([architectures(), model_summaries(), model_benches(),"
        " [n for n in MODELS if is_gated(n)], 'torch' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = [name for name in MODELS if model_spec(name).architecture is None]
    gated = [name for name in own if model_spec(name).gated]
    assert json.loads(done.stdout) == [own, model_summaries(), model_benches(), gated, False]
    assert gated == ["vitdet", "vivit", "yolos", "rf-detr"]
    assert not is_gated("nothing")


def test_every_spec_names_what_exists() -> None:
    for name in MODELS:
        spec = model_spec(name)
        assert (spec.architecture or name) in architectures()
        assert isinstance(resolve_name(spec.model), type)
        assert (spec.summary is None) == (spec.listed == 99), name
    for function in model_benches().values():
        assert callable(resolve_name(function))
    assert {name for s in SIZES for name in (s.clip, s.continual)} <= set(MODELS)
    assert next(iter(model_summaries())) == "cooadtr"


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(TypeError, match="unknown fields: sumary"):
        register_model("x", sumary="a typing error")


@pytest.mark.long
@MODELS.temporarily()
def test_one_file_outside_adds_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "running_sum.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    network = import_module("running_sum").RunningSum(3, 2)

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"PYTHONPATH": f"{Path.cwd()}:{tmp_path}", "HOME": str(tmp_path)},
            check=True,
        )
        return done.stdout

    assert "running-sum" in [entry.name for entry in list_models()]
    assert "the sum of all rows so far" in run("models", "list", "--all", "--json")
    run("models", "init", "running-sum", "-o", "sum.safetensors")
    (table,) = json.loads(run("bench", "steps", "-m", "running-sum", "--rounds", "5", "--json"))
    assert table["rows"] == [{"rounds": 5, "threads": 1}]
    model = load_model(str(tmp_path / "sum.safetensors"))
    assert type(model.network) is type(network)
    state, row = model.init_state(), torch.tensor([1.0, -2.0, 0.5])
    for step in range(3):
        result = model.step([FeatureRow(step, step / 4, row.numpy())], state)
        expected = model.network.head((step + 1) * row).softmax(-1)
        assert torch.allclose(torch.from_numpy(result.probabilities[0]), expected, atol=1e-6)
