"""The skeleton packs, the recipe from the packs to weights, and the shipped weights on them."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest

from costream.core.layouts import BODY_15
from costream.models.catalogue import load_model
from costream.weights_io.file import read_weights
from kit.data_packs import packs as needed
from kit.paths import RESEARCH
from weights.recipes.skeleton.pairs import read_pairs
from weights.recipes.skeleton.pictures import read_films
from weights.recipes.skeleton.scoring import SkeletonWeights, score
from weights.recipes.skeleton.sets import MIRRORED, SETS, labels_of
from weights.recipes.skeleton.sets import read_set as read_pack
from weights.recipes.skeleton.train import MODELS, SkeletonOptions, SkeletonRecipeSize, make

FILES = {name: f"skel_{name}.npz" for name in SETS}


@cache
def read_set(folder, name):
    return read_pack(folder, name)


@pytest.fixture(scope="module")
def packs():
    return needed(*FILES.values())


def test_splits_by_person_and_style(packs):
    counts = {
        name: Counter(m.group for m in read_set(packs, name)) for name in ("msraction3d", "bandai")
    }
    subjects = [counts["msraction3d"][f"subject {k}"] for k in range(1, 9)]
    assert subjects == [60, 56, 56, 37, 57, 57, 59, 60]
    styles = {"active": 584, "normal": 465, "feminine": 406, "exhausted": 353, "elderly": 314}
    assert {k: v for k, v in counts["bandai"].items() if not k.startswith("1 ")} == styles
    # The styles of the test are in the other part of Bandai too, where nothing is learnt of them.
    assert not {"1 feminine", "1 old"} & set(counts["bandai"])


def test_gtu3d_at_half_its_rate(packs):
    motions = read_set(packs, "gtu3d")
    assert len(motions) == 399  # people who stand ("crouch") are left out
    assert max(len(m.joints) for m in motions) == 98
    groups = Counter(m.group for m in motions)
    assert groups["late"] == 72
    assert groups["middle"] == 57


@pytest.mark.parametrize("name", list(SETS))
def test_no_group_is_on_two_sides_and_no_label_without_motions(packs, name):
    own, motions = SETS[name], read_set(packs, name)
    groups = {m.group for m in motions}
    assert set(own.test) <= groups
    assert set(own.validation) <= groups
    assert not set(own.test) & set(own.validation)
    train = [m for m in motions if m.group not in (*own.test, *own.validation)]
    assert set(labels_of(motions)) == set(labels_of(train))


def test_mirrored_labels_come_in_pairs(packs):
    known = {label for name in SETS for label in labels_of(read_set(packs, name))}
    for label, twin in MIRRORED.items():
        assert label in known
        assert twin is None or MIRRORED[twin] == label


@pytest.mark.parametrize("name", [*SETS, "jhmdb2d", "sbu"])
def test_hips_are_at_the_hip_joints(name):
    """Within a third of the trunk of their middle: a torso is no hips."""
    folder = needed(f"skel_{name}.npz")
    if name == "jhmdb2d":
        motions = [m for test in (False, True) for m in read_films(folder, test=test)]
    else:
        motions = [m for _, m in read_pairs(folder)] if name == "sbu" else read_set(folder, name)
    x = np.concatenate([m.joints.reshape(-1, 15, m.joints.shape[-1]) for m in motions])
    x = x[(x[..., -1] > 0).all(1)][..., :-1]
    hips, neck, between = x[:, 0], x[:, 1], (x[:, 9] + x[:, 12]) / 2
    trunk = np.median(np.linalg.norm(neck - between, axis=1))
    away = np.median(np.linalg.norm(hips - between, axis=1))
    assert away < trunk / 3
    if name in ("florence3d", "jhmdb2d", "sbu"):  # which have none
        np.testing.assert_allclose(hips, between, atol=1e-4)


@pytest.mark.parametrize("name", list(SETS))
def test_bodies_stand_upright_and_left_is_left(packs, name):
    joints = np.concatenate([m.joints[:3, 0] for m in read_set(packs, name)])
    x = joints[joints[..., 3].all(1)][..., :3]
    child, parent = np.array(BODY_15.bones).T
    assert np.linalg.norm(x[:, child] - x[:, parent], axis=-1).mean() == pytest.approx(1, abs=0.05)
    neck, head, hips, ankles = x[:, 1], x[:, 2], x[:, 0], x[:, [11, 14]].mean(1)
    assert np.median(head[:, 1] - neck[:, 1]) > 0.1
    assert np.median(hips[:, 1] - ankles[:, 1]) > 1
    across = x[:, 6] - x[:, 3]  # left to right
    ahead = np.cross(neck - hips, across)
    # Elbows bend towards the front.
    elbows = x[:, [4, 7]].mean(1) - x[:, [3, 6]].mean(1)
    wrists = x[:, [5, 8]].mean(1) - x[:, [4, 7]].mean(1)
    assert np.median(((wrists - elbows) * ahead).sum(1)) > 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "floor", "every"),
    [("msraction3d", 0.8, 2), ("bandai", 0.65, 24), ("gtu3d", 0.8, 2), ("utdmhad", 0.9, 4)],
)
def test_the_shipped_weights_on_the_motions_of_the_recipe(name, floor, every):
    model = load_model(str(RESEARCH / "costgcn.safetensors"))
    card = model.info.card
    shipped = SkeletonWeights(model.network, model.frontend, card.timeline, card.rate_hz)
    motions = read_set(needed(FILES[name]), name)
    held_out = [m for m in motions if m.group in SETS[name].test][::every]
    found = score(shipped, held_out, card.labels, labels_of(motions), 0)
    assert found["top1"] >= floor
    assert found["top1_background"] <= found["top1_all"]


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_the_recipe_makes_weights_that_run(packs, tmp_path, name):
    pytest.importorskip("sklearn")
    size = SkeletonRecipeSize(steps=2, last=1, streams=2, every=32, trees=2)
    learnt = make(packs, size, 0, tmp_path, SkeletonOptions(name=name, learn_only=True))
    assert learnt == tmp_path / f"{name}-last.partial"
    path = make(packs, size, 0, tmp_path, SkeletonOptions(name=name))
    card = load_model(str(path)).info.card
    assert card.name == name
    assert card.background == card.labels[0] == "background"
    for models in card.metrics.values():
        assert list(models) in ([name, "tree ensemble", "majority"], [name])
        assert 0 <= models[name]["top1"] <= 1
    text = path.with_suffix(".md").read_text("utf-8")
    assert "Research use only" in text
    assert "| tree ensemble |" in text
    path = make(packs, size, 0, tmp_path / "again", SkeletonOptions(path, name=name, share=0.0))
    first, again = (read_weights(tmp_path / f / f"{name}.safetensors") for f in ("", "again"))
    bias = "network.fc.bias"  # the background's is chosen anew
    assert again.tensors.pop(bias)[1:].equal(first.tensors.pop(bias)[1:])
    assert all(again.tensors[k].equal(v) for k, v in first.tensors.items() if "num_" not in k)
    assert "0% of the way" in again.card.split
