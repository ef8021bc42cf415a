"""Skeleton checkpoints of every dialect, and several as one model, against their arithmetic."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
from torch import Tensor

from costream.core.errors import ModelError, UsageError
from costream.models.build import build
from costream.models.importing import import_files
from costream.models.verify import verify
from costream.weights_io.file import read_card, read_weights
from kit.foreign_skeletons import (
    CHANNELS,
    CLASSES,
    JOINTS,
    STRIDES,
    WIDTHS,
    ContinualSkeletons,
    Pyskl,
    StGcn,
)
from kit.program import costream

WINDOW = 40
CONFIG: dict[str, Any] = {"stream": "joint", "window": WINDOW}
PYSKL = {**CONFIG, "rate_hz": 30}
SHARED = {
    "st-gcn": (StGcn, CONFIG),
    "pyskl": (lambda: Pyskl(plus=False), PYSKL),
    "pyskl++": (lambda: Pyskl(plus=True), PYSKL),
}
Load = Callable[..., Any]


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dialect", SHARED)
@torch.inference_mode()
def test_a_clip_gives_what_the_dialect_gives(load: Load, dialect: str) -> None:
    make, config = SHARED[dialect]
    theirs = make()
    card, network = load(theirs.w, **config)
    clip = torch.randn(WINDOW, 2, JOINTS, CHANNELS, dtype=torch.float64)
    expected = theirs.classify(theirs.features(clip))
    close(network.double()(clip[None])[0], expected)
    single = network.float()(clip[None].float())[0]
    torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=1e-5)
    assert card.architecture == "costgcn"
    assert (card.arguments["widths"], card.arguments["strides"]) == (list(WIDTHS), list(STRIDES))


@pytest.mark.parametrize("dialect", SHARED)
@torch.inference_mode()
def test_a_stream_gives_the_mean_of_the_dialects_features(load: Load, dialect: str) -> None:
    make, config = SHARED[dialect]
    theirs = make()
    _, network = load(theirs.w, **config)
    network.double()
    clip = torch.randn(3 * WINDOW, 2, JOINTS, CHANNELS, dtype=torch.float64)
    features = theirs.features(clip)
    state, outputs = network.init_state(1), {}
    for t in range(len(clip)):
        out = network.forward_step(clip[t : t + 1], state)
        if out is not None:
            outputs[t] = out.logits[0]
    # Feature n is centred on frame 2 n. It exists in the stream when the last frame it has seen,
    # 4 frames later in each of three blocks and 8 in the last, has arrived.
    delay, pool = 4 + 4 + 4 + 8, WINDOW // 2
    newest = [t for t in outputs if (t - delay) // 2 >= pool]
    assert len(newest) >= 20
    for t in newest:
        n = (t - delay) // 2
        assert (t - delay) % 2 == 0
        close(outputs[t], theirs.classify(features[:, :, n - pool + 1 : n + 1]))


@pytest.mark.parametrize("continual", [False, True])
@pytest.mark.parametrize("padding", ["same", "none"])
@pytest.mark.parametrize("attention", [False, True])
@torch.inference_mode()
def test_continual_skeletons_regular_and_continual_names(
    load: Load, attention: bool, padding: str, continual: bool
) -> None:
    theirs = ContinualSkeletons(attention)
    window = 60
    config = {"layout": "ntu-25", "stream": "joint", "window": window, "padding": padding}
    weights = theirs.continual() if continual else theirs.w
    assert ("layers.layer2.0.1.gcn.A" in weights) == continual
    card, network = load(weights, **config)
    clip = torch.randn(window, 2, 25, CHANNELS, dtype=torch.float64)
    close(network.double()(clip[None])[0], theirs.run(clip, padding))
    assert card.architecture == ("costr" if attention else "costgcn")
    if padding == "none":
        assert card.delay_s == pytest.approx((window - 1) / 2 / 30)
        # A stream sees no padding: the newest output is that of the clip.
        state = network.init_state(1)
        outs = [network.forward_step(frame[None], state) for frame in clip]
        assert [out is not None for out in outs] == [False] * (window - 1) + [True]
        close(outs[-1].logits[0], theirs.run(clip, padding))


def test_the_card_says_how_skeletons_are_prepared(load: Load) -> None:
    card, _ = load(StGcn().w, **{**CONFIG, "stream": "bone"})
    assert (card.task, card.frontend) == ("skeleton action recognition", "joints")
    assert card.frontend_arguments == {
        "layout": "openpose-18",
        "axes": 2,
        "persons": 2,
        "streams": ["bone"],
        "normalise": "kinetics",
        "missing": "zero",
        "score": "difference",
        "min_score": 0.0,
    }
    assert card.labels == tuple(f"class {k}" for k in range(CLASSES))
    assert (card.rate_hz, card.background) == (30.0, None)
    # The last block's features are 20 steps old, and 20 of them, 2 steps apart, are averaged.
    assert card.delay_s == pytest.approx((20 + 19) / 30)

    ntu = ContinualSkeletons(attention=False).w
    card, _ = load(ntu, layout="ntu-25", stream="joint", padding="same")
    assert card.frontend_arguments["normalise"] == "ntu"
    assert (card.frontend_arguments["axes"], card.frontend_arguments["score"]) == (3, None)
    assert card.limits == "Trained on whole clips, not on streams."
    card, _ = load(Pyskl(plus=True).w, **PYSKL)
    assert "resampled to 100 frames" in card.limits
    assert card.frontend_arguments["normalise"] == "pyskl"
    assert card.frontend_arguments["score"] == "mean"


def test_layouts_may_be_declared_in_a_file(load: Load, tmp_path: Any) -> None:
    joints = [f"joint {k}" for k in range(JOINTS)]
    bones = [[a, b] for a, b in pairwise(joints)]
    file = tmp_path / "chain.toml"
    file.write_text(f'name = "chain"\njoints = {joints}\nbones = {bones}\n', encoding="utf-8")
    config = {**CONFIG, "layout": file, "axes": 3, "normalise": "none"}
    card, _ = load(StGcn().w, **config)
    assert (card.arguments["bones"][0], card.arguments["centre"]) == ([0, 1], JOINTS - 1)
    assert card.frontend_arguments["layout"] == str(file)
    assert card.frontend_arguments["normalise"] == "none"


def test_labels_come_from_a_file(load: Load, tmp_path: Any) -> None:
    (tmp_path / "labels.txt").write_text("\n".join("abcdefg"), encoding="utf-8")
    card, _ = load(StGcn().w, **CONFIG, labels=tmp_path / "labels.txt")
    assert card.labels == tuple("abcdefg")
    (tmp_path / "labels.txt").write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(ModelError, match="2 names, the checkpoint 7 classes"):
        load(StGcn().w, **CONFIG, labels=tmp_path / "labels.txt")


def test_25_joints_are_of_two_layouts(load: Load) -> None:
    weights = ContinualSkeletons(attention=False).w
    config = {"stream": "joint", "padding": "same"}
    with pytest.raises(ModelError, match="layout=coco-17 has 17 joints, the checkpoint 25"):
        load(weights, **config, layout="coco-17")
    with pytest.raises(UsageError, match="ntu-25"):
        load(weights, **config, layout="ntu25")


def test_contradictions_are_errors(load: Load) -> None:
    weights = ContinualSkeletons(attention=False).w
    with pytest.raises(ModelError, match=r"persons=1 contradicts .* tensors say 2"):
        load(weights, layout="ntu-25", stream="joint", padding="same", persons=1)
    with pytest.raises(ModelError, match="takes 3 values per joint, which is not 1 axes"):
        load(StGcn().w, **CONFIG, axes=1)
    with pytest.raises(UsageError, match="stream=joints: not joint, bone"):
        load(StGcn().w, stream="joints")
    with pytest.raises(UsageError, match="padding=valid: not same or none"):
        load(StGcn().w, **CONFIG, padding="valid")
    with pytest.raises(ModelError, match="stream=joint,bone: a checkpoint has a single stream"):
        load(StGcn().w, stream="joint,bone")


def test_a_block_that_is_not_there_is_named(load: Load) -> None:
    weights = {k: v for k, v in StGcn().w.items() if not k.startswith("st_gcn_networks.2.")}
    with pytest.raises(ModelError, match=r"left over: .*st_gcn_networks\.3\."):
        load(weights, **CONFIG)


def test_counters_of_batches_may_be_lacking(load: Load) -> None:
    weights = StGcn().w
    old = {k: v for k, v in weights.items() if not k.endswith("num_batches_tracked")}
    clip = torch.randn(1, WINDOW, 2, JOINTS, CHANNELS)
    with torch.inference_mode():
        outputs = [load(w, **CONFIG)[1](clip) for w in (weights, old)]
    assert torch.equal(*outputs)


def test_mmaction2_names_the_classifier_otherwise(load: Load) -> None:
    theirs = Pyskl(plus=False)
    weights = {name.replace(".fc_cls.", ".fc."): value for name, value in theirs.w.items()}
    clip = torch.randn(WINDOW, 2, JOINTS, CHANNELS, dtype=torch.float64)
    with torch.inference_mode():
        network = load(weights, **PYSKL)[1].double()
        close(network(clip[None])[0], theirs.classify(theirs.features(clip)))


@pytest.fixture
def saved(tmp_path: Path) -> list[tuple[StGcn, Path]]:
    networks = [StGcn(), StGcn()]
    paths = [tmp_path / "joint.pt", tmp_path / "bone.pt"]
    for theirs, path in zip(networks, paths, strict=True):
        torch.save(theirs.w, path)
    return list(zip(networks, paths, strict=True))


def run(*args: object) -> CompletedProcess[str]:
    """Import files with the program itself."""
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
    config = ("fusion=2,1", f"window={WINDOW}")
    done = run(one, two, "-o", target, *(part for pair in config for part in ("--config", pair)))
    assert done.returncode == 0, done.stderr
    assert "took stream=joint,bone from the name of the file" in done.stderr
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
    shutil.copy(paths[1], tmp_path / "unnamed.pt")
    with pytest.raises(ModelError, match="does not contain stream"):
        import_files([paths[0], tmp_path / "unnamed.pt"], "x", {})
    torch.save(Pyskl(plus=True).w, tmp_path / "other.pt")
    config = {"stream": "joint,bone"}
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
    assert "name it with --name" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_is_open_is_reported_in_one_line(
    saved: list[tuple[StGcn, Path]], tmp_path: Path
) -> None:
    shutil.copy(saved[0][1], tmp_path / "unnamed.pt")
    done = run(tmp_path / "unnamed.pt", "-o", tmp_path / "x.safetensors")
    assert (done.returncode, done.stdout) == (5, "")
    assert "does not contain stream" in done.stderr
    assert "--config stream=" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "x.safetensors").exists()
