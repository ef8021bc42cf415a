"""Training views in batches, and the bank that they are made of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.training.objects.image_augment import Cutout, LabelledImage
from costream.training.objects.losses import UNSURE
from kit.data_objects import rectangle
from weights.recipes.objects.bank import Bank, Scene, cutout_tensors, decode, encode
from weights.recipes.objects.views import KEPT, PADDING, SHAPES, ViewMaker


def scene(picture: LabelledImage, score: float = 1.0) -> Scene:
    """Return a picture with boxes of one score."""
    scores = torch.full((len(picture.labels),), score)
    rest = (picture.boxes, picture.labels, scores)
    return Scene(encode(picture.pixels, lossless=True), *rest, share=0.5, steady=picture.steady)


@pytest.fixture(scope="module")
def bank() -> Bank:
    """A bank of three pictures and one cut-out."""
    scenes = [scene(rectangle()), scene(rectangle(100, 300)), scene(rectangle(steady=True), 0.3)]
    thing = Cutout(torch.full((3, 30, 20), 200, dtype=torch.uint8), torch.ones(30, 20), 0)
    classes = torch.tensor([[0, -1], [24, 26]])
    teacher = {"stem.weight": torch.arange(3.0)}
    return Bank(scenes, scenes[:1], *cutout_tensors([[thing]]), classes, teacher)


def test_a_bank_comes_back_from_its_file(bank: Bank, tmp_path: Path) -> None:
    bank.save(tmp_path / "some.bank")
    again = Bank.load(tmp_path / "some.bank")
    for own, other in zip(bank.scenes + bank.judged, again.scenes + again.judged, strict=True):
        assert (own.data, own.share, own.steady) == (other.data, other.share, other.steady)
        assert torch.equal(own.boxes, other.boxes)
        assert torch.equal(own.scores, other.scores)
    assert torch.equal(decode(again.scenes)[0].permute(2, 0, 1), rectangle().pixels)
    assert again.groups() == [[0], [24, 26]]
    assert torch.equal(again.cutouts, bank.cutouts)
    assert torch.equal(again.teacher["stem.weight"], torch.arange(3.0))


@pytest.mark.long
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(list(SHAPES)))
def test_views_hold_their_boxes(bank: Bank, seed: int, shape: tuple[int, int]) -> None:
    torch.manual_seed(seed)
    views = ViewMaker(bank, torch.device("cpu")).batch(6, shape)
    assert views.pixels.shape == (6, 3, shape[1], shape[0])
    assert views.boxes.shape == (6, KEPT, 4)
    there = views.labels != PADDING
    limits = torch.tensor([*shape, *shape]) + 1e-3
    assert bool((views.boxes[there] >= -1e-3).all())
    assert bool((views.boxes[there] <= limits).all())
    assert bool((views.boxes[there][:, 2:] > views.boxes[there][:, :2]).all())
    assert float(views.pixels.min()) >= 0
    assert float(views.pixels.max()) <= 255


@pytest.mark.long
def test_boxes_stay_on_their_objects() -> None:
    own = Bank([scene(rectangle())], [], *cutout_tensors([]), torch.tensor([[0]]), {})
    torch.manual_seed(0)
    views = ViewMaker(own, torch.device("cpu")).batch(24, (384, 288))
    red = views.pixels[:, 0] > views.pixels[:, 1:].amax(1) + 40
    checked = 0
    for boxes, labels, there in zip(views.boxes, views.labels, red, strict=True):
        if not bool(there.any()):  # without colour
            continue
        for x1, y1, x2, y2 in boxes[labels >= 0].round().int().tolist():
            assert there[y1 + 2 : y2 - 2, x1 + 2 : x2 - 2].float().mean() > 0.9
            checked += 1
        outside = there.clone()
        for x1, y1, x2, y2 in boxes[labels != PADDING].round().int().tolist():
            outside[max(0, y1 - 2) : y2 + 2, max(0, x1 - 2) : x2 + 2] = False
        assert outside.float().mean() < 0.02
    assert checked > 12


def test_doubtful_boxes_are_unsure_and_the_same_seed_gives_the_same_views(bank: Bank) -> None:
    doubtful = Bank([bank.scenes[2]], [], *cutout_tensors([]), bank.classes, {})
    made = []
    for _ in range(2):
        torch.manual_seed(5)
        made.append(ViewMaker(doubtful, torch.device("cpu")).batch(4, (224, 288)))
    assert set(made[0].labels.flatten().tolist()) == {UNSURE, PADDING}
    assert torch.equal(made[0].pixels, made[1].pixels)
