"""Views, cut-outs, the packs and the parts of the recipe of the shipped detector."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.errors import UsageError
from costream.training.objects.augment import (
    SHAPES,
    SMALL_SHAPES,
    Cutout,
    LabelledImage,
    background,
    component_boxes,
    cut,
    cut_out,
    foreground_mask,
    mirror,
    moving_object_boxes,
    paste,
)
from weights.recipes.objects.data import (
    ANNOTATED_CLIPS,
    LABELS,
    ViewSource,
    boxes_at,
    read_clip,
    read_images,
)
from weights.recipes.objects.train import main

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "packs"


@pytest.fixture(scope="module")
def packs() -> Path:
    if not all((FOLDER / f"{name}.tar").is_file() for name in ("coco256", "samples")):
        pytest.skip("needs the packs of pictures in ../shared/packs beside the repository")
    return FOLDER


def scene(width: int = 320, height: int = 200, steady: bool = False) -> LabelledImage:
    """A red rectangle on black, and its box."""
    pixels = torch.zeros(3, height, width, dtype=torch.uint8)
    pixels[0, 60:140, 100:220] = 255
    box = torch.tensor([[100.0, 60.0, 220.0, 140.0]])
    return LabelledImage(pixels, box, torch.tensor([1]), steady)


def red(pixels: torch.Tensor) -> list[int]:
    """Where the rectangle is."""
    y, x = ((pixels[0] > 128) & (pixels[1] < 60)).nonzero().unbind(1)
    return [int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([*SHAPES, *SMALL_SHAPES]), st.booleans())
def test_boxes_go_where_their_pixels_go(seed: int, shape: tuple[int, int], steady: bool) -> None:
    view = cut(scene(steady=steady), *shape, np.random.default_rng(seed))
    assert view.pixels.shape == (3, shape[1], shape[0])
    if len(view.boxes):
        assert view.boxes[0].tolist() == pytest.approx(red(view.pixels), abs=2.5)
        mirrored = mirror(view)
        assert mirrored.boxes[0].tolist() == pytest.approx(red(mirrored.pixels), abs=2.5)
        again = mirror(mirrored)
        torch.testing.assert_close(again.boxes, view.boxes)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([*SHAPES, *SMALL_SHAPES]))
def test_views_hold_their_boxes(seed: int, shape: tuple[int, int]) -> None:
    thing = Cutout(torch.full((3, 30, 20), 200, dtype=torch.uint8), torch.ones(30, 20), 0)
    supply = ViewSource([scene(), scene(100, 300)], [[scene(steady=True)]], [[thing]])
    view = supply.view(shape, np.random.default_rng(seed))
    assert view.pixels.dtype == torch.uint8
    assert len(view.boxes) == len(view.labels)
    limits = torch.tensor([*shape, *shape])
    assert bool((view.boxes >= 0).all())
    assert bool((view.boxes <= limits).all())
    assert bool((view.boxes[:, 2:] > view.boxes[:, :2]).all())


def test_views_are_the_same_for_the_same_seed() -> None:
    supply = ViewSource([scene()], [[scene(steady=True)]], [])
    one, other = (supply.view(SHAPES[0], np.random.default_rng(3)) for _ in range(2))
    assert torch.equal(one.pixels, other.pixels)
    assert torch.equal(one.boxes, other.boxes)


def test_rare_classes_are_shown_more_often() -> None:
    bicycle = LabelledImage(scene().pixels, scene().boxes, torch.tensor([2]))
    supply = ViewSource([bicycle, *[scene()] * 29], [], [])
    shares = supply._likely
    assert shares.sum() == pytest.approx(1)
    assert shares[0] / shares[1] == pytest.approx(3)  # the root of 0.3 over 1 / 30


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


def test_what_passes_a_still_camera_is_cut_out() -> None:
    empty = torch.full((3, 120, 200), 80, dtype=torch.uint8)
    frames = []
    for k in range(9):
        frame = empty.clone()
        frame[:, 40:70, 10 + 20 * k : 30 + 20 * k] = 220
        frame[:, 90:, :60] += 35 * (k == 4)  # a shadow, or light: no thing
        frames.append(frame)
    assert torch.equal(background(frames), empty)
    assert len(component_boxes(foreground_mask(frames[4], empty))) == 2
    (box,) = moving_object_boxes(frames[4], empty)
    assert box.tolist() == pytest.approx([90, 40, 110, 70], abs=1)
    thing = cut_out(frames[4], foreground_mask(frames[4], empty), box, 1)
    assert thing is not None
    assert thing.mask.mean() > 0.9
    assert thing.pixels.min() > 200
    assert (
        cut_out(frames[4], foreground_mask(frames[4], empty), torch.tensor([0.0, 40, 20, 70]), 1)
        is None
    )
    assert moving_object_boxes(empty, empty) == []


def test_a_camera_that_trembles_and_adapts_sees_nothing_pass() -> None:
    empty = torch.full((3, 120, 200), 120, dtype=torch.uint8)
    empty[:, 50:56, 20:90] = 250  # a mark on the road
    shaken = torch.roll(empty, (2, -3), (1, 2))
    assert moving_object_boxes((shaken * 0.6).byte(), empty) == []
    frame = (shaken * 0.6).byte()
    frame[:, 70:110, 120:160] = 240
    (box,) = moving_object_boxes(frame, empty)
    assert box.tolist() == pytest.approx([120, 70, 160, 110], abs=1)


def test_objects_put_down_by_hand_move_in_straight_lines() -> None:
    clip = ANNOTATED_CLIPS["person-bicycle-car-detection-preview"]
    boxes, labels = boxes_at(clip, 4)
    assert [LABELS[k] for k in labels] == ["vehicle", "bicycle", "person", "person"]
    assert boxes[0].tolist() == [62, 133.5, 174.5, 259]
    assert len(boxes_at(clip, 20)[0]) == 3  # one person has left
    assert len(boxes_at(clip, 41)[0]) == 0


def test_pictures_of_the_packs(packs: Path) -> None:
    parts = {part: read_images(packs, part) for part in ("train", "validation", "test")}
    assert {name: len(some) for name, some in parts.items()} == {
        "train": 120,
        "validation": 8,
        "test": 64,
    }
    for picture in (p for some in parts.values() for p in some):
        height, width = picture.pixels.shape[1:]
        assert bool((picture.boxes >= -0.5).all())
        assert len(picture.boxes) == len(picture.labels)
        assert bool((picture.boxes <= torch.tensor([width, height] * 2) + 0.5).all())
    assert sum(int((p.labels == 0).sum()) for p in parts["test"]) == 187


def test_parts_of_a_clip_do_not_touch(packs: Path) -> None:
    name = "car-detection"
    parts = [read_clip(packs, name, 1, part) for part in ("train", "validation", "test")]
    assert list(map(len, parts)) == [263, 38, 76]
    assert all(frame.shape == (3, 288, 512) for part in parts for frame in part)
    small = read_clip(packs, name, 8, "test", (384, 256))
    assert len(small) == 10
    assert small[0].shape == (3, 216, 384)


def test_packs_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="--packs"):
        read_images(tmp_path, "train")
    assert main(["--packs", str(tmp_path), "--output", str(tmp_path)]) == 2
    assert "teacher" in capsys.readouterr().err
