"""The fir_action pack, and the action recipe from the pack to weights."""

from __future__ import annotations

import json
import tarfile
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from costream.checkpoints.file import read_card, read_weights
from costream.models.verify import verify
from kit.data_packs import packs
from weights.recipes.action import train as action
from weights.recipes.action.data import merge, read_pack, split_of
from weights.recipes.action.rendering.figure import LABELS


@pytest.fixture(scope="module")
def pack():
    return packs("fir_action.tar") / "fir_action.tar"


def test_read_pack(pack):
    (clip,) = read_pack(pack, (40, 30), ["20200626_154313"])
    assert clip.frames.shape == (612, 3, 30, 40)
    assert clip.labels.shape == (612,)
    assert set(clip.labels) <= set(range(-1, len(LABELS)))
    # The room is empty at first, and somebody lies on the mat at 12 s.
    assert clip.labels[8] == 0
    assert clip.labels[12 * 8] == LABELS.index("lie")
    assert np.abs(clip.frames[96].astype(int) - clip.frames[8]).mean() > 5


def test_both_rooms_and_all_labels_are_on_each_side(pack):
    with tarfile.open(pack) as tar:
        index = json.load(tar.extractfile("fir_action/labels.json"))
    assert len(index["videos"]) == 17
    for side in ("train", "validation", "test"):
        mine = [v for v in index["videos"] if split_of(v["video"]) == side]
        assert {v["scene"] for v in mine} == {"01", "02"}
        told = {k for v in mine for k in merge([index["classes"][c] for c in v["labels"]])}
        assert told >= set(range(len(LABELS)))


@pytest.mark.slow
def test_whole_recipe(pack, tmp_path, monkeypatch):
    monkeypatch.setattr(action, "ROUNDS", 1)
    videos = ("20200626_154313", "20200628_145326", "20200626_175151")
    size = action.ActionRecipeSize(
        steps=2,
        joint_steps=1,
        head_steps=2,
        bank=2,
        last_bank=2,
        scenes=1,
        movements=3,
        moving=1,
        check_scenes=1,
        only=videos,
        trees=2,
    )
    video = action.load(pack, size, 0)
    for part in fields(video):
        clips = [
            replace(c, frames=c.frames[::8], labels=c.labels[::8])
            for c in getattr(video, part.name)
        ]
        video = replace(video, **{part.name: clips})
    written = action.make(video, size, 0, tmp_path)
    assert [p.name for p in written] == [
        "cooadtr.safetensors", "cooadtr-b2.safetensors", "oadtr.safetensors"]  # fmt: skip
    for path in written:
        verify(path)
        card = read_card(path)
        assert path.stat().st_size < 6_000_000
        assert card.labels == LABELS
        assert set(card.metrics["test"]) >= {
            card.name,
            "majority",
            "per-frame classifier",
            "tree ensemble",
        }
        text = path.with_suffix(".md").read_text("utf-8")
        assert card.licence in text
        assert "| majority |" in text
    before = read_weights(written[0]).tensors
    assert action.recalibrate(video, size, 1, tmp_path, heads=True) == written
    after = read_weights(written[0])
    changed = [name for name, t in after.tensors.items() if not torch.equal(t, before[name])]
    assert {name.partition(".")[0] for name in changed} == {"network"}
    assert "tree ensemble" in after.card.metrics["test"]
