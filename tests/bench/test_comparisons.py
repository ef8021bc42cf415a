"""``costream bench objects`` and ``latency``: tables that compare with what others do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from costream.bench import latency
from costream.cli.bench import command
from costream.core.errors import UsageError
from costream.core.records import Data, SourceInfo, VideoFrame
from costream.models.base import ModelHead, ModelInfo, StepResult
from costream.models.build import save_model
from costream.models.images import Pixels
from costream.weights_io.card import Card
from kit.media import make_video
from kit.object_nets import ARGUMENTS, BOX, object_card, random_network, write_model
from kit.program import ROOT


def table(*arguments: Any) -> list[dict[str, Any]]:
    options = [*map(str, arguments), "--json"]
    (found,) = json.loads(CliRunner().invoke(command, options, catch_exceptions=False).stdout)
    return found["rows"]  # type: ignore[no-any-return]


class Brightness:
    """A model that labels bright frames "light", at once."""

    def __init__(self) -> None:
        card = Card("bright", "online action detection", "x", {}, ("dark", "light"), 10.0)
        self.info = ModelInfo(card, "", (ModelHead(card, "", slice(None)),), box=(96, 64))

    def check(self, source: SourceInfo) -> dict[str, Any]:
        return {}

    def init_state(self, batch_size: int = 1) -> None:
        return None

    def step(self, items: Sequence[Data], state: Any) -> StepResult:
        (frame,) = items
        assert isinstance(frame, VideoFrame)
        light = float(frame.rgb.mean() > 128)
        scores = np.array([[1 - light, light]], np.float32)
        return StepResult(scores, None, (False,), 1, 1, 0.0, 0.0)

    def steps(self, items: Sequence[Data], state: Any) -> list[StepResult]:
        return [self.step([item], state) for item in items]


def test_a_label_of_a_window_comes_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lit(k: int, size: tuple[int, int]) -> np.ndarray:
        return np.full((size[1], size[0], 3), 230 if 40 <= k < 80 else 20, np.uint8)

    film = make_video(tmp_path / "lamp.mp4", frames=120, rate=10, pattern=lit)
    labels = tmp_path / "lamp.csv"
    labels.write_text("start,end,label\n0,4,dark\n4,8,light\n8,12,dark\n")
    monkeypatch.setattr(latency, "load_model", lambda name, device: Brightness())
    step, window, short = table(
        *("latency", film, "--labels", labels, "--window", 4, "--stride", 4, "--stride", 1),
        *("--rounds", 1),
    )
    assert step["acts"] == window["acts"] == 3
    assert step["labelled"] == window["labelled"] == short["labelled"] == 1
    assert step["p90 s to label"] < 0.1
    assert step["right at the time"] == 1
    assert window["median s to label"] == pytest.approx(3.9, abs=0.05)
    assert short["median s to label"] == pytest.approx(0.9, abs=0.05)
    assert window["right at the time"] < 0.1  # each window ends as the next act begins
    assert short["right at the time"] == pytest.approx((120 - 3 * 9) / 120, abs=0.02)


def test_latency_needs_labels_of_the_model(tmp_path: Path) -> None:
    film = make_video(tmp_path / "a.mp4", frames=20)
    (tmp_path / "a.csv").write_text("start,end,label\n0,0.5,yodel\n")
    with pytest.raises(UsageError, match="no label is one of"):
        table("latency", film, "--labels", tmp_path / "a.csv", "-m", "cooadtr")
    with pytest.raises(UsageError, match="does not label a recording as a whole"):
        table("latency", film, "--labels", tmp_path / "a.csv", "-m", "nanodet")


def test_gates_of_all_tokens_are_the_network_in_full(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny.safetensors")
    film = make_video(tmp_path / "a.mp4", frames=20, size=(112, 80))
    full, gated = table("objects", film, "-m", model, "--tokens", "100%", "--rate", 10)
    assert full["operations"] == 1
    assert full["alike"] in (1, None)
    assert gated["alike"] == full["alike"]
    *_, part = table("objects", film, "-m", model, "--tokens", "20%", "--rate", 10)
    assert part["operations"] < 0.8
    done = CliRunner().invoke(command, ["objects", str(film), "--tokens", "0%"])
    assert (done.exit_code, "'0%' does not say which" in done.output) == (2, True)


def test_each_policy_of_a_detector_is_a_way(tmp_path: Path) -> None:
    gate = {**ARGUMENTS, "token_gate": [4, 2, 4]}
    card, network = object_card(arguments=gate), random_network(token_gate=[4, 2, 4])
    save_model(tmp_path / "learned.safetensors", card, network, Pixels(BOX))
    film = make_video(tmp_path / "a.mp4", frames=20, size=BOX)
    rows = table(
        *("objects", film, "-m", tmp_path / "learned.safetensors"),
        *("--tokens", "4,20%,>1", "--rate", 10),
    )
    assert [row["way"] for row in rows] == [
        *("in full", "gates, 4 tokens, learned", "gates, 4 tokens, by distance"),
        *("gates, 20% of the tokens, learned", "gates, 20% of the tokens, by distance"),
        "gates, tokens that have changed by >1",
    ]
    assert all(row["operations"] < 1 for row in rows[1:5])


@pytest.mark.slow
def test_ways_of_nanodet_agree() -> None:
    pytest.importorskip("onnxruntime")
    rows = table(
        *("objects", ROOT / "samples" / "room.mp4", "-m", "nanodet"),
        *("--duration", "1s", "--rate", 4),
    )
    full, places, looks, onnx = rows
    assert full["operations"] == full["alike"] == onnx["alike"] == 1
    assert onnx["operations"] == 1
    assert "ONNX Runtime" in onnx["way"]
    assert looks["operations"] == 0.25  # nothing moves: the first picture
    assert places["operations"] == 1  # of the first four pictures
    assert min(looks["alike"], places["alike"]) > 0.8


@pytest.mark.slow
def test_networks_of_joints_and_labels_are_compared_with_themselves_in_full() -> None:
    pytest.importorskip("onnxruntime")
    rows = table(
        *("objects", ROOT / "samples" / "room.mp4", "-m", "pose", "-m", "encoder", "-m", "cooadtr"),
        *("--duration", "6s", "--rate", 3),
    )
    ways = {name: [row for row in rows if row["network"] == name] for name in ("pose", "encoder")}
    ways["cooadtr"] = [row for row in rows if row["network"].startswith("cooadtr")]
    assert [len(found) for found in ways.values()] == [4, 4, 4]
    noises = [found.pop(2) for found in ways.values()]
    assert all("noise of 1" in noisy["way"] for noisy in noises)
    noisy = noises[0]
    assert 0.9 < noisy["near joints"] < 1
    assert noisy["operations"] == pytest.approx(1, abs=0.1)
    assert ways["pose"][0]["alike at 0.75"] == ways["pose"][0]["near joints"] == 1
    for full, changed, onnx in ways.values():
        assert full["operations"] == full["to full"] == full["alike"] == 1
        assert changed["operations"] < 0.9
        assert changed["alike"] > 0.8
        assert "ONNX Runtime" in onnx["way"]
        assert onnx["operations"] == pytest.approx(1, abs=0.02)
        assert onnx["alike"] > 0.95


def test_a_network_of_sound_is_refused() -> None:
    film = ROOT / "samples" / "room.mp4"
    with pytest.raises(UsageError, match="does not see pictures"):
        table("objects", film, "-m", "mn04")
