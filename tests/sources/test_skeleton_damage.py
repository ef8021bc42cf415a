"""Files with random damage: one clear line or what can be read, and never anything else."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np
import pytest

from costream.errors import CostreamError
from costream.layouts import BODY_15, COCO_17, NTU_25, OPENPOSE_18
from kit.skeleton_files import clip, frames, kinetics, long, ntu, read, wide

SCRAPS = (b",", b"\n", b"-", b'"', b"nan", b"1e999", b"{", b"]", b";", b"\0", b"9" * 30, b"#", b" ")


def whole(folder: Path, name: str) -> Path:
    path = folder / name
    if name == "wide.csv":
        return wide(path, clip(BODY_15, 8)[:, 0], BODY_15, lambda k, n, a: f"{n}_{a}")
    if name == "long.csv":
        x = clip(COCO_17, 4, persons=2)
        return long(path, x, COCO_17.joints, "frame,person,joint,x,y,z")
    if name == "a.skeleton":
        return ntu(path, clip(NTU_25, 4, persons=2))
    if name == "a.json":
        return kinetics(path, clip(OPENPOSE_18, 4, axes=2) / 20)
    x = clip(COCO_17, 4, axes=2).transpose(1, 0, 2, 3)
    entry = {"frame_dir": "a", "keypoint": x, "keypoint_score": np.ones((1, 4, 17))}
    path.write_bytes(pickle.dumps({"annotations": [entry]}))
    return path


def damaged(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        k, kind = chance.randrange(len(out)), chance.randrange(5)
        if kind == 0:
            out[k] = chance.randrange(256)
        elif kind == 1:
            del out[k : k + chance.choice((1, 3, 50))]
        elif kind == 2:
            out[k:k] = chance.choice(SCRAPS)
        elif kind == 3:
            out[k:k] = out[max(0, k - 30) : k]
        else:
            del out[k + 1 :]
        out = out or bytearray(b"x")
    return bytes(out)


@pytest.mark.parametrize("name", ["wide.csv", "long.csv", "a.skeleton", "a.json", "a.pkl"])
def test_damage_anywhere(tmp_path: Path, name: str) -> None:
    path = whole(tmp_path, name)
    data, chance = path.read_bytes(), random.Random(name)
    read_well = 0
    for _ in range(150):
        path.write_bytes(damaged(data, chance))
        try:
            _, items = read(path, frame_rate_hz=10.0)
        except CostreamError as error:
            assert "\n" not in str(error)  # noqa: PT017  (either end is right)
            continue
        times = [frame.time_s for frame in frames(items)]
        assert times == sorted(set(times))
        for frame in frames(items):
            assert np.isfinite(frame.joints).all()
            assert not frame.joints[frame.scores == 0].any()
        read_well += bool(times)
    assert read_well > 5
