"""Training loop of the shipped detector: losses of the teacher's maps, resumption, schedule."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from costream.models.eventful.vitdet import ViTDet
from costream.models.images import Pixels
from costream.nn.boxes import pairwise_iou
from kit.data_objects import SQUARE_NETWORK, red_box_picture
from weights.recipes.objects.loop import (
    DetectorSchedule,
    DetectorTrainer,
    MapHead,
    map_loss,
    take_step,
    train,
)
from weights.recipes.objects.teacher import TeacherMaps
from weights.recipes.objects.views import ViewBatch

NETWORK = {**SQUARE_NETWORK, "stem": [], "ghost": 8, "first": 1, "anchor": 24.0}
NETWORK["shuffle"] = [[8, 1], [16, 1], [16, 1]]


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def test_nothing_is_to_be_learnt_from_a_teacher_that_is_agreed_with() -> None:
    teacher = [torch.rand(2, 4, 4, 3) * 0.9 + 0.05]
    agreed = [t.logit().requires_grad_() for t in teacher]
    loss = map_loss(agreed, teacher)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(0, abs=1e-5)
    assert float(agreed[0].grad.abs().max()) < 1e-6  # type: ignore[union-attr]
    assert float(map_loss([torch.zeros(2, 4, 4, 3)], teacher)) > 0.01


def test_each_place_of_a_map_is_reported_by_its_own_token() -> None:
    tokens = torch.randn(1, 4, 6, 8, requires_grad=True)
    maps = MapHead(8, 3)(tokens)
    assert [m.shape[1:3] for m in maps] == [(8, 12), (4, 6), (2, 3)]
    for place, (y, x) in (((5, 2), (2, 1)), ((0, 11), (0, 5))):
        (slope,) = torch.autograd.grad(maps[0][0][place].sum(), tokens, retain_graph=True)
        assert slope[0].abs().sum(-1).nonzero().tolist() == [[y, x]]


class OnePicture:
    """Views that are always the same picture."""

    def shape(self, rng: np.random.Generator) -> tuple[int, int]:
        """Return its size."""
        return 96, 96

    def batch(self, count: int, shape: tuple[int, int]) -> ViewBatch:
        """Return the picture."""
        scene = red_box_picture()
        return ViewBatch(scene.pixels[None].float(), scene.boxes[None], scene.labels[None])


def learner_of(network: ViTDet, course: DetectorSchedule) -> DetectorTrainer:
    """Return the trainer of a network whose teacher sees nothing."""
    teacher = TeacherMaps(NETWORK["shuffle"], NETWORK["ghost"])
    for head in teacher.heads:
        nn.init.zeros_(head[-1].weight)  # type: ignore[index,arg-type]
        nn.init.constant_(head[-1].bias, -20.0)  # type: ignore[index,arg-type]
    groups = [[k] for k in range(network.classes)]
    return DetectorTrainer(network, teacher, groups, course, torch.device("cpu"))


@pytest.mark.long
@pytest.mark.parametrize("stem", [0.0, 0.5])
def test_one_picture_is_learnt_by_heart(stem: float) -> None:
    scene, network = red_box_picture(), ViTDet(**NETWORK)
    course = DetectorSchedule(90, batch=1, rate=4e-3, average=0.8, stem=stem)
    learner, supply, first = learner_of(network, course), OnePicture(), None
    before = [layer.weight.clone() for layer in network.embedding.pretrained()]
    for _ in range(90):
        loss = take_step(learner, supply, 0)
        first = loss if first is None else first
    after = [layer.weight for layer in network.embedding.pretrained()]
    assert all(map(torch.equal, before, after)) == (stem == 0)
    assert float(loss.sum()) < 0.35 * float(first.sum())
    with torch.no_grad():
        (found,) = learner.mean(Pixels((96, 96))(scene.pixels[None]))
    assert found.labels[0] == 1
    assert found.scores[0] > 0.5
    assert pairwise_iou(found.boxes[:1], scene.boxes) > 0.6


@pytest.mark.long
def test_an_interrupted_course_continues_as_if_uninterrupted(tmp_path: Path) -> None:
    course, begun, lines = DetectorSchedule(4, batch=1), ViTDet(**NETWORK), []
    stopped, whole = (learner_of(copy.deepcopy(begun), course) for _ in range(2))
    whole.maps.load_state_dict(stopped.maps.state_dict())
    for _ in range(2):
        take_step(stopped, OnePicture(), 0)
    stopped.save(tmp_path / "stopped")
    again = learner_of(ViTDet(**NETWORK), course)
    found, expected = (
        train(learner, OnePicture(), 0, tmp_path / name, lambda _: "judged", lines.append)
        for learner, name in ((again, "stopped"), (whole, "whole"))
    )
    for name, value in found.state_dict().items():
        torch.testing.assert_close(value, expected.state_dict()[name], rtol=0, atol=0)
    starts = [line for line in lines if line.endswith("judged")]
    assert starts == ["begins at step 2: judged", "begins at step 0: judged"]


def test_a_training_of_some_seconds_ends_after_them(tmp_path: Path) -> None:
    learner = learner_of(ViTDet(**NETWORK), DetectorSchedule(10**9, seconds=0.5, batch=1))
    train(learner, OnePicture(), 0, tmp_path / "some", lambda _: "", lambda _: None)
    assert learner.done >= 1
    assert 0 < learner.step < 1000
    assert learner.elapsed < 30


def test_the_rate_rises_and_falls() -> None:
    course = DetectorSchedule(1000, rate=1.0, warm_up=0.1)
    rates = np.array([course.rate_at(k / 1000) for k in range(1000)])
    assert rates.argmax() == 100
    assert rates.max() == 1.0
    assert rates[-1] < 0.02
    assert bool((np.diff(rates[100:]) < 0).all())
