"""TSN checkpoints of MMAction2 on random weights, against their arithmetic written out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.models.build import build
from costream.models.importing import import_files
from kit.foreign_actions import MiniRoadModules
from kit.tsn_nets import SIZES, WIDTH, checkpoint, features

CHANNELS = {"rgb": 3, "flow": 10}


def write(folder: Path, **changes: Tensor | None) -> dict[str, Path]:
    """Write the checkpoints of both streams, as a trainer does."""
    paths = {}
    for stream, channels in CHANNELS.items():
        state = {**checkpoint(channels, channels), **changes}
        state = {name: value for name, value in state.items() if value is not None}
        paths[stream] = folder / f"tsn_r50_{stream}.pth"
        torch.save({"meta": {"epoch": 9}, "state_dict": state}, paths[stream])
    return paths


@pytest.mark.parametrize("streams", [["rgb"], ["flow"], ["flow", "rgb"]])
@torch.no_grad()
def test_features_are_those_of_the_checkpoints(tmp_path: Path, streams: list[str]) -> None:
    paths = write(tmp_path)
    card, tensors = import_files([paths[s] for s in streams], "tsn", {})
    order = [s for s in CHANNELS if s in streams]
    assert (card.architecture, card.labels, card.rate_hz) == ("features", (), 4.0)
    assert card.frontend_arguments == {"streams": order, **SIZES}
    assert card.arguments == {"embed_dim": WIDTH * len(order)}
    _, frontend = build(card, tensors)
    x = torch.randn(2, sum(CHANNELS[s] for s in order), 32, 32)
    expected, at = [], 0
    for s in order:
        part = x[:, at : at + CHANNELS[s]]
        expected.append(features(checkpoint(CHANNELS[s], CHANNELS[s]), part))
        at += CHANNELS[s]
    assert frontend is not None
    frontend.eval()
    given = x * frontend.deviation + frontend.mean
    torch.testing.assert_close(frontend(given), torch.cat(expected, 1), rtol=1e-4, atol=1e-4)


def test_in_front_of_a_network(tmp_path: Path) -> None:
    paths = write(tmp_path)
    state = MiniRoadModules(inputs=2 * WIDTH).state_dict()
    torch.save(state, tmp_path / "best.pth")
    files = [tmp_path / "best.pth", paths["flow"], paths["rgb"]]
    card, tensors = import_files(files, "miniroad", {"labels": "thumos14"})
    assert (card.architecture, card.frontend, card.rate_hz) == ("miniroad", "tsn", 4.0)
    assert card.description.endswith("MiniROAD; TSN of MMAction2 (rgb and flow).")
    build(card, tensors)
    with pytest.raises(ModelError, match="takes 64 features, but TSN has 32"):
        import_files(files[:2], "miniroad", {"labels": "thumos14"})


def test_mismatches_are_refused(tmp_path: Path) -> None:
    paths = write(tmp_path)
    with pytest.raises(ModelError, match="two checkpoints of rgb"):
        import_files([paths["rgb"], paths["rgb"]], "x", {})
    changes: list[tuple[dict[str, Tensor | None], str]] = [
        ({"backbone.conv1.conv.weight": torch.zeros(4, 5, 7, 7)}, "5 channels; rgb has 3"),
        ({"backbone.layer2.0.conv2.bn.bias": None}, r"missing: backbone\.layer2\.0\.conv2\.bn"),
        ({"backbone.layer3.0.extra": torch.zeros(3)}, "missing: backbone.layer3"),
    ]
    for change, message in changes:
        with pytest.raises(ModelError, match=message):
            import_files([write(tmp_path, **change)["rgb"]], "x", {})
