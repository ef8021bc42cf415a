"""A model in one file of a package folder: listed, imported, verified, run and timed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kit.paths import ROOT

# Network, frontend, importer, line in the list of models and benchmark.
MODEL = '''
"""Means of the colours of pictures."""

from dataclasses import dataclass

import torch
from torch import nn

from costream.core.tables import Table
from costream.models.frontend import frontend
from costream.models.oad.cooadtr import OadOutput
from costream.models.spec import register_model
from costream.nn.state import State, zeros
from costream.weights_io.importer import has_tensors, importer
from costream.weights_io.tensor_rules import ImportedNetwork, apply, linear, shape_of


@frontend("mean-colour")
class MeanColour(nn.Module):
    takes, token_width, box = "video", 3, (16, 12)

    def prepare(self, rgb):
        return rgb.transpose(2, 0, 1).copy()

    def init_state(self, batch_size=1):
        return None

    def forward_step(self, x, state):
        return x.float().mean((-2, -1))

    def count_macs(self):
        return 0


@dataclass
class ColourState(State):
    total: torch.Tensor


@register_model(
    "colours",
    summary="colours of pictures so far",
    bench="costream.models.colours:steps_table",
    arguments={"input_width": 3, "num_classes": 2},
    frontend="mean-colour",
)
class Colours(nn.Module):
    delay, window = 0, 1

    def __init__(self, input_width, num_classes):
        super().__init__()
        self.head = nn.Linear(input_width, num_classes)

    def init_state(self, batch_size=1):
        return ColourState(zeros(batch_size, self.head.in_features, like=self.head.weight))

    def warmup(self, state):
        return (False,) * state.batch_size

    def forward_step(self, x, state):
        state.total += x / 255
        return OadOutput(self.head(state.total), None)

    def count_macs(self):
        return self.head.weight.numel()

    dense_macs = property(count_macs)


@importer(
    "colour-zoo",
    summary="colours of a zoo",
    detect=has_tensors("zoo.weight"),
    keys=("num_classes",),
)
def convert(foreign, settings):
    classes, width = shape_of(foreign.tensors, "zoo.weight", 2)
    sizes = {"input_width": width, "num_classes": settings.check("num_classes", classes)}
    tensors = apply(linear("head", "zoo", classes, width), foreign.tensors)
    return ImportedNetwork("colours", sizes, tensors, classes, frontend="mean-colour", rate_hz=5.0)


def steps_table(model, rounds, threads):
    return Table(model, ("rounds", "threads"), ((rounds, threads),))
'''
# As if the file lay in the package: its folder is one more part of ``costream.models``.
PROGRAM = """
import sys
import costream.models
costream.models.__path__.append(sys.argv[1])
from costream.__main__ import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.long
def test_one_file_in_the_folder_of_models_adds_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "colours.py").write_text(MODEL)
    weight, bias = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), torch.zeros(2)
    torch.save({"zoo.weight": weight, "zoo.bias": bias}, tmp_path / "zoo.pth")

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(folder), *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "colours of pictures so far" in run("models", "list", "--all", "--json")
    run("models", "import", "zoo.pth", "--name", "zoo")
    run("models", "verify", "zoo")
    lines = run(
        "detect", str(ROOT / "samples" / "room.mp4"), "-m", "zoo", "--end", "2", "-f", "jsonl"
    )
    records = [json.loads(line) for line in lines.splitlines()]
    assert records[0]["labels"] == ["class 0", "class 1"]
    assert sum(record["type"] == "prediction" for record in records) == 10
    run("models", "init", "colours", "-o", "new.safetensors")
    (table,) = json.loads(run("bench", "steps", "-m", "colours", "--rounds", "5", "--json"))
    assert table["rows"] == [{"rounds": 5, "threads": 1}]
