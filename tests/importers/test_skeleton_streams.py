"""Skeleton checkpoints through the program itself: one, and several streams as one model."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from costream.checkpoints.file import read_card, read_weights
from costream.errors import ModelError, UsageError
from costream.importers.run import import_files
from costream.models.build import build
from costream.models.verify import verify
from kit.foreign_skeletons import CHANNELS, JOINTS, Pyskl, StGcn
from kit.program import costream

WINDOW = 40


@pytest.fixture
def saved(tmp_path: Path) -> list[tuple[StGcn, Path]]:
    networks = [StGcn(), StGcn()]
    paths = [tmp_path / "joint.pt", tmp_path / "bone.pt"]
    for theirs, path in zip(networks, paths, strict=True):
        torch.save(theirs.w, path)
    return list(zip(networks, paths, strict=True))


def run(*args: object) -> subprocess.CompletedProcess[str]:
    return costream("models", "import", *args)


@torch.inference_mode()
def test_a_training_state_becomes_a_model_that_steps(
    saved: list[tuple[StGcn, Path]], tmp_path: Path
) -> None:
    theirs = saved[0][0]
    weights = {f"model.{name}": value for name, value in theirs.w.items()}
    torch.save({"epoch": 3, "state_dict": weights}, tmp_path / "stgcn.ckpt")
    config = ("--config", "stream=joint", "--config", f"window={WINDOW}")
    done = run(tmp_path / "stgcn.ckpt", "-o", tmp_path / "mine.safetensors", *config)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'mine.safetensors'}\n"), done.stderr
    assert "original ST-GCN" in done.stderr
    stored = read_weights(tmp_path / "mine.safetensors")
    network = build(stored.card, stored.tensors)[0].double().eval()
    clip = torch.randn(WINDOW, 2, JOINTS, CHANNELS, dtype=torch.float64)
    expected = theirs.classify(theirs.features(clip))
    torch.testing.assert_close(network(clip[None])[0], expected, rtol=1e-9, atol=1e-9)
    verify(tmp_path / "mine.safetensors")  # steps it with its frontend


@torch.inference_mode()
def test_two_streams_become_one_model(saved: list[tuple[StGcn, Path]], tmp_path: Path) -> None:
    (joint, one), (bone, two) = saved
    target = tmp_path / "both.safetensors"
    config = ("stream=joint,bone", "fusion=2,1", f"window={WINDOW}")
    done = run(one, two, "-o", target, *(part for pair in config for part in ("--config", pair)))
    assert done.returncode == 0, done.stderr
    card = read_card(target)
    assert (card.name, card.frontend_arguments["streams"]) == ("both", ["joint", "bone"])
    stored = read_weights(target)
    network: Any = build(stored.card, stored.tensors)[0].double().eval()
    clip = torch.randn(WINDOW, 2, JOINTS, 2 * CHANNELS, dtype=torch.float64)
    scores = [
        torch.softmax(theirs.classify(theirs.features(part)), -1)
        for theirs, part in zip((joint, bone), clip.split(CHANNELS, -1), strict=True)
    ]
    fused = torch.softmax(network(clip[None])[0], -1)
    expected = (2 * scores[0] + scores[1]) / 3
    torch.testing.assert_close(fused, expected, rtol=1e-9, atol=1e-9)
    verify(target)


def test_streams_must_go_together(saved: list[tuple[StGcn, Path]], tmp_path: Path) -> None:
    paths = [path for _, path in saved]
    with pytest.raises(UsageError, match="stream: 1 given for 2 checkpoints"):
        import_files(paths, "x", {"stream": "joint"})
    with pytest.raises(UsageError, match="fusion: 3 given for 2 checkpoints"):
        import_files(paths, "x", {"stream": "joint,bone", "fusion": "1,1,1"})
    with pytest.raises(ModelError, match="does not contain stream"):
        import_files(paths, "x", {})
    torch.save(Pyskl(plus=True).w, tmp_path / "other.pt")
    config = {"stream": "joint,bone", "rate_hz": "30"}
    with pytest.raises(ModelError, match=r"are not compatible: .*normalise \(kinetics and pyskl\)"):
        import_files([paths[0], tmp_path / "other.pt"], "x", config)
    with pytest.raises(ModelError, match=r"sliding: .* only run step by step"):
        import_files(paths, "x", {"stream": "joint,bone", "sliding": "30"})
    weights = dict(saved[1][0].w)
    del weights["fcn.bias"]
    torch.save(weights, paths[1])
    with pytest.raises(ModelError, match=r"bone\.pt: .*missing: fcn\.bias"):
        import_files(paths, "x", {"stream": "joint,bone"})


def test_several_checkpoints_need_a_name(saved: list[tuple[StGcn, Path]]) -> None:
    done = run(*(path for _, path in saved), "--config", "stream=joint,bone")
    assert (done.returncode, done.stdout) == (2, "")
    assert "give its --name" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_is_open_is_told_in_one_line(saved: list[tuple[StGcn, Path]], tmp_path: Path) -> None:
    done = run(saved[0][1], "-o", tmp_path / "x.safetensors")
    assert (done.returncode, done.stdout) == (5, "")
    assert "does not contain stream" in done.stderr
    assert "--config stream=" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "x.safetensors").exists()
