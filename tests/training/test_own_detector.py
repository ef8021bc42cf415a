"""Custom detectors: initial weights, augmented training views, class means and thresholds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.evaluation.metrics.detection import DetectedBoxes, Truth
from costream.labels.clips_with_boxes import ClipWithBoxes, ImageBoxes, read_boxes
from costream.models.eventful.vitdet import ViTDet
from costream.models.images import Pixels
from costream.training.adaptation import Adaptation
from costream.training.early_stopping import LOSS
from costream.training.feature_cache import FeatureCache
from costream.training.objects.album import Album, AnnotatedImage, annotated_images, divide
from costream.training.objects.detector_card import DetectorResults, best_threshold, chosen
from costream.training.objects.detector_training import detect_objects, figures
from costream.training.objects.image_augment import Cutout, TrainingView, cut, mirror, paste
from costream.training.objects.image_views import EncodedViews, Views, filled
from costream.training.objects.object_trainer import ObjectTrainer
from costream.training.objects.prototypes import proposed, prototypes
from costream.weights_io.card import Card, Timeline
from costream.weights_io.file import Weights, read_weights
from kit import data_objects
from kit.data_objects import rectangle
from kit.data_training import train_settings


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def base(folder: Path, labels: tuple[str, ...], **changes: Any) -> Weights:
    arguments = {**data_objects.NETWORK, "classes": len(labels), **changes}
    return read_weights(
        data_objects.write_tiny_weights(folder / "b.safetensors", labels, arguments=arguments)
    )


def predictor(network: ViTDet) -> tuple[torch.Tensor, torch.Tensor]:
    own: Any = network.roi_heads.stages()[0][1]
    return own.cls_score.weight.detach(), own.bbox_pred.weight.detach()


@pytest.mark.slow
def test_labels_that_are_known_keep_their_rows(tmp_path: Path) -> None:
    weights = base(tmp_path, ("car", "Street lamp", "cat"))
    weights = replace(weights, card=replace(weights.card, costs={"macs": 1}, sample={"file": "x"}))
    fresh = train_settings(tmp_path / "o", seed=1)
    network, _, card, _ = ObjectTrainer().setup(weights, ("ant", "car", "street_lamp"), fresh)
    stem = "network.roi_heads.box_predictor"
    scores = weights.tensors[f"{stem}.cls_score.weight"]
    deltas = weights.tensors[f"{stem}.bbox_pred.weight"].view(3, 4, -1)
    own_scores, own_deltas = predictor(network)
    assert torch.equal(own_scores[1:], scores[[0, 1, 3]])  # car, lamp, nothing
    assert torch.equal(own_deltas.view(3, 4, -1)[1:], deltas[:2])
    torch.testing.assert_close(own_deltas[:4], deltas.mean(0))
    assert not any(torch.equal(own_scores[0], row) for row in scores)
    assert card.arguments["classes"] == 3
    assert not card.costs
    assert not card.sample
    assert torch.equal(
        network.pyramid.state_dict()[name := next(iter(network.pyramid.state_dict()))],
        weights.tensors[f"network.pyramid.{name}"],
    )


@pytest.mark.parametrize("labels", [("a",), ("a", "b"), ("x", "y", "z")])
@pytest.mark.parametrize("cascade", [False, True])
def test_any_number_of_labels_is_begun_with(
    labels: tuple[str, ...], cascade: bool, tmp_path: Path
) -> None:
    for known in (("a",), ("a", "b", "c")):
        weights = base(tmp_path, known, cascade=cascade)
        for scratch in (False, True):
            network, *_ = ObjectTrainer().setup(
                weights, labels, train_settings(tmp_path / "o", scratch=scratch)
            )
            own_scores, own_deltas = predictor(network)
            assert len(own_scores) == len(labels) + 1
            assert len(own_deltas) == 4 * (1 if cascade else len(labels))


def still(name: str, labels: tuple[str, ...], group: str = "") -> AnnotatedImage:
    boxes = np.tile([[1.0, 2.0, 5.0, 6.0]], (len(labels), 1))
    return AnnotatedImage(name, 0, ImageBoxes(boxes, labels, False), group or name)


def test_no_group_is_on_both_sides() -> None:
    stills = [still(f"{k}.png", ("a", "b"), f"clip {k // 3}") for k in range(30)]
    stills.append(still("empty.png", ()))
    training, checks = divide(stills, 0.3, 0)
    groups = [{s.group for s in side} for side in (training, checks)]
    assert not groups[0] & groups[1]
    assert len(checks) == 9
    assert stills[-1] in training


def test_frames_of_a_clip_and_pictures_are_stills() -> None:
    marks = still("x", ("a",)).marks
    clips = [
        ClipWithBoxes(("v.mp4",), {7: marks, 2: marks}),
        ClipWithBoxes(("a.png", "b.png"), {0: marks, 1: marks}, "tuesday"),
    ]
    found = [(s.source, s.frame, s.group) for s in annotated_images(clips)]
    assert found == [
        ("v.mp4", 2, "v.mp4"), ("v.mp4", 7, "v.mp4"),
        ("a.png", 0, "tuesday"), ("b.png", 0, "tuesday")]  # fmt: skip


@pytest.fixture
def album(tmp_path: Path) -> Album:
    labels = data_objects.write_pictures(tmp_path / "pictures", 6)
    return Album(
        annotated_images(read_boxes(tmp_path / "pictures", labels)),
        data_objects.KINDS,
        data_objects.SIZE,
    )


def test_a_still_is_seen_as_it_is_and_larger(album: Album) -> None:
    picture, (_, (kind, corners)) = data_objects.draw(1)
    scene = album.seen(1)
    assert scene.pixels.permute(1, 2, 0).numpy().tolist() == picture.tolist()
    assert scene.boxes[1].tolist() == list(corners)
    assert scene.labels.tolist() == [1, 0]
    large = album.scene(1)
    assert large.pixels.shape == (3, 102, 153)
    scale = np.array([153 / 96, 102 / 64] * 2)
    np.testing.assert_allclose(large.boxes[1], np.array(corners) * scale, rtol=1e-5)
    x1, y1, x2, y2 = (int(v) for v in large.boxes[1])
    middle = large.pixels[:, (y1 + y2) // 2, (x1 + x2) // 2]
    assert middle.tolist() == pytest.approx(data_objects.COLOURS[kind], abs=3)


def test_the_rest_of_a_view_is_what_a_frontend_fills_up_with() -> None:
    pixels = torch.randint(0, 255, (3, 20, 30), dtype=torch.uint8)
    whole = Pixels((48, 32))(filled(pixels, (48, 32))[None])
    padded = torch.nn.functional.pad(Pixels((48, 32), 1)(pixels[None]), (0, 18, 0, 12))
    assert float((whole - padded).abs().max()) < 0.01


def test_views_are_the_same_every_time_and_boxes_lie_on_things(album: Album) -> None:
    views = Views(album, Pixels(data_objects.SIZE, 8), 3)
    for number in range(6):
        one, other = views.numbered(number, 2), views.numbered(number, 2)
        assert torch.equal(one.pixels, other.pixels)
        assert not torch.equal(one.pixels, views.numbered(number, 1).pixels)
    # A few views are grey.
    assert right([views.numbered(k, view) for k in range(6) for view in range(8)]) > 0.85
    rng = np.random.default_rng(0)
    assert views.canvases == [(96, 64), (64, 32), (80, 48)]
    fresh = [views.fresh(size, rng) for size in views.canvases for _ in range(30)]
    assert right(fresh) > 0.85
    assert {view.pixels.shape for view in fresh} == {
        (3, height, width) for width, height in views.canvases
    }
    assert max(len(view.boxes) for view in fresh) > 2  # put in, or of four pictures


def test_boxes_of_any_size_are_learnt_from(tmp_path: Path) -> None:
    """Slivers at the edges, boxes beyond them, the whole picture, none."""
    data_objects.write_pictures(tmp_path / "pictures", 4)
    edges = [[95.7, 0, 99, 64], [-5, 63.6, 200, 70], [0, 0, 96, 64], [10, 10, 10.2, 10.2]]
    stills = [
        AnnotatedImage(
            str(tmp_path / "pictures" / f"00{k}.png"),
            0,
            ImageBoxes(np.array(rows), labels, False),
            "",
        )
        for k, (rows, labels) in enumerate(
            [(edges, ("a",) * 4), (edges[:1], ("b",)), (edges[1:2], ("a",)), (np.zeros((0, 4)), ())]
        )
    ]
    album = Album(stills, ("a", "b"), data_objects.SIZE)
    views = Views(album, Pixels(data_objects.SIZE, 8), 0)
    rng = np.random.default_rng(0)
    for size in views.canvases * 20:
        view = views.fresh(size, rng)
        assert view.pixels.shape == (3, size[1], size[0])
        assert bool((view.boxes[:, 2:] > view.boxes[:, :2]).all())
        assert bool((view.boxes[:, 2:] <= torch.tensor(size)).all())


def right(views: Sequence[TrainingView]) -> float:
    """Return the share of boxes in which there is red, for lamps, or green, for leaves."""
    told = []
    for view in views:
        for (x1, y1, x2, y2), label in zip(view.boxes.int().tolist(), view.labels, strict=True):
            red, green, _ = view.pixels[:, y1:y2, x1:x2].int()
            told.append(bool(((red - green) if label == 0 else (green - red)).max() > 40))
    return float(np.mean(told))


def test_class_means_show_what_a_network_has_not_learnt(album: Album) -> None:
    """A network that puts one box anywhere but has features: those of true boxes tell classes."""
    torch.manual_seed(0)
    network = ViTDet(**data_objects.NETWORK).eval()
    card = Card("c", "t", "vitdet", data_objects.NETWORK, ("thing",), 10.0)
    views = Views(album, Pixels(data_objects.SIZE, 8), 0)
    encoded = EncodedViews(views, network, card, FeatureCache(None, card, network))
    seen = [encoded.seen(k) for k in range(6)]
    sides = ((proposed(network, one) for one in part) for part in (seen[:4], seen[4:]))
    found = prototypes(*sides, 2, 0.5)
    for picture, one in zip(seen[4:], found, strict=True):
        assert len(one.scores) == len(one.labels) == len(one.boxes) > 0
        assert set(one.labels.tolist()) <= {0, 1}
        assert (np.diff(one.scores) <= 0).all()
        assert one.boxes[:, [0, 2]].max() <= int(picture.size[1])
    assert figures(found, [], ["a", "b"]) == {}


def test_what_is_found_is_what_the_network_finds(album: Album) -> None:
    torch.manual_seed(0)
    network = ViTDet(**{**data_objects.NETWORK, "classes": 2, "score": 0.0}).eval()
    card = Card("c", "t", "vitdet", data_objects.NETWORK, ("a", "b"), 10.0)
    views = Views(album, Pixels(data_objects.SIZE, 8), 0)
    picture = EncodedViews(views, network, card, FeatureCache(None, card, network)).seen(0)
    with torch.no_grad():
        (whole,) = network(Pixels(data_objects.SIZE, 8)(album.seen(0).pixels[None]))
    found = detect_objects(network, picture)
    np.testing.assert_allclose(found.scores, whole.scores, atol=1e-5)
    np.testing.assert_allclose(found.boxes, whole.boxes.clamp(min=0), atol=1e-3)


def test_thresholds_are_those_of_the_best_f1(tmp_path: Path) -> None:
    box = np.array([[0.0, 0.0, 10.0, 10.0]])
    away = box + 50

    def told(score: float, right: bool, number: int) -> tuple[DetectedBoxes, Truth]:
        said = DetectedBoxes(box if right else away, np.array([score]), np.array([number]))
        return said, Truth(box, np.array([number]))

    pairs = [told(0.6, True, 0) for _ in range(12)] + [told(0.4, False, 0) for _ in range(6)]
    pairs += [told(0.3, True, 1)]
    found, truth = (list(side) for side in zip(*pairs, strict=True))
    no_change = Adaptation(torch.nn.Identity(), train_settings(tmp_path / "x"), 0, lambda: 0)
    card = replace(data_objects.tiny_card(("a", "b")), timeline=Timeline(threshold=0.5, low=0.1))
    results = DetectorResults({card.name: found}, truth, [0] * len(found), [], no_change)
    timeline = chosen(card, results)
    assert timeline.thresholds == {"a": 0.6}  # of b there is one only
    assert timeline.threshold == 0.6
    assert timeline.low is None
    nothing = [DetectedBoxes(np.zeros((0, 4)), np.zeros(0), np.zeros(0, int))] * len(truth)
    assert chosen(card, replace(results, found={card.name: nothing})) == card.timeline


def test_the_lowest_threshold_with_about_the_best_f1() -> None:
    boxes = np.array([[0, 0, 10, 10], [50, 50, 60, 60], [20, 20, 30, 30]], float)
    truth = [Truth(boxes[[0, 2]], np.array([0, 0]))]
    found = [DetectedBoxes(boxes, np.array([0.9, 0.3, 0.6]), np.array([0, 0, 0]))]
    assert best_threshold(found, truth) == 0.6
    other = [DetectedBoxes(boxes, np.array([0.9, 0.3, 0.6]), np.array([0, 0, 1]))]
    assert best_threshold(other, truth) == 0.9
    # One that is right among a hundred: F1 is the same without it, but for a hundredth.
    many = np.tile(boxes[:1], (100, 1)) + 20 * np.arange(100)[:, None]
    scores = np.linspace(0.99, 0.5, 100)
    said = [DetectedBoxes(many, scores, np.zeros(100, int))]
    assert best_threshold(said, [Truth(many[:99], np.zeros(99, int))]) == scores[-1]


def test_a_watch_goes_by_both_precisions() -> None:
    box = np.array([[0.0, 0.0, 10.0, 10.0]])
    said = DetectedBoxes(box * [1, 1, 1, 1.5], np.array([0.9]), np.array([0]))
    row = figures([said], [Truth(box, np.array([0]))], ["a"])
    assert row["AP50"] == pytest.approx(1)
    assert row["AP"] == pytest.approx(0.4)  # of an overlap of 2 / 3
    assert row[LOSS] == pytest.approx(0.3)
    away = DetectedBoxes(box + 50, np.array([0.9]), np.array([0]))
    assert figures([away], [Truth(box, np.array([0]))], ["a"]) == {"AP50": 0, "AP": 0}


SHAPES = [
    *((320, 192), (256, 192), (192, 192), (160, 192)),
    *((256, 128), (256, 160), (192, 160), (128, 192)),
]


def red(pixels: torch.Tensor) -> list[int]:
    """Where the rectangle is."""
    y, x = ((pixels[0] > 128) & (pixels[1] < 60)).nonzero().unbind(1)
    return [int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(SHAPES), st.booleans())
def test_boxes_go_where_their_pixels_go(seed: int, shape: tuple[int, int], steady: bool) -> None:
    view = cut(rectangle(steady=steady), *shape, np.random.default_rng(seed))
    assert view.pixels.shape == (3, shape[1], shape[0])
    if len(view.boxes):
        assert view.boxes[0].tolist() == pytest.approx(red(view.pixels), abs=2.5)
        mirrored = mirror(view)
        assert mirrored.boxes[0].tolist() == pytest.approx(red(mirrored.pixels), abs=2.5)
        again = mirror(mirrored)
        torch.testing.assert_close(again.boxes, view.boxes)


@pytest.mark.parametrize("angle", [0.0, 0.6, math.pi / 2])
def test_what_is_pasted_is_inside_its_box(angle: float) -> None:
    thing = Cutout(torch.full((3, 40, 20), 250, dtype=torch.uint8), torch.ones(40, 20), 0)
    empty = torch.zeros(3, 120, 160, dtype=torch.uint8)
    done = 0
    for seed in range(8):
        pasted = paste(empty, thing, np.random.default_rng(seed), 60.0, angle)
        if pasted is None:
            continue
        pixels, box = pasted
        y, x = (pixels.amax(0) > 60).nonzero().unbind(1)
        around = [int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1]
        assert box.tolist() == pytest.approx(around, abs=2)
        whole = box[0] > 0 and box[1] > 0 and box[2] < 160 and box[3] < 120
        if whole and angle in (0.0, math.pi / 2):
            sides = (30, 60) if not angle else (60, 30)
            assert (box[2:] - box[:2]).tolist() == pytest.approx(sides, abs=3)
        done += 1
    assert done
    assert not empty.any()
