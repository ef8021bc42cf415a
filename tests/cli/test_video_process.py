"""``costream`` with continual 3D networks on video files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from costream.models.build import save_model
from costream.models.frontend import load_frontend
from costream.models.oad.cooadtr import CoOadTR
from costream.models.video.video3d.network import VideoNet, WindowVideoNet
from costream.weights_io.card import Card
from kit.paths import SAMPLES
from kit.runs import records, run
from kit.video_nets import KINDS

ROOM = SAMPLES / "room.mp4"
X3D = KINDS["x3d"]
NET = {"num_classes": 3, "kind": "x3d", "size": 32, **X3D}
OAD = {"input_width": 7, "num_classes": 3, "embed_dim": 8, "num_heads": 2, "feedforward": 8}


def write(path: Path, architecture: str) -> None:
    torch.manual_seed(0)
    front: dict[str, Any] = {"size": 32, "short_side": 36}
    frontend: nn.Module | None = None
    if architecture == "cox3d":
        arguments = {**NET, "pool": 3}
        network: nn.Module = VideoNet(**arguments)
    elif architecture == "x3d":
        arguments = {**NET, "window": 6, "hop": 2}
        network = WindowVideoNet(**arguments)
    else:
        arguments = {**OAD, "window": 4}
        network, front = CoOadTR(**arguments), {**front, **X3D, "pool": 2}
        frontend = load_frontend("cox3d", **front)
    card = Card(
        name="tiny",
        task="action recognition",
        architecture=architecture,
        arguments=arguments,
        labels=("walk", "run", "jump"),
        rate_hz=5.0,
        frontend="crop" if frontend is None else "cox3d",
        frontend_arguments=front,
    )
    save_model(path, card, network, frontend)


# delay: of the stem 2, of five blocks 1 each, of the mean 2
@pytest.mark.parametrize(
    ("architecture", "first", "every"), [("cox3d", 9, 1), ("cooadtr", 0, 1), ("x3d", 0, 2)]
)
def test_from_pixel_to_label(tmp_path: Path, architecture: str, first: int, every: int) -> None:
    weights = tmp_path / "tiny.safetensors"
    write(weights, architecture)
    done = run("detect", ROOM, "-m", weights, "--duration", "4", "-o", "-", "-f", "jsonl")
    header, *lines, summary = records(done.stdout)
    steps = [r["i"] for r in lines if r["type"] == "prediction"]
    assert steps == list(range(first, 20, every))
    assert header["rate_hz"] == 5.0
    assert summary["complete"]
    assert summary["macs"] <= summary["dense_macs"]
