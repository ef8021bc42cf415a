"""Targets, losses and the loop of a detector, against cases by hand and on one picture."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from costream.frontends.crops import Pixels
from costream.models.eventful.vitdet import ViTDet
from costream.nn.boxes import pairwise_iou
from costream.training.objects.augment import LabelledImage, TrainingView
from costream.training.objects.losses import (
    IGNORED,
    NOTHING,
    BoxSample,
    MapHead,
    assign,
    detector_losses,
    draw,
    head_loss,
    map_loss,
    match,
    proposal_loss,
    sample_boxes,
)
from weights.recipes.objects.data import ViewSource
from weights.recipes.objects.loop import DetectorSchedule, DetectorTrainer, take_step, train

TINY: dict[str, Any] = {
    "classes": 4,
    "dim": 32,
    "heads": 2,
    "depth": 2,
    "global_blocks": (1,),
    "size": (6, 6),
    "window": (3, 3),
    "position_size": (6, 6),
    "mlp_ratio": 2,
    "stem": (8, 16),
    "channels": 16,
    "width": 32,
    "convolutions": 0,
    "proposals": 20,
    "candidates": 50,
}


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def rows(*boxes: tuple[float, ...]) -> Tensor:
    return torch.tensor(boxes, dtype=torch.float32).view(-1, 4)


def test_matching_by_hand() -> None:
    shared = torch.tensor([[0.8, 0.1], [0.5, 0.2], [0.2, 0.1], [0.0, 0.29], [0.0, 0.0]])
    assert match(shared, 0.7, 0.3).tolist() == [0, IGNORED, NOTHING, NOTHING, NOTHING]
    # the second true box has no anchor of its own: the one nearest to it is taken
    assert match(shared, 0.7, 0.3, best=True).tolist() == [0, IGNORED, NOTHING, 1, NOTHING]
    assert match(torch.zeros(3, 0), 0.7, 0.3, best=True).tolist() == [NOTHING] * 3


def test_a_true_box_that_nothing_touches_matches_nothing() -> None:
    assert match(torch.zeros(2, 1), 0.7, 0.3, best=True).tolist() == [NOTHING, NOTHING]


def test_drawing_keeps_to_the_share_and_the_count() -> None:
    matched = torch.tensor([0] * 50 + [NOTHING] * 50 + [IGNORED] * 50)
    something, nothing = draw(matched, 20, 0.25)
    assert len(something) == 5
    assert len(nothing) == 15
    assert bool((matched[something] == 0).all())
    assert bool((matched[nothing] == NOTHING).all())
    few, rest = draw(torch.tensor([0, NOTHING]), 20, 0.5)
    assert few.tolist() == [0]
    assert rest.tolist() == [1]


def test_samples_say_what_they_are_and_where_it_is() -> None:
    truth, labels = rows((0, 0, 10, 10), (20, 20, 40, 40)), torch.tensor([2, 1])
    proposals = rows((0, 0, 10, 9), (21, 20, 40, 40), (60, 60, 70, 70))
    sample = sample_boxes(proposals, truth, labels, 4, 12)
    found = dict(zip(map(tuple, sample.boxes.tolist()), sample.labels.tolist(), strict=True))
    assert found == {
        (0, 0, 10, 9): 2,
        (21, 20, 40, 40): 1,
        (60, 60, 70, 70): 4,
        (0, 0, 10, 10): 2,
        (20, 20, 40, 40): 1,
    }
    something = sample.boxes[: len(sample.targets)]
    assert bool((pairwise_iou(something, sample.targets).diagonal() >= 0.5).all())


def test_the_loss_of_proposals_by_hand() -> None:
    anchors = [rows((0, 0, 10, 10), (50, 50, 60, 60)), rows((0, 0, 10, 15))]
    logits = [torch.tensor([[0.0, 0.0]]), torch.tensor([[9.0]])]  # the third is ignored: 2 / 3
    deltas = [torch.full((1, 2, 4), 0.1), torch.zeros(1, 1, 4)]
    loss = proposal_loss(list(zip(logits, deltas, strict=True)), anchors, [rows((0, 0, 10, 10))])
    assert float(loss) == pytest.approx((2 * math.log(2) + 4 * 0.1) / 2)


def test_without_objects_proposals_learn_nothing_but_that() -> None:
    predicted = [(torch.zeros(1, 2), torch.ones(1, 2, 4))]
    loss = proposal_loss(predicted, [rows((0, 0, 10, 10), (5, 5, 9, 9))], [torch.zeros(0, 4)])
    assert float(loss) == pytest.approx(math.log(2))


def test_the_loss_of_heads_by_hand() -> None:
    sample = BoxSample(
        rows((0, 0, 10, 10), (0, 0, 4, 4)), torch.tensor([1, 2]), rows((1, 0, 11, 10))
    )
    logits = torch.zeros(2, 3)
    deltas = torch.zeros(2, 2, 4)
    deltas[0, 0] = 7.0  # of a class that it is not
    # it is to move by a tenth of its width, times 10
    assert float(head_loss(logits, deltas, [sample])) == pytest.approx(math.log(3) + 1.0 / 2)


def test_nothing_is_to_be_learnt_from_a_teacher_that_is_agreed_with() -> None:
    teacher = [torch.rand(2, 4, 4, 3) * 0.9 + 0.05]
    agreed = [t.logit().requires_grad_() for t in teacher]
    loss = map_loss(agreed, teacher)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(0, abs=1e-5)
    assert float(agreed[0].grad.abs().max()) < 1e-6  # type: ignore[union-attr]
    assert float(map_loss([torch.zeros(2, 4, 4, 3)], teacher)) > 0.01


def test_each_place_of_a_map_is_said_by_its_own_token() -> None:
    tokens = torch.randn(1, 4, 6, 8, requires_grad=True)
    maps = MapHead(8, 3)(tokens)
    assert [m.shape[1:3] for m in maps] == [(8, 12), (4, 6), (2, 3)]
    for place, (y, x) in (((5, 2), (2, 1)), ((0, 11), (0, 5))):
        (slope,) = torch.autograd.grad(maps[0][0][place].sum(), tokens, retain_graph=True)
        assert slope[0].abs().sum(-1).nonzero().tolist() == [[y, x]]


def picture() -> LabelledImage:
    pixels = torch.full((3, 96, 96), 90, dtype=torch.uint8)
    pixels[0, 16:56, 24:72] = 230
    return LabelledImage(pixels, rows((24, 16, 72, 56)), torch.tensor([1]))


def nobody(pixels: Tensor) -> list[Tensor]:
    """A teacher that sees nothing."""
    size = (pixels.shape[2], pixels.shape[3])
    return [torch.zeros(len(pixels), size[0] // s, size[1] // s, 81) for s in (8, 16, 32)]


def test_one_picture_is_learnt_by_heart() -> None:
    scene = picture()
    learner = DetectorTrainer(
        ViTDet(**TINY), DetectorSchedule(90, warm_up=5, rate=4e-3, average=0.8)
    )
    view = TrainingView(scene.pixels, scene.boxes, scene.labels)
    first = None
    for _ in range(90):
        loss = learner.learn(scene.pixels[None], [view], nobody(scene.pixels[None]))
        first = loss if first is None else first
    assert float(loss.sum()) < 0.35 * float(first.sum())
    with torch.no_grad():
        (found,) = learner.finished()(Pixels((96, 96))(scene.pixels[None]))
    assert found.labels[0] == 1
    assert found.scores[0] > 0.5
    assert pairwise_iou(found.boxes[:1], scene.boxes) > 0.6


def test_each_stage_of_a_cascade_learns_from_the_boxes_of_the_one_before() -> None:
    """By heart, as above; the maps get the mean of what the stages want of them."""
    scene = picture()
    torch.manual_seed(1)
    network = ViTDet(**{**TINY, "cascade": True, "classes": 2})
    pictures = Pixels((96, 96))(scene.pixels[None])
    optimizer = torch.optim.AdamW(network.parameters(), 3e-3)
    for _ in range(120):
        tokens = network.backbone(network.embed(pictures))
        losses = detector_losses(network, tokens, (96, 96), [scene.boxes], [scene.labels])
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    stages = network.roi_heads.stages()
    assert all(predictor.bbox_pred.weight.grad.abs().sum() > 0 for _, predictor in stages)
    with torch.no_grad():
        (found,) = network.eval()(pictures)
    assert found.labels[0] == 1
    assert found.scores[0] > 0.5
    assert pairwise_iou(found.boxes[:1], scene.boxes) > 0.7


def test_later_stages_ask_for_more() -> None:
    boxes = rows((0, 0, 10, 10), (0, 0, 10, 6.5), (3, 3, 3, 9), (50, 50, 60, 60))
    truth, labels = rows((0, 0, 10, 10)), torch.tensor([1])
    for overlap, said in ((0.6, [1, 1, 2]), (0.7, [1, 2, 2])):
        sample = assign(boxes, truth, labels, 2, overlap)
        assert sample.labels.tolist() == said
        assert len(sample.targets) == said.count(1)
    assert assign(boxes, rows(), torch.tensor([]).long(), 2, 0.6).labels.tolist() == [2, 2, 2]


def test_deltas_of_a_later_stage_have_its_weights() -> None:
    sample = BoxSample(
        rows((0, 0, 10, 10), (0, 0, 4, 4)), torch.tensor([1, 2]), rows((1, 0, 11, 10))
    )
    deltas = torch.zeros(2, 1, 4)  # those of any class
    loss = head_loss(torch.zeros(2, 3), deltas, [sample], 2)
    assert float(loss) == pytest.approx(math.log(3) + 3.0 / 2)


def test_a_course_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    supply = ViewSource([picture()], [[picture()]], [])
    course = DetectorSchedule(4, batch=1, warm_up=1)
    begun = ViTDet(**TINY)
    stopped = DetectorTrainer(copy.deepcopy(begun), course)
    whole = DetectorTrainer(copy.deepcopy(begun), course)
    whole.maps.load_state_dict(stopped.maps.state_dict())
    for _ in range(2):
        take_step(stopped, supply, nobody, 0)
    stopped.save(tmp_path / "stopped")
    parts = train(DetectorTrainer(ViTDet(**TINY), course), supply, nobody, 0, tmp_path / "stopped")
    expected = train(whole, supply, nobody, 0, tmp_path / "whole").state_dict()
    for name, value in parts.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=0)


def test_the_rate_rises_and_falls() -> None:
    course = DetectorSchedule(1000, rate=1.0, warm_up=100)
    rates = np.array([course.rate_at(k) for k in range(1000)])
    assert rates.argmax() in (99, 100)
    assert rates.max() == 1.0
    assert rates[-1] < 0.02
    assert bool((np.diff(rates[100:]) < 0).all())
