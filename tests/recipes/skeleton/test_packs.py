"""The skeleton packs, the recipe from the packs to weights, and the shipped weights on them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from costream.models.registry import load_model
from kit.data_packs import packs as needed
from weights.recipes.skeleton.data import PACKS, read_pack
from weights.recipes.skeleton.train import PARTS, SkeletonRecipeSize, make, score

FLOORS = {"msraction3d": 0.85, "bandai": 0.72, "gtu3d": 0.8}
EVERY = {"bandai": 8}  # a part of many motions is enough


@pytest.fixture(scope="module")
def packs():
    return needed(*PACKS.values())


def test_msr_action3d_by_subject(packs):
    motions = read_pack(packs, "msraction3d")
    subjects = Counter(m.group for m in motions)
    assert [subjects[f"subject {k}"] for k in range(1, 9)] == [60, 56, 56, 37, 57, 57, 59, 60]
    assert len({m.label for m in motions}) == 20


def test_bandai_by_style(packs):
    motions = read_pack(packs, "bandai")
    counts = {"active": 584, "normal": 465, "feminine": 406, "exhausted": 353, "elderly": 314}
    assert Counter(m.group for m in motions) == counts
    assert len({m.label for m in motions}) == 10


def test_gtu3d_at_half_its_rate(packs):
    motions = read_pack(packs, "gtu3d")
    assert len(motions) == 440
    assert len({m.label for m in motions}) == 14
    assert max(len(m.joints) for m in motions) == 98
    assert Counter(m.group for m in motions)["late"] == sum(
        n // 5 for n in Counter(m.label for m in motions).values()
    )


@pytest.mark.parametrize("name", list(PACKS))
def test_bodies_stand_upright_and_left_is_left(packs, name):
    joints = np.concatenate([m.joints[:3, 0] for m in read_pack(packs, name)])
    x = joints[joints[..., 3].all(1)][..., :3]
    neck, head, hips, ankles = x[:, 1], x[:, 2], x[:, 0], x[:, [11, 14]].mean(1)
    assert np.median(head[:, 1] - neck[:, 1]) > 0.05
    assert np.median(hips[:, 1] - ankles[:, 1]) > 0.4
    across = x[:, 6] - x[:, 3]  # left to right
    ahead = np.cross(np.median(neck - hips, 0), across)
    # Knees and elbows bend towards the front and the back.
    elbows = x[:, [4, 7]].mean(1) - x[:, [3, 6]].mean(1)
    wrists = x[:, [5, 8]].mean(1) - x[:, [4, 7]].mean(1)
    assert np.median(((wrists - elbows) * ahead).sum(1)) > 0


@pytest.mark.parametrize("name", list(PACKS))
def test_the_card_is_reproduced(name):
    folder = needed(PACKS[name])
    model = load_model("costgcn", device="cpu")
    card, part = model.info.card, PARTS[name]
    motions = read_pack(folder, name)
    own = sorted({m.label for m in motions})
    held_out = [m for m in motions if m.group in part.held_out][:: EVERY.get(name, 1)]
    found = score(model.network, model.frontend, held_out, card.labels, own, 0)
    told = card.metrics[part.title]["costgcn"]
    # Another processor may round a close call the other way.
    tolerance = 0.06 if name in EVERY else 1.5 / len(held_out)
    for key in ("top1", "top1_all", "top1_background", "top1_last"):
        assert found[key] == pytest.approx(told[key], abs=tolerance), key
    assert found["timeline"] == pytest.approx(told["timeline"], abs=2 * tolerance)
    assert found["top1"] >= FLOORS[name]


@pytest.mark.slow
def test_the_recipe_makes_weights_that_run(packs, tmp_path):
    pytest.importorskip("sklearn")
    path = make(packs, SkeletonRecipeSize(steps=2, every=40, trees=2), 0, tmp_path)
    card = load_model(str(path)).info.card
    assert card.background == card.labels[0] == "background"
    assert list(card.metrics) == [part.title for part in PARTS.values()]
    for models in card.metrics.values():
        assert list(models) == ["costgcn", "per-frame network", "tree ensemble", "majority"]
        assert 0 <= models["costgcn"]["top1"] <= 1
    text = (tmp_path / "costgcn.md").read_text("utf-8")
    assert "Research use only" in text
    assert "| tree ensemble |" in text
