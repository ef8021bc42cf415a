"""Reading of the skeleton packs MSR-Action3D, GTU3D and Bandai Namco, as body-15 at 15 Hz.

All three are in metres, y up, right-handed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from costream.errors import UsageError
from costream.training.skeleton.motions import Motion, single

RATE_HZ = 15.0
PACKS = {name: f"skel_{name}.npz" for name in ("msraction3d", "gtu3d", "bandai")}

# The pack's joint for each joint of body-15 (hips, neck, head, left arm, right arm, left leg,
# right leg). MSR-Action3D has a joint order of its own; its "second" side, the active one in
# one-armed actions, is the right.
_MSR = (6, 2, 19, 0, 7, 9, 1, 8, 10, 4, 13, 15, 5, 14, 16)
_KINECT_2 = (0, 20, 3, 4, 5, 6, 8, 9, 10, 12, 13, 14, 16, 17, 18)
_BANDAI = (0, 3, 4, 6, 7, 8, 10, 11, 12, 13, 14, 15, 17, 18, 19)

# Different names of one action; walking and running in place count as walking and running,
# because the hips are the origin of the network's input.
_SAME = {
    "walking": "walk",
    "jogging": "run",
    "two hand wave": "wave both hands",
}


def read_pack(folder: Path, name: str) -> list[Motion]:
    """Return the motions of one of ``PACKS``.

    Groups: subjects ("subject 7"), styles ("elderly"), and for GTU3D "late" for the last fifth
    of the files of each class, else "early" (neighbouring files are probably of one person).
    Raises UsageError if the pack is missing.
    """
    path = folder / PACKS[name]
    if not path.is_file():
        raise UsageError(
            "the training motions are missing",
            where=path,
            hint="give the folder of the skel_*.npz files with --packs",
        )
    with np.load(path, allow_pickle=False) as stored:
        pack = {key: stored[key] for key in stored.files}
    return _READERS[name](pack)


def _msr(pack: dict[str, Any]) -> list[Motion]:
    groups = [f"subject {k}" for k in pack["subject"]]
    return _motions(pack, _MSR, groups, np.arange(len(groups)))


def _gtu(pack: dict[str, Any]) -> list[Motion]:
    labels = pack["y"]
    groups = ["early"] * len(labels)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        for k in own[len(own) - len(own) // 5 :]:
            groups[k] = "late"
    return _motions(pack, _KINECT_2, groups, np.arange(len(groups)), step=2)


def _bandai(pack: dict[str, Any]) -> list[Motion]:
    groups = [str(pack["styles"][k]) for k in pack["style"]]
    return _motions(pack, _BANDAI, groups, np.flatnonzero(pack["dataset"] == 2))


_READERS: dict[str, Callable[[dict[str, Any]], list[Motion]]] = {
    "msraction3d": _msr,
    "gtu3d": _gtu,
    "bandai": _bandai,
}


def _motions(
    pack: dict[str, Any],
    joints: tuple[int, ...],
    groups: list[str],
    chosen: np.ndarray[Any, Any],
    step: int = 1,
) -> list[Motion]:
    everything = pack["x"][:, joints]
    out = []
    for k in chosen:
        begin = int(pack["start"][k])
        rows = everything[begin : begin + int(pack["length"][k]) : step]
        words = str(pack["classes"][pack["y"][k]]).replace("_", " ").replace("-", " ")
        out.append(Motion(str(pack["files"][k]), _SAME.get(words, words), groups[k], single(rows)))
    return out
