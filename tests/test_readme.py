"""What the README says is so."""

from __future__ import annotations

import re
from typing import Any

import pytest

from costream.checkpoints.file import read_card
from costream.errors import ExitCode
from costream.sinks.registry import FORMATS
from kit.program import ROOT, python

README = (ROOT / "README.md").read_text("utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_python_examples_run(tmp_path, code):
    code = code.replace("samples/", f"{ROOT.as_posix()}/samples/")
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_there_are_python_examples():
    assert len(PYTHON) == 2


def test_every_exit_code_is_documented():
    section = README.split("### Exit codes")[1].split("\n#")[0]
    numbers = {int(n) for line in section.splitlines() for n in re.findall(r"\d+", line[:12])}
    assert numbers == {int(code) for code in ExitCode}


def test_every_format_is_documented():
    for name in FORMATS:
        assert f"`{name}`" in README


def test_every_option_that_is_shown_exists():
    from costream.cli.detect import command

    options = {name for p in command.params for name in [*p.opts, *p.secondary_opts]}
    shown = set()
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL):
        for line in block.splitlines():
            if "costream detect" in line:
                call = line.split("costream detect", 1)[1].split("#  ")[0].split("|")[0]
                shown |= set(re.findall(r"(?<=\s)--?[a-z][a-z-]*", call))
    assert shown
    assert shown <= options


def test_files_and_folders_that_are_named_exist():
    for name in re.findall(r"samples/[\w.]+", README):
        assert (ROOT / name).exists()


def shown(name: str, held_out: str, score: str, rows: dict[str, Any]) -> str:
    """A row of the README's table: the shipped weights beside simpler methods."""
    single = [m for m in rows if m.startswith(("per-frame", "linear"))]
    assert len(single) == 1
    models = (name, *single, "tree ensemble", "majority")
    numbers = " | ".join(f"{rows[m][score]:.3f}" for m in models)
    return f"| `{name}` | {held_out} | {score.replace('top1', 'top-1')} | {numbers} |"


@pytest.mark.parametrize("name", ["cooadtr", "cooadtr-b2", "oadtr"])
def test_scores_of_video_are_those_of_the_card(name: str) -> None:
    rows = read_card(ROOT / "weights" / f"{name}.safetensors").metrics["test"]
    held_out = f"fir_action, {rows[name]['videos']} videos, six actions"
    assert shown(name, held_out, "mAP", rows) in README


@pytest.mark.parametrize(("name", "parts"), [("costgcn", 3), ("cosounds", 2), ("cotrans", 2)])
def test_scores_of_clips_are_those_of_the_card(name: str, parts: int) -> None:
    metrics = read_card(ROOT / "weights" / f"{name}.safetensors").metrics
    assert len(metrics) == parts
    for part, rows in metrics.items():
        assert shown(name, f"{part} ({rows[name]['sequences']} clips)", "top1", rows) in README


def test_the_shipped_model_is_better_than_its_baselines():
    metrics = read_card(ROOT / "weights" / "cooadtr.safetensors").metrics["test"]
    for score in ("mAP", "mAP_1s", "accuracy", "accuracy_1s", "balanced_accuracy"):
        for baseline in ("per-frame classifier", "tree ensemble", "majority"):
            assert metrics["cooadtr"][score] > metrics[baseline][score]
