"""Training of NanoDet on custom objects: its losses, initial weights, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from costream.models.build import save_model
from costream.models.objects.nanodet import BINS, places
from costream.models.random_init import random_model
from costream.nn.boxes import pairwise_iou
from costream.training.objects.nanodet_trainer import NanoDetTrainer
from costream.training.objects.quality_losses import assign, quality_loss
from costream.weights_io.file import Weights, read_card, read_weights
from kit import data_objects
from kit.data_training import train_settings
from kit.paths import WEIGHTS
from kit.program import costream
from kit.runs import run

SIZE = (64, 96)
SMALL: dict[str, Any] = {"stages": [[16, 1], [24, 1], [32, 1]], "width": 16}


def written(path: Path, labels: tuple[str, ...] = ("thing",)) -> Path:
    card, network, frontend = random_model("nanodet", "tiny", {**SMALL, "classes": len(labels)})
    object.__setattr__(card, "labels", labels)
    save_model(path, card, network, frontend)
    return path


def rows_of(boxes: Tensor, scores: Tensor) -> Tensor:
    """Return rows whose boxes are these, [P, 4], as far as bins reach, and scores [P, K]."""
    centres, strides = places(SIZE, boxes.device)
    reach = torch.cat([centres - boxes[:, :2], boxes[:, 2:] - centres], 1) / strides
    reach = reach.clamp(0, BINS - 1.01)
    lower, bins = reach.long(), torch.full((len(boxes), 4, BINS), -40.0, dtype=boxes.dtype)
    bins.scatter_(2, lower[..., None], (1 - reach + lower).clamp(min=1e-12).log()[..., None])
    bins.scatter_(2, lower[..., None] + 1, (reach - lower).clamp(min=1e-12).log()[..., None])
    return torch.cat([torch.logit(scores), bins.flatten(1)], 1)


def random_truth(seed: int, count: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, (60, 40), (count, 2))
    boxes = np.concatenate([low, low + rng.uniform(10, (36, 24), (count, 2))], 1)
    return torch.from_numpy(boxes), torch.from_numpy(rng.integers(0, 3, count))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 4))
def test_every_object_is_learnt_at_places_inside_it_first(seed: int, count: int) -> None:
    truth, labels = random_truth(seed, count)
    torch.manual_seed(seed)
    centres, _ = places(SIZE, truth.device)
    logits, boxes = torch.randn(len(centres), 3).double(), torch.rand(len(centres), 4).double() * 60
    boxes[:, 2:] += boxes[:, :2]
    at, matched = assign(boxes, logits, SIZE, truth, labels)
    assert len(set(at.tolist())) == len(at) == len(matched)
    assert set(matched.tolist()) <= set(range(count))
    if count:
        assert len(at)
    for place, number in zip(at, matched, strict=True):
        x1, y1, x2, y2 = truth[number].tolist()
        x, y = centres[place].tolist()
        assert x1 < x < x2
        assert y1 < y < y2


def test_the_loss_is_least_where_boxes_and_scores_are_right() -> None:
    """In float64: perfect predictions, and all that differ from them by one thing."""
    truth = torch.tensor([[20.0, 12.0, 60.0, 52.0]]).double()
    labels = torch.tensor([1])
    centres, _ = places(SIZE, truth.device)
    boxes = truth.expand(len(centres), 4).clone()
    nothing = torch.full((len(centres), 3), 1e-4).double()
    at, _ = assign(boxes, torch.logit(nothing), SIZE, truth, labels)
    right = nothing.clone()
    right[at, 1] = 1 - 1e-4

    def loss(boxes: Tensor, scores: Tensor) -> float:
        return float(quality_loss(rows_of(boxes, scores)[None], SIZE, [truth], [labels]))

    wrong_class = nothing.clone()
    wrong_class[at, 2] = 1 - 1e-4
    somewhere = right.clone()
    somewhere[-1, 0] = 0.9
    best = loss(boxes, right)
    assert best < 0.2
    for changed in (loss(boxes + 6, right), loss(boxes, wrong_class), loss(boxes, somewhere)):
        assert changed > 1.2 * best


def test_a_picture_without_objects_learns_that_there_are_none() -> None:
    rows = torch.zeros(1, len(places(SIZE, torch.device("cpu"))[0]), 3 + 4 * BINS).double()
    nothing = torch.zeros(0, 4).double(), torch.zeros(0, dtype=torch.int64)
    loss = quality_loss(rows, SIZE, [nothing[0]], [nothing[1]])
    logits = rows[..., :3]
    zeros = torch.zeros_like(logits)
    crossed = F.binary_cross_entropy_with_logits(logits, zeros, reduction="sum")
    torch.testing.assert_close(loss, 0.25 * crossed)  # the focus is the squared score, a quarter


def test_labels_that_are_known_keep_their_rows(tmp_path: Path) -> None:
    stored: Weights = read_weights(written(tmp_path / "b.safetensors", ("car", "cat", "dog")))
    trainer = NanoDetTrainer()
    network, _, card, encoder = trainer.setup(
        stored, ("ant", "cat"), train_settings(tmp_path / "o")
    )
    assert card.arguments["classes"] == 2
    assert encoder is network.backbone
    for level in range(4):
        before = stored.tensors[f"network.heads.{level}.4.weight"]
        after = network.heads[level][4].weight
        assert torch.equal(after[1], before[1])
        torch.testing.assert_close(after[0], before[:3].mean(0))
        assert torch.equal(after[2:], before[3:])


@pytest.mark.slow
def test_a_training_learns_and_its_weights_run(tmp_path: Path) -> None:
    """The shipped weights, few steps: bright things are found in other pictures."""
    labels = data_objects.write_pictures(tmp_path / "pictures", 10)
    output = tmp_path / "things.safetensors"
    given = ("--data", tmp_path / "pictures", "--labels", labels, "-o", output, "--no-cache")
    done = run("train", "nanodet@96", *given, "--steps", 45)
    card = read_card(output)
    assert card.labels == data_objects.KINDS
    assert card.frontend_arguments["box"] == [96, 96]
    assert "started from nanodet, backbone frozen" in card.trained_on
    assert "Apache-2.0" in card.licence
    scores = card.metrics["validation"]
    assert list(scores) == ["things", "nearest centroid of boxes"]
    assert scores["things"]["AP50"] > 0.5
    assert "\nshown from a score of " in done.stdout
    assert "\nverdict: " in done.stdout
    old, new = (read_weights(path).tensors for path in (WEIGHTS / "nanodet.safetensors", output))
    assert torch.equal(*(part["network.backbone.first.bias"].float() for part in (old, new)))
    found = run("detect", tmp_path / "pictures" / "003.png", "-m", output, "-f", "jsonl")
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    (boxes,) = [row["boxes"] for row in rows if row["type"] == "objects"]
    assert {box[5] for box in boxes} == set(data_objects.KINDS)
    truth = torch.tensor([list(map(float, box)) for _, box in data_objects.draw(3)[1]])
    best = pairwise_iou(torch.tensor([box[:4] for box in boxes]).float(), truth).amax(0)
    assert best.min() > 0.5


@pytest.mark.slow
def test_what_does_not_apply_is_one_line(tmp_path: Path) -> None:
    given = ("--data", tmp_path, "--labels", tmp_path, "-o", tmp_path / "o.safetensors")
    done = costream("train", "nanodet", *given, "--density", 0.5)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "costream: --density: does not apply to nanodet; train eventful-vitdet"
    )
