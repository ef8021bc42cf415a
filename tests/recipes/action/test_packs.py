"""The fir_action pack, and the action recipe from the pack to weights."""

from __future__ import annotations

import json
import tarfile
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from costream.models.verify import verify
from costream.weights_io.file import read_card, read_weights
from kit.data_packs import packs
from weights.recipes.action import train as action
from weights.recipes.action.data import merge, read_pack, split_of
from weights.recipes.action.places import read_homes
from weights.recipes.action.rendering.figure import LABELS
from weights.recipes.objects.teacher import NanoDet


@pytest.fixture(scope="module")
def pack():
    return packs("fir_action.tar") / "fir_action.tar"


@pytest.fixture(scope="module")
def folder():
    files = "fir_action.tar", "actions_video.tar", "images_det.tar", "samples.tar", "teachers2.tar"
    return packs(*files)


def test_falls_in_homes_are_labelled(folder):
    clips = read_homes(folder / "actions_video.tar", (32, 24), 8.0, "val")
    assert sorted(c.name[3:7] for c in clips) == ["adl_", "fall", "fall", "fall"]
    for clip in clips:
        told = [LABELS[k] for k in dict.fromkeys(clip.labels) if k >= 0]
        assert told[-2:] == (["fall", "lie"] if "fall" in clip.name else ["sit"])
    (long,) = (c for c in clips if c.name == "s2_fall_12.mp4")
    assert long.frames.shape == (98, 3, 24, 32)
    assert LABELS[long.labels[8 * 8]] == "fall"  # 6.9 s to 9.07 s


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


@pytest.mark.long
def test_whole_recipe(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(action, "ROUNDS", 1)
    videos = ("20200626_154313", "20200628_145326", "20200626_175151")
    size = action.ActionRecipeSize(
        steps=2,
        place_steps=2,
        joint_steps=1,
        head_steps=2,
        bank=2,
        last_bank=2,
        last_steps=3,
        scenes=1,
        before=1,
        every=40,
        movements=3,
        moving=1,
        check_scenes=1,
        only=videos,
        trees=2,
    )
    video = action.load(folder, size, 0)
    for part in fields(video):
        if part.name != "places":
            clips = [
                replace(c, frames=c.frames[::8], labels=c.labels[::8])
                for c in getattr(video, part.name)
            ]
            video = replace(video, **{part.name: clips})
    written = action.make(video, size, 0, tmp_path, NanoDet(folder / "teachers2.tar"))
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
        assert card.familiarity is not None
        assert min(card.timeline.threshold, *card.timeline.thresholds.values(), 1.0) >= 0.4
        text = path.with_suffix(".md").read_text("utf-8")
        assert card.licence in text
        assert "| majority |" in text
    before = read_weights(written[0]).tensors
    assert action.remake(video, size, 1, tmp_path, "frontend") == written
    after = read_weights(written[0])
    changed = [name for name, t in after.tensors.items() if not torch.equal(t, before[name])]
    assert {name.partition(".")[0] for name in changed} == {"network"}
    assert "tree ensemble" in after.card.metrics["test"]
    action.remake(video, size, 1, tmp_path, "start")
    started = read_weights(written[0])
    moved = [n for n, t in started.tensors.items() if not torch.equal(t, after.tensors[n])]
    assert {name.partition(".")[0] for name in moved} == {"network", "frontend"}
    assert not list(tmp_path.glob("*.partial"))
