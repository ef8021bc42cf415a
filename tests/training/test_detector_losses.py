"""Targets and losses of a detector, against cases by hand and on one picture."""

from __future__ import annotations

import math

import pytest
import torch

from costream.models.eventful.vitdet import ViTDet
from costream.models.images import Pixels
from costream.nn.boxes import pairwise_iou
from costream.training.objects.losses import (
    IGNORED,
    NOTHING,
    BoxSample,
    assign,
    detector_losses,
    draw,
    head_loss,
    match,
    proposal_loss,
    sample_boxes,
)
from kit.data_objects import SQUARE_NETWORK, box_rows, red_box_picture


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


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
    truth, labels = box_rows((0, 0, 10, 10), (20, 20, 40, 40)), torch.tensor([2, 1])
    proposals = box_rows((0, 0, 10, 9), (21, 20, 40, 40), (60, 60, 70, 70))
    sample = sample_boxes(proposals, truth, labels, 4, 12, box_rows((80, 80, 90, 90)))
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
    # what may be something is not called nothing
    unsure = sample_boxes(proposals, truth, labels, 4, 12, box_rows((60, 60, 70, 72)))
    assert sorted(unsure.labels.tolist()) == [1, 1, 2, 2]


def test_the_loss_of_proposals_by_hand() -> None:
    anchors = [box_rows((0, 0, 10, 10), (50, 50, 60, 60)), box_rows((0, 0, 10, 15))]
    logits = [torch.tensor([[0.0, 0.0]]), torch.tensor([[9.0]])]  # the third is ignored: 2 / 3
    deltas = [torch.full((1, 2, 4), 0.1), torch.zeros(1, 1, 4)]
    loss = proposal_loss(
        list(zip(logits, deltas, strict=True)), anchors, [box_rows((0, 0, 10, 10))], [box_rows()]
    )
    assert float(loss) == pytest.approx((2 * math.log(2) + 4 * 0.1) / 2)
    loss = proposal_loss(
        list(zip(logits, deltas, strict=True)),
        anchors,
        [box_rows((0, 0, 10, 10))],
        [box_rows((50, 50, 60, 55))],  # an anchor on an unsure box learns nothing
    )
    assert float(loss) == pytest.approx(math.log(2) + 4 * 0.1)


def test_without_objects_proposals_learn_nothing_but_that() -> None:
    predicted = [(torch.zeros(1, 2), torch.ones(1, 2, 4))]
    nothing = [torch.zeros(0, 4)]
    anchors = [box_rows((0, 0, 10, 10), (5, 5, 9, 9))]
    loss = proposal_loss(predicted, anchors, nothing, nothing)
    assert float(loss) == pytest.approx(math.log(2))


def test_the_loss_of_heads_by_hand() -> None:
    sample = BoxSample(
        box_rows((0, 0, 10, 10), (0, 0, 4, 4)), torch.tensor([1, 2]), box_rows((1, 0, 11, 10))
    )
    logits = torch.zeros(2, 3)
    deltas = torch.zeros(2, 2, 4)
    deltas[0, 0] = 7.0  # of a class that it is not
    # it is to move by a tenth of its width, times 10
    assert float(head_loss(logits, deltas, [sample])) == pytest.approx(math.log(3) + 1.0 / 2)


@pytest.mark.long
def test_each_stage_of_a_cascade_learns_from_the_boxes_of_the_one_before() -> None:
    """By heart, as above; the maps get the mean of what the stages want of them."""
    scene = red_box_picture()
    torch.manual_seed(1)
    network = ViTDet(**{**SQUARE_NETWORK, "cascade": True, "classes": 2})
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
    boxes = box_rows((0, 0, 10, 10), (0, 0, 10, 6.5), (3, 3, 3, 9), (50, 50, 60, 60))
    truth, labels = box_rows((0, 0, 10, 10)), torch.tensor([1])
    for overlap, said in ((0.6, [1, 1, 2]), (0.7, [1, 2, 2])):
        sample = assign(boxes, truth, labels, 2, overlap)
        assert sample.labels.tolist() == said
        assert len(sample.targets) == said.count(1)
    assert assign(boxes, box_rows(), torch.tensor([]).long(), 2, 0.6).labels.tolist() == [2, 2, 2]


def test_deltas_of_a_later_stage_have_its_weights() -> None:
    sample = BoxSample(
        box_rows((0, 0, 10, 10), (0, 0, 4, 4)), torch.tensor([1, 2]), box_rows((1, 0, 11, 10))
    )
    deltas = torch.zeros(2, 1, 4)  # those of any class
    loss = head_loss(torch.zeros(2, 3), deltas, [sample], 2)
    assert float(loss) == pytest.approx(math.log(3) + 3.0 / 2)
