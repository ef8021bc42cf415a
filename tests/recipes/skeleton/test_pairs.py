"""The pack of pairs, the background beside it, and the recipe from there to weights."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from costream.core.errors import UsageError
from costream.models.build import build
from costream.weights_io.file import read_weights
from kit.data_packs import packs as needed
from kit.paths import RESEARCH
from kit.program import costream
from weights.recipes.skeleton import pairs
from weights.recipes.skeleton.pairs import (
    ACTS,
    LABELS,
    PairsRecipeSize,
    background,
    read_pairs,
    swapped,
)
from weights.recipes.skeleton.sets import SETS


def test_a_pack_is_two_people_in_pixels_the_actor_first(tmp_path):
    x = np.zeros((5, 30, 3), np.float32)
    x[:, :15, 0], x[:, 15:, 0] = 0.25, 0.75  # shares of the width
    x[:, :, 1] = np.linspace(0.1, 0.9, 15)[[*range(15)] * 2]  # from the head down
    np.savez(
        tmp_path / "skel_sbu.npz",
        x=x, start=[0], length=[5], y=[1], subject=[3], second=[5], classes=["hugging", "kicking"],
    )  # fmt: skip
    [(who, motion)] = read_pairs(tmp_path)
    assert who == (3, 5)
    assert (motion.label, motion.group) == ("kick", "actor 3")
    assert motion.joints.shape == (5, 2, 15, 3)
    one, two = motion.joints[0, :, :, :2]
    assert one[2, 1] > one[1, 1] > one[0, 1]  # head, neck, hips: y is up
    np.testing.assert_allclose(one[0], (one[9] + one[12]) / 2, rtol=1e-5)  # and not the torso
    scale = (one[2, 1] - one[1, 1]) / (np.linspace(0.1, 0.9, 15)[1] - 0.1)
    np.testing.assert_allclose(two[:, 0] - one[:, 0], 0.5 * 640 / 480 * scale, rtol=1e-5)
    other = swapped(motion)
    np.testing.assert_array_equal(other.joints[:, 0], motion.joints[:, 1])
    np.testing.assert_array_equal(swapped(other).joints, motion.joints)
    where = ["--packs", str(tmp_path / "no"), "--tracks", "x", "--start", "x"]
    assert pairs.main([*where, "-o", str(tmp_path)]) == 2
    with pytest.raises(UsageError, match="pairs are missing"):
        read_pairs(tmp_path / "no")


@pytest.mark.long
def test_files_of_unseen_actors_show_what_they_do(tmp_path):
    """Tables with the set's own names of joints, which has no hips, through the command line."""
    with np.load(needed("skel_sbu.npz") / "skel_sbu.npz") as pack:
        pack = {name: pack[name] for name in pack.files}
    names = [name.removeprefix("first_") for name in pack["joints"][:15]]
    heading = ["frame", "person", *(f"{name}_{axis}" for name in names for axis in "xy")]
    truth = {}
    for k in np.flatnonzero(np.isin(pack["subject"], pairs.TEST)):
        begin, length = pack["start"][k], pack["length"][k]
        x = pack["x"][begin : begin + length].reshape(-1, 2, 15, 3)[..., :2] * (640.0, 480.0)
        lines = [",".join(heading)]
        for frame, two in enumerate(x):
            lines += [
                f"{frame},{person}," + ",".join(f"{value:.1f}" for value in joints.ravel())
                for person, joints in enumerate(two)
            ]
        (tmp_path / f"{k}.csv").write_text("\n".join(lines))
        truth[f"{k}.csv"] = LABELS[str(pack["classes"][pack["y"][k]])]
    out = tmp_path / "out"
    done = costream("batch", tmp_path, "-m", "costgcn-pairs", "--fps", 15, "-o", out)
    assert done.returncode == 0, done.stderr
    right = 0
    for name, label in truth.items():
        records = map(json.loads, (out / f"{name}.jsonl").read_text("utf-8").splitlines())
        right += any(r["type"] == "segment" and r["label"] == label for r in records)
    assert len(truth) == 62
    assert right / len(truth) >= 0.7


@pytest.mark.long
def test_the_background_is_one_person_or_two_apart():
    folder = needed(*(f"skel_{name}.npz" for name in SETS))
    found = background(folder, 60, np.random.default_rng(0), test=False)
    seen = [m.joints[..., -1].any(2).any(0) for m in found]  # [2], each person
    assert Counter(tuple(map(bool, s)) for s in seen).keys() == {(True, False), (True, True)}
    for motion, there in zip(found, seen, strict=True):
        if there.all():
            hips = motion.joints[0, :, 0, 0]
            assert 2.4 < abs(hips[1] - hips[0]) < 9.1


def write_tracks_of_nobody_real(packs: Path, folder: Path) -> None:
    """Write a file of tracks for each clip of the pack: two persons of noise."""
    rng = np.random.default_rng(0)
    with tarfile.open(packs / "action_clips.tar") as archive:
        names = [name for name in archive.getnames() if name.endswith(".mp4")]
    frame, number = np.repeat(np.arange(24), 2), np.tile([1, 2], 24)
    places = rng.uniform(0.4, 0.6, (48, 33, 2)).astype(np.float32)
    for name in names:
        path = folder / "action_clips" / f"{name[:-4]}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(
            path,
            time_s=np.arange(24) / 12, size=[640, 480], frame=frame, number=number, places=places,
            scores=np.ones((48, 33)), space=np.zeros((48, 33, 3)),
        )  # fmt: skip


@pytest.mark.long
def test_from_packs_to_weights(tmp_path):
    files = ("skel_sbu.npz", "action_clips.tar", *(f"skel_{name}.npz" for name in SETS))
    packs = needed(*files)
    write_tracks_of_nobody_real(packs, tmp_path / "tracks")
    size = PairsRecipeSize(steps=3, half=2, background=8, trees=4)
    start = RESEARCH / "costgcn-2d.safetensors"
    path = pairs.make(packs, tmp_path / "tracks", size, 0, tmp_path, start)
    stored = read_weights(path)
    acts = {*LABELS.values(), *ACTS.values()} - {"background"}
    assert stored.card.labels == ("background", *sorted(acts))
    network, frontend = build(stored.card, stored.tensors)
    assert (network.persons, frontend.persons) == (2, 2)
    sequences = [rows["costgcn-pairs"]["sequences"] for rows in stored.card.metrics.values()]
    assert sequences == [48, 48, 62]  # of two places, and of SBU
    for rows in stored.card.metrics.values():
        assert set(rows) == {"costgcn-pairs", "tree ensemble", "majority"}
    assert path.with_suffix(".md").is_file()
