"""Weight files of every skeleton architecture, written and read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from costream.checkpoints.card import Card
from costream.checkpoints.file import read_weights
from costream.models.build import build, save_model
from costream.models.skeleton.ensemble import SkeletonEnsemble
from costream.models.skeleton.network import SkeletonNet
from costream.models.skeleton.window import WindowSkeletonNet
from kit.skeleton_nets import BONES, FORMS, SIZES, randomise

MEMBER = {"num_classes": 3, "joints": 5, "bones": BONES, "channels": 2, **SIZES}
CASES = {
    "costgcn": (SkeletonNet, MEMBER),
    "coagcn": (SkeletonNet, {**MEMBER, "kind": "agcn"}),
    "costr": (SkeletonNet, {**MEMBER, **FORMS["str"]}),
    "stgcn": (WindowSkeletonNet, {**MEMBER, "window": 20}),
    "agcn": (WindowSkeletonNet, {**MEMBER, "kind": "agcn", "attention": "clip", "hop": 2}),
    "str": (WindowSkeletonNet, {**MEMBER, **FORMS["str"], "window": 20}),
    "skeleton-ensemble": (
        SkeletonEnsemble,
        {"members": [MEMBER, MEMBER], "channels": [[0, 1], [0, 1]], "weights": [2, 1]},
    ),
}


@pytest.mark.parametrize("architecture", CASES)
def test_a_weight_file_gives_the_network_back(architecture: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    kind, arguments = CASES[architecture]
    network = kind(**arguments).eval()
    with torch.no_grad():
        randomise(network)
    labels = ("wave", "walk", "other")
    card = Card("x", "skeleton actions", architecture, arguments, labels, 30.0)
    save_model(tmp_path / "x.safetensors", card, network)
    stored = read_weights(tmp_path / "x.safetensors")
    again, _ = build(stored.card, stored.tensors)
    assert type(again) is kind
    x, runs = torch.randn(40, 1, 2, 5, 2), []
    for net in (network, again.eval()):
        state = net.init_state(1)
        given = [net.forward_step(frame, state) for frame in x]
        runs.append([None if out is None else out.logits.tolist() for out in given])
    assert runs[0] == runs[1]
    assert any(run is not None for run in runs[0])
