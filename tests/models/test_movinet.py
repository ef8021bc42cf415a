"""MoViNet-Stream: every output of a stream is that of the published computation over the clip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from costream.core.label_sets import KINETICS600
from costream.models.build import build, save_model
from costream.models.importing import import_files
from costream.models.random_init import random_model
from costream.models.video.movinet import importer
from costream.models.video.movinet.frontend import MoViNetFeatures
from costream.models.video.movinet.network import SIZES, MoViNet, crop_arguments
from costream.weights_io.tensor_rules import BATCH_NORM
from kit.movinet_clip import CROP, SMALL, checkpoint, whole_clip
from kit.paths import ROOT
from kit.runs import records, run


def imported(
    path: Path, sizes: dict[str, Any], classes: int, **config: str
) -> tuple[MoViNet, dict[str, Tensor]]:
    """Return the network of a random checkpoint of these sizes, and its tensors, in float64."""
    tensors = checkpoint(sizes, classes)
    torch.save(tensors, path)
    card, given = import_files([path], "test", config)
    assert (card.rate_hz, card.frontend) == (5.0, "crop")
    assert card.frontend_arguments == crop_arguments(sizes["size"])
    network: Any = build(card, given)[0].eval().double()
    return network, {k: v.double() for k, v in tensors.items()}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "SIZES", {"small": SMALL})


@pytest.mark.long
@torch.no_grad()
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("window", [200, 50])
def test_every_output_is_that_of_the_whole_clip(window: int, tmp_path: Path) -> None:
    net, tensors = imported(tmp_path / "x", SMALL, 5, window=str(window))
    clips = torch.rand(2 if window == 50 else 1, 200, 3, 44, 44, dtype=torch.float64)
    expected = torch.stack([whole_clip(tensors, SMALL, clip, window) for clip in clips])
    state = net.init_state(len(clips))
    first = [net.forward_step(clips[:, k], state).logits for k in range(60)]
    rest = [net.forward_steps(part, state).logits for part in clips[:, 60:].split([1, 40, 99], 1)]
    given = torch.cat([torch.stack(first, 1), *rest], 1)
    # The weights are folded in float32: what is left is their rounding.
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4)
    exact = folded_exactly(net, tensors)
    torch.testing.assert_close(exact(clips), expected, rtol=1e-9, atol=1e-9)


def folded_exactly(net: MoViNet, tensors: dict[str, Tensor]) -> MoViNet:
    """Return the network with the weights of a checkpoint, folded in float64."""
    parts = dict(net.named_modules())
    names = {"stem": "conv1.conv_1", "head": "conv7.conv_1"}
    theirs = sorted({".".join(name.split(".")[:2]) for name in tensors if "blocks" in name})
    for k, name in enumerate(theirs):
        for ours, their in importer._CONVOLUTIONS.items():
            if f"{name}.{their}.norm.bias" in tensors:
                names[f"blocks.{k}.{ours}"] = f"{name}.{their}"
    for ours, their in names.items():
        norm = {end: tensors[f"{their}.norm.{end}"] for end in BATCH_NORM}
        scale = norm["weight"] / (norm["running_var"] + 1e-3).sqrt()
        bias = norm["bias"] - norm["running_mean"] * scale
        if ours.endswith("project"):
            alpha = tensors[f"{their.removesuffix('project.conv_1')}alpha"]
            scale, bias = scale * alpha, bias * alpha
        weight, target = tensors[f"{their}.conv2d.weight"], parts[ours]
        target.weight.copy_((weight * scale[:, None, None, None]).view_as(target.weight))  # type: ignore[operator, union-attr]
        target.bias.copy_(bias)  # type: ignore[operator, union-attr]
    return net


@torch.no_grad()
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n != "movinet-a0")) for n in SIZES]
)
def test_the_published_sizes_are_those_of_the_paper(name: str, tmp_path: Path) -> None:
    sizes = SIZES[name]
    net, tensors = imported(tmp_path / "x", sizes, 600)
    clip = torch.rand(4, 3, sizes["size"], sizes["size"], dtype=torch.float64)
    expected = whole_clip(tensors, sizes, clip, 50)
    folded_exactly(net, tensors)
    torch.testing.assert_close(net(clip[None])[0], expected, rtol=1e-9, atol=1e-9)
    whole = MoViNet(600, **sizes)
    macs, weights = whole.count_macs() / 1e6, sum(p.numel() for p in whole.parameters()) / 1e6
    published = {"movinet-a0": (51, 3.7), "movinet-a1": (113, 6.4), "movinet-a2": (217, 7.3)}
    assert (macs, weights) == (
        pytest.approx(published[name][0], abs=0.6),
        pytest.approx(published[name][1], abs=0.05),
    )


@pytest.mark.long
@torch.no_grad()
@pytest.mark.parametrize("name", SIZES)
def test_two_hundred_frames_of_every_published_size(name: str, tmp_path: Path) -> None:
    sizes = SIZES[name]
    net, tensors = imported(tmp_path / "x", sizes, 600)
    clip = torch.rand(200, 3, sizes["size"], sizes["size"], dtype=torch.float64)
    folded_exactly(net, tensors)
    state = net.init_state()
    given = torch.stack([net.forward_step(frame[None], state).logits[0] for frame in clip])
    expected = whole_clip(tensors, sizes, clip, 50)
    torch.testing.assert_close(given, expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_its_trunk_serves_as_a_frontend(tmp_path: Path) -> None:
    card, net, front = random_model("movinet", "m", {**SMALL, **CROP, "num_classes": 3})
    save_model(tmp_path / "m.safetensors", card, net, front)
    weights = str(tmp_path / "m.safetensors")
    made, _, trunk = random_model("cooadtr", "c", {"window": 8}, weights)
    assert (made.frontend, made.rate_hz, made.arguments["input_width"]) == ("movinet", 5.0, 10)
    assert isinstance(net, MoViNet)
    assert isinstance(trunk, MoViNetFeatures)
    clip = torch.randint(0, 256, (1, 7, 3, 44, 44), dtype=torch.uint8)
    rows = net.eval().features(clip / 255, net.init_state())
    torch.testing.assert_close(trunk.eval()(clip), rows)


def test_labels_are_those_of_kinetics_600() -> None:
    names = KINETICS600.names
    assert (len(names), len(set(names))) == (600, 600)
    assert (names[0], names[465]) == ("abseiling", "skiing crosscountry")
    assert [n.lower() for n in names] == sorted(n.lower() for n in names)


def test_a_video_is_watched_from_the_command_line(tmp_path: Path) -> None:
    card, net, front = random_model(
        "movinet", "m", {**SMALL, **CROP, "num_classes": 3, "window": 4}
    )
    save_model(tmp_path / "m.safetensors", card, net, front)
    video, weights = ROOT / "samples" / "room.mp4", tmp_path / "m.safetensors"
    run("detect", video, "-m", weights, "--end", 4, "-o", tmp_path, "-f", "jsonl")
    steps = records(tmp_path / "room.mp4.jsonl", "prediction")
    assert [step["warmup"] for step in steps] == [True] * 3 + [False] * 17
