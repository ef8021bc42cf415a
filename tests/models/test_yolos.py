"""YOLOS: the dense arithmetic of the package transformers, and gates that pass some patches."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from costream.models.build import build, save_model
from costream.models.eventful import yolos as importer
from costream.models.eventful.yolos import COCO_CATEGORIES, SIZES, Yolos
from costream.models.images import Resized
from costream.models.importing import import_files
from costream.models.random_init import random_model
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import TopTokens
from kit.foreign_eventful import YOLOS_TABLE, yolos
from kit.paths import ROOT
from kit.runs import records, run

pytestmark = pytest.mark.usefixtures("no_grad", "small_tables")


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = YOLOS_TABLE[0] * YOLOS_TABLE[1]
    monkeypatch.setattr(importer, "TABLES", {rows: YOLOS_TABLE})


def imported(tensors: dict[str, Tensor], path: Path) -> Yolos:
    torch.save(tensors, path)
    card, given = import_files([path], "yolos", {})
    assert (card.labels[0], card.labels[-1], len(card.labels)) == ("person", "toothbrush", 80)
    network: Any = build(card, given)[0].eval()
    return network


def dense(net: Yolos, pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits and boxes of pictures, computed in full."""
    tokens = net.embed(pictures)
    state = net.init_state(len(pictures), *pictures.shape[2:])
    return net.predict(net.view_step(tokens, state, TopTokens(0), Operations()))


@pytest.mark.parametrize("middle", [False, True])
def test_it_is_the_network_of_transformers(middle: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.YolosConfig(
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=512,
        image_size=[16 * side for side in YOLOS_TABLE],
        patch_size=16,
        num_detection_tokens=6,
        num_labels=91,
        use_mid_position_embeddings=middle,
        layer_norm_eps=1e-6,
    )
    theirs = transformers.YolosForObjectDetection(config).eval()
    for parameter in theirs.parameters():
        parameter.add_(torch.randn_like(parameter) / 8)
    net = imported(theirs.state_dict(), tmp_path / "yolos.pth")
    for height, width in ((48, 80), (64, 96), (112, 32)):
        pictures = torch.randn(2, 3, height, width)
        expected = theirs(pixel_values=pictures)
        logits, boxes = dense(net, pictures)
        torch.testing.assert_close(logits, expected.logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(boxes, expected.pred_boxes, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("middle", [False, True])
def test_with_all_tokens_a_frame_is_that_frame_alone(middle: bool, tmp_path: Path) -> None:
    net = imported(yolos(middle), tmp_path / "yolos.pth").double()
    pictures = torch.randn(5, 1, 3, 64, 96, dtype=torch.float64)
    state = net.init_state(1, 64, 96)
    for picture in pictures:
        tokens = net.embed(picture)
        view = net.view_step(tokens, state, TopTokens(24), Operations())
        for given, expected in zip(net.predict(view), dense(net, picture), strict=True):
            torch.testing.assert_close(given, expected)
    (found,), (again,) = net(pictures[-1]), net.detect(view, (64, 96))
    for given, expected in zip(found, again, strict=True):
        torch.testing.assert_close(given, expected)


@pytest.mark.usefixtures("small_updates")
def test_a_patch_that_changes_is_seen_and_the_rest_is_not_computed(tmp_path: Path) -> None:
    net = imported(yolos(), tmp_path / "yolos.pth").double()
    one = torch.randn(1, 3, 160, 160, dtype=torch.float64)
    other, state = one.clone(), net.init_state(1, 160, 160)
    other[:, :, 32:48, 48:64] += 1.0
    net.view_step(net.embed(one), state, TopTokens(4), Operations())
    for _ in range(40):  # what the patch changes in the others passes in turn
        counted = Operations()
        view = net.view_step(net.embed(other), state, TopTokens(8), counted)
    for given, expected in zip(net.predict(view), dense(net, other), strict=True):
        torch.testing.assert_close(given, expected, rtol=1e-6, atol=1e-6)
    assert counted.total < 0.5 * net.count_macs(10, 10)


@pytest.mark.parametrize("updated", [None, 7, 24])
def test_a_step_costs_what_the_card_says(updated: int | None, tmp_path: Path) -> None:
    net = imported(yolos(), tmp_path / "yolos.pth")
    state, count = net.init_state(1, 64, 96), 24 if updated is None else updated
    frames = torch.randn(1 if updated is None else 2, 1, 3, 64, 96)
    for frame in frames:
        counted = Operations()
        net.view_step(net.embed(frame), state, TopTokens(count), counted)
    assert counted.total == pytest.approx(net.count_macs(4, 6, updated), rel=0.02)


def test_its_size_and_cost_are_those_published() -> None:
    with torch.device("meta"):
        tiny = Yolos(COCO_CATEGORIES, **SIZES["yolos-tiny"])
        small = Yolos(COCO_CATEGORIES, **SIZES["yolos-small"])
    assert round(sum(p.numel() for p in tiny.parameters()) / 1e6, 1) == 6.5
    tokens = 480 // 16 * 848 // 16 + 101
    published = [12 * net.blocks[0].count_macs(1, tokens) / 1e9 for net in (tiny, small)]
    assert published == [pytest.approx(22, rel=0.03), pytest.approx(62, rel=0.03)]
    macs = [net.count_macs(480 // 16, 848 // 16) / 1e9 for net in (tiny, small)]
    # of the last block, only the detection tokens are computed
    assert macs == [pytest.approx(20.6, rel=0.01), pytest.approx(58.2, rel=0.01)]


@pytest.mark.parametrize(
    ("size", "expected"),
    [((720, 1280), (480, 848)), ((480, 640), (512, 672)), ((640, 480), (672, 512))],
)
def test_pictures_keep_their_shape(size: tuple[int, int], expected: tuple[int, int]) -> None:
    frontend = Resized()
    assert frontend.size_of(*size) == expected
    assert frontend(torch.zeros(1, 3, *size, dtype=torch.uint8)).shape == (1, 3, *expected)


def test_a_watch_has_a_budget_and_boxes_within_the_picture(tmp_path: Path) -> None:
    settings = {"dim": 32, "heads": 2, "depth": 2, "detections": 10, "position_size": [5, 8]}
    settings |= {"frontend.short": 64, "frontend.long": 128}
    card, net, front = random_model("yolos-tiny", "y", settings)
    net.scores[-1].bias[1] += 9  # type: ignore[index, operator, union-attr]
    save_model(tmp_path / "y.safetensors", card, net, front)  # type: ignore[arg-type]
    video, weights = ROOT / "samples" / "room.mp4", tmp_path / "y.safetensors"
    arguments = ["--end", 1, "--tokens", 6, "--track", "-o", tmp_path, "-f", "jsonl"]
    run("detect", video, "-m", weights, *arguments, "-f", "jsonl")
    steps = records(tmp_path / "room.mp4.jsonl", "objects")
    boxes = [box for step in steps for box in step["boxes"]]
    assert {box[5] for box in boxes} == {"random 0"}
    assert all(0 <= x1 < x2 <= 640 and 0 <= y1 < y2 <= 480 for x1, y1, x2, y2, *_ in boxes)
    costs = records(tmp_path / "room.mp4.jsonl", "compute")
    assert {cost["tokens"] for cost in costs[1:]} == {6}


def test_the_epsilon_of_layer_norms_is_reported_or_passed(tmp_path, caplog):
    torch.save(yolos(), tmp_path / "yolos.pth")
    with caplog.at_level(logging.INFO, "costream"):
        card, _ = import_files([tmp_path / "yolos.pth"], "yolos", {})
    assert card.arguments["norm_eps"] == 1e-6
    assert re.search("took norm_eps=1e-06.* from the published settings", caplog.text)
    card, tensors = import_files([tmp_path / "yolos.pth"], "yolos", {"norm_eps": "1e-12"})
    net, _ = build(card, tensors)
    assert {m.eps for m in net.modules() if isinstance(m, torch.nn.LayerNorm)} == {1e-12}
