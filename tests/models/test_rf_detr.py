"""RF-DETR: the dense arithmetic of the package transformers, and gates that pass some patches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from costream.models.build import build, save_model
from costream.models.eventful.deformable import proposals
from costream.models.eventful.rf_detr import RfDetr, WindowedView, places_of, windows_of
from costream.models.eventful.yolos import COCO_CATEGORIES
from costream.models.images import Resized
from costream.models.importing import import_files
from costream.models.random_init import random_model
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import OnlyTokens, RecordedPolicy, TopTokens
from kit.foreign_eventful import rf_detr
from kit.paths import ROOT
from kit.runs import records, run

pytestmark = pytest.mark.usefixtures("no_grad")
SMALL: dict[str, Any] = {
    "dim": 32,
    "heads": 2,
    "depth": 4,
    "outputs": [1, 2, 3, 4],
    "position_size": 4,
    "channels": 32,
    "queries": 9,
    "self_heads": 2,
    "cross_heads": 4,
    "hidden": 16,
}


def imported(tensors: dict[str, Tensor], path: Path) -> RfDetr:
    torch.save({"model": tensors, "epoch": 1}, path)
    card, given = import_files([path], "rf-detr", {})
    assert (card.labels[0], card.labels[-1], len(card.labels)) == ("person", "toothbrush", 80)
    assert card.frontend_arguments["short"] == 16 * card.arguments["position_size"]
    network: Any = build(card, given)[0].eval()
    return network


def small(**changes: Any) -> RfDetr:
    torch.manual_seed(0)
    net = RfDetr([1, 2], **{**SMALL, **changes}).double().eval()
    for parameter in net.parameters():
        parameter.add_(torch.randn_like(parameter) / 8)
    return net


def split(x: Tensor, height: int, width: int, windows: int) -> Tensor:
    """Return patches [B, h w, D] by windows, [B windows^2, n, D]; also for other than squares."""
    x = x.unflatten(1, (windows, height // windows, windows, width // windows))
    return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)


class Theirs:
    """A small RF-DETR of transformers, whose windows are as the package rfdetr has them.

    Those of transformers mix rows and columns of pictures that are not square.
    """

    def __init__(self, depth: int = 4) -> None:
        transformers = pytest.importorskip("transformers")
        backbone = transformers.RfDetrDinov2Config(
            hidden_size=128,
            num_attention_heads=2,
            num_hidden_layers=depth,
            image_size=64,
            patch_size=16,
            num_windows=2,
            layerscale_value=0.8,
            out_features=[f"stage{k + 1}" for k in range(depth)],
        )
        config = transformers.RfDetrConfig(
            backbone_config=backbone,
            d_model=64,
            num_labels=91,
            num_queries=8,
            decoder_self_attention_heads=2,
            decoder_cross_attention_heads=4,
            decoder_n_points=2,
            decoder_layers=2,
            decoder_ffn_dim=96,
            group_detr=2,
            layer_norm_eps=1e-6,
        )
        self.net = transformers.RfDetrForObjectDetection(config).eval()
        for parameter in self.net.parameters():
            parameter.add_(torch.randn_like(parameter) / 8)
        backbone = self.net.model.backbone.backbone
        backbone.embeddings.window_partition = self._partition
        backbone.window_unpartition = self._unpartition

    def __call__(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        self.net.to(pictures.dtype)
        out = self.net(pixel_values=pictures)
        return out.logits, out.pred_boxes

    def _partition(self, x: Tensor, height: int, width: int) -> Tensor:
        rows = split(x[:, 1:], height // 16, width // 16, 2)
        return torch.cat([x[:, :1].repeat_interleave(4, 0), rows], 1)

    def _unpartition(self, x: Tensor, height: int, width: int) -> Tensor:
        x = x.unflatten(0, (-1, 2, 2)).unflatten(3, (height // 32, width // 32))
        return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def test_it_is_the_network_of_transformers(tmp_path: Path) -> None:
    theirs = Theirs()
    net = imported(theirs.net.state_dict(), tmp_path / "theirs.pth").double()
    for height, width in ((64, 64), (96, 128), (128, 32), (160, 160)):
        pictures = torch.randn(2, 3, height, width, dtype=torch.float64)
        given = net.predict(net.encode(net.embed(pictures)))
        for one, other in zip(given, theirs(pictures), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_files_of_its_package_have_other_names_for_the_same(tmp_path: Path) -> None:
    tensors = rf_detr()
    net = imported(tensors, tmp_path / "own.pth")
    block = "backbone.0.encoder.encoder.encoder.layer.1"
    scale = tensors[f"{block}.layer_scale2.lambda1"]
    torch.testing.assert_close(net.blocks[1].mlp_2.bias, tensors[f"{block}.mlp.fc2.bias"] * scale)
    assert net.decoder.queries.equal(tensors["query_feat.weight"][:6])
    assert len(net.decoder.layers) == 2
    found = net(torch.randn(1, 3, 64, 64))
    assert found[0].boxes.isfinite().all()


def test_windows_and_places_are_of_each_other() -> None:
    patches = torch.arange(48)[None, :, None]
    assert windows_of(6, 8, 2).equal(split(patches, 6, 8, 2)[..., 0])
    tokens = torch.full((4, 13), -1)
    tokens.view(-1)[places_of(6, 8, 2)] = torch.arange(48)
    assert tokens[:, 0].eq(-1).all()
    assert tokens[:, 1:].equal(windows_of(6, 8, 2))


@pytest.mark.parametrize("variant", ["rows", "exact"])
def test_with_all_tokens_a_frame_is_that_frame_alone(variant: str) -> None:
    net = small(variant=variant)
    pictures = torch.randn(4, 1, 3, 64, 96, dtype=torch.float64)
    state = net.init_state(1, 64, 96)
    for picture in pictures:
        tokens = net.embed(picture)
        view = net.view_step(tokens, state, TopTokens(24), Operations())
        alone = net.encode(tokens)
        torch.testing.assert_close(view.patches, alone.patches)
        for given, expected in zip(net.predict(view), net.predict(alone), strict=True):
            torch.testing.assert_close(given, expected)
    (found,), (again,) = net(pictures[-1]), net.detect(view, (64, 96))
    for given, expected in zip(found, again, strict=True):
        torch.testing.assert_close(given, expected)


@pytest.mark.parametrize("variant", ["rows", "exact"])
@pytest.mark.usefixtures("small_updates")
def test_a_patch_that_changes_is_seen_and_the_rest_is_not_computed(variant: str) -> None:
    net = small(variant=variant, dim=64)
    one = torch.randn(1, 3, 192, 192, dtype=torch.float64)
    other, state = one.clone(), net.init_state(1, 192, 192)
    other[:, :, 32:48, 48:64] += 1.0
    net.view_step(net.embed(one), state, TopTokens(4), Operations())
    for _ in range(60):  # what the patch changes in the others passes in turn
        counted = Operations()
        view = net.view_step(net.embed(other), state, TopTokens(12), counted)
    expected = net.encode(net.embed(other)).patches
    torch.testing.assert_close(view.patches, expected, rtol=1e-6, atol=1e-6)
    assert counted.total < 0.5 * net.count_macs(12, 12)


@pytest.mark.parametrize("updated", [None, 7, 24])
def test_a_step_costs_what_the_card_says(updated: int | None) -> None:
    net = small(scene_cut=None)
    state, count = net.init_state(1, 64, 96), 24 if updated is None else updated
    for frame in torch.randn(1 if updated is None else 2, 1, 3, 64, 96, dtype=torch.float64):
        counted = Operations()
        net.view_step(net.embed(frame), state, TopTokens(count), counted)
    assert counted.total == pytest.approx(net.count_macs(4, 6, updated), rel=0.02)


def test_its_size_and_cost_are_those_published() -> None:
    with torch.device("meta"):
        net = RfDetr(COCO_CATEGORIES)
        picture, rest = torch.empty(1, 3, 384, 384), Operations()
        view = WindowedView(net.embed(picture, rest).repeat(1, 1, 1, 4))
        net.predict(view, rest)
    # 30.5 M are published; twelve more groups of heads and queries serve in training alone
    training = 12 * (300 * 260 + 2 * 256**2 + 256 * 256 + 95 * 256 + 6 * 256 + 95)
    total = sum(p.numel() for p in net.parameters()) + training
    assert total / 1e6 == pytest.approx(30.5, rel=0.005)
    # 31.9 billion operations, two for each multiplication
    assert (net.count_macs(24, 24) + rest.total) / 1e9 == pytest.approx(31.9 / 2, rel=0.05)


def test_tokens_under_masks_propose_nothing() -> None:
    net = small(score=0.0)
    picture = torch.randn(1, 3, 64, 96, dtype=torch.float64)
    seen = torch.tensor([k for k in range(24) if k % 6 > 2])  # the right half
    gates = RecordedPolicy(OnlyTokens(TopTokens(24), seen), 24)
    view = net.view_step(net.embed(picture), net.init_state(1, 64, 96), gates, Operations())
    assert int(gates.updated.sum()) == 12
    assert view.hidden is not None
    assert view.hidden.view(4, 6)[:, :3].all()
    assert not view.hidden.view(4, 6)[:, 3:].any()
    net.decoder.token_corners[-1].weight.zero_()
    net.decoder.token_corners[-1].bias.zero_()
    net.decoder.offsets.zero_()
    maps = net.projector(view.patches.permute(0, 3, 1, 2))
    assert net.decoder.references(maps, view.hidden)[0, :, 0].min() > 0.5
    assert net.decoder.references(maps)[0, :, 0].min() < 0.5
    few = torch.arange(24) > 1
    assert net.decoder.references(maps, few)[0, :, 0].count_nonzero() == 2
    assert all(part.isfinite().all() for part in net.decoder(maps, torch.ones_like(few)))


def test_tokens_at_the_edge_of_large_maps_propose_nothing() -> None:
    boxes, inside = proposals(3, 60)
    assert inside.view(3, 60).sum(1).tolist() == [58] * 3
    assert boxes[1].tolist() == pytest.approx([1.5 / 60, 0.5 / 3, 0.05, 0.05])
    assert boxes[0].tolist() == [0] * 4


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match=r"48x64 pixels are not multiples of 32"):
        small().init_state(1, 64, 48)
    with pytest.raises(ValueError, match=r"outputs \[1, 9\] are not among the blocks 1 to 4"):
        small(outputs=[1, 9])


def test_pictures_become_squares_as_published() -> None:
    frontend = Resized(384, 1152, 32, square=True)
    picture = torch.randint(0, 256, (1, 3, 90, 160), dtype=torch.uint8)
    expected = torch.nn.functional.interpolate(picture.float(), (384, 384), mode="bilinear")
    torch.testing.assert_close(frontend(picture), frontend.normalised(expected))
    with pytest.raises(ValueError, match="short 100 is not a multiple of patch 32"):
        Resized(100, 200, 32, square=True)


def test_a_watch_has_a_budget_and_boxes_within_the_picture(tmp_path: Path) -> None:
    settings = {**SMALL, "frontend.short": 64, "frontend.long": 192}
    card, net, front = random_model("rf-detr-nano", "r", settings)
    net.decoder.scores.bias[1] += 9  # type: ignore[index, operator, union-attr]
    save_model(tmp_path / "r.safetensors", card, net, front)  # type: ignore[arg-type]
    video, weights = ROOT / "samples" / "room.mp4", tmp_path / "r.safetensors"
    arguments = ["--end", 1, "--tokens", 6, "--track", "-o", tmp_path, "-f", "jsonl"]
    run("detect", video, "-m", weights, *arguments, "-f", "jsonl")
    steps = records(tmp_path / "room.mp4.jsonl", "objects")
    boxes = [box for step in steps for box in step["boxes"]]
    assert {box[5] for box in boxes} == {"random 0"}
    assert all(0 <= x1 < x2 <= 640 and 0 <= y1 < y2 <= 480 for x1, y1, x2, y2, *_ in boxes)
    costs = records(tmp_path / "room.mp4.jsonl", "compute")
    assert {cost["tokens"] for cost in costs[1:]} == {6}
