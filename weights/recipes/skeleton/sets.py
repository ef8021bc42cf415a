"""The skeleton sets as body-15 at 15 Hz: what each calls its actions, its joints and its split.

Every set is in metres with y up and right-handed, but for UI-PRMD, whose people are turned to face
the sensor. Bodies are scaled to bones of mean length 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.core.errors import UsageError
from costream.core.layouts import BODY_15
from costream.training.skeleton.motions import Motion, resample_joints, single

RATE_HZ = 15.0
Pack = dict[str, Any]


@dataclass(frozen=True)
class SkeletonSet:
    """A pack ``skel_NAME.npz``: joints for each of body-15, labels, and the groups of its split."""

    title: str
    joints: tuple[int, ...]
    labels: dict[str, str]  # of the pack's classes; others are left out
    validation: tuple[str, ...]  # groups to choose the background's weight and the timeline on
    test: tuple[str, ...]  # groups that nothing is learnt from or chosen on
    sided: tuple[str, ...] = ()  # labels "wave * hand": the hand that moves more


_KINECT_1 = (0, 2, 3, 4, 5, 6, 8, 9, 10, 12, 13, 14, 16, 17, 18)
_WAVE = "wave * hand"
SETS = {
    "msraction3d": SkeletonSet(
        "MSR-Action3D, subjects 7 and 8",
        (6, 2, 19, 0, 7, 9, 1, 8, 10, 4, 13, 15, 5, 14, 16),
        {
            "high_arm_wave": _WAVE,
            "horizontal_arm_wave": "horizontal arm wave",
            "hammer": "hammer",
            "hand_catch": "catch",
            "forward_punch": "punch",
            "high_throw": "throw",
            "draw_x": "draw x",
            "draw_tick": "draw tick",
            "draw_circle": "draw circle",
            "hand_clap": "clap",
            "two_hand_wave": "wave both hands",
            "side_boxing": "punch",
            "bend": "bend",
            "forward_kick": "kick",
            "side_kick": "side kick",
            "jogging": "run",
            "tennis_swing": "tennis swing",
            "tennis_serve": "tennis serve",
            "golf_swing": "golf swing",
            "pickup_throw": "pick up and throw",
        },
        ("subject 6",),
        ("subject 7", "subject 8"),
    ),
    "bandai": SkeletonSet(
        "Bandai motions, styles elderly and feminine",
        (0, 3, 4, 6, 7, 8, 10, 11, 12, 13, 14, 15, 17, 18, 19),
        {
            "bow": "bend",
            "bye": _WAVE,
            "byebye": _WAVE,
            "dash": "run",
            "run": "run",
            "walk": "walk",
            "raise-up-both-hands": "raise both hands",
            "raise-up-left-hand": "raise left hand",
            "raise-up-right-hand": "raise right hand",
            "walk-turn-left": "walk turn left",
            "walk-turn-right": "walk turn right",
            "wave-both-hands": "wave both hands",
            "wave-left-hand": "wave left hand",
            "wave-right-hand": "wave right hand",
        },
        (),
        ("elderly", "feminine"),
    ),
    "gtu3d": SkeletonSet(
        "GTU3D, last fifth of the files of each class",
        (0, 20, 3, 4, 5, 6, 8, 9, 10, 12, 13, 14, 16, 17, 18),
        {
            "open_close_arms": "open close arms",
            "right_hand_shake": "right hand shake",
            "left_hand_shake": "left hand shake",
            "waist_stretch": "waist stretch",
            "walking": "walk",
            "leg_bend_a": "leg bend",
            "leg_bend_b": "leg bend",
            "right_left_step": "right left step",
            "stand_on_toe": "stand on toe",
            "sit_and_applaud": "sit and applaud",
            "lower_back": "lower back",
            "eight_step": "eight step",
            "neck_relax": "neck relax",
        },
        ("middle",),
        ("late",),
    ),
    "utdmhad": SkeletonSet(
        "UTD-MHAD, subjects 6 and 7",
        (3, 1, 0, 4, 5, 6, 8, 9, 10, 12, 13, 14, 16, 17, 18),
        {
            "swipe_left": "swipe left",
            "swipe_right": "swipe right",
            "wave": _WAVE,
            "clap": "clap",
            "throw": "throw",
            "arm_cross": "arm cross",
            "basketball_shoot": "basketball shoot",
            "draw_x": "draw x",
            "draw_circle_cw": "draw circle",
            "draw_circle_ccw": "draw circle",
            "draw_triangle": "draw triangle",
            "bowling": "bowling",
            "boxing": "punch",
            "baseball_swing": "baseball swing",
            "tennis_swing": "tennis swing",
            "arm_curl": "arm curl",
            "tennis_serve": "tennis serve",
            "push": "push",
            "knock": "knock",
            "catch": "catch",
            "pickup_throw": "pick up and throw",
            "jog": "run",
            "walk": "walk",
            "sit_to_stand": "stand up",
            "stand_to_sit": "sit down",
            "lunge": "lunge",
            "squat": "squat",
        },
        ("subject 5",),
        ("subject 6", "subject 7"),
    ),
    "nwucla": SkeletonSet(
        "NW-UCLA, subjects 8 and 9",
        _KINECT_1,
        {
            "pick_up_one_hand": "pick up",
            "pick_up_two_hands": "pick up",
            "drop_trash": "drop",
            "walk_around": "walk",
            "sit_down": "sit down",
            "stand_up": "stand up",
            "donning": "put on",
            "doffing": "take off",
            "throw": "throw",
            "carry": "carry",
        },
        ("subject 7",),
        ("subject 8", "subject 9"),
    ),
    "utkinect": SkeletonSet(
        "UTKinect, subjects 8 and 9",
        _KINECT_1,
        {
            "walk": "walk",
            "sit_down": "sit down",
            "stand_up": "stand up",
            "pick_up": "pick up",
            "carry": "carry",
            "throw": "throw",
            "push": "push",
            "pull": "pull",
            "wave_hands": "wave both hands",
            "clap_hands": "clap",
        },
        ("subject 7",),
        ("subject 8", "subject 9"),
    ),
    "florence3d": SkeletonSet(
        "Florence 3D, subjects 8 and 9",
        (-1, 1, 0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14),  # -1: between its hip joints
        {
            "wave": _WAVE,
            "drink": "drink",
            "answer_phone": "phone",
            "clap": "clap",
            "tight_lace": "tie shoe",
            "sit_down": "sit down",
            "stand_up": "stand up",
            "read_watch": "read watch",
            "bow": "bend",
        },
        ("subject 7",),
        ("subject 8", "subject 9"),
    ),
    "uiprmd": SkeletonSet(
        "UI-PRMD, subjects 8 and 9",
        (0, 3, 4, 7, 8, 9, 11, 12, 13, 14, 15, 16, 18, 19, 20),
        {
            "deep_squat": "squat",
            "hurdle_step": "hurdle step",
            "inline_lunge": "lunge",
            "side_lunge": "side lunge",
            "sit_to_stand": "stand up",
            "standing_straight_leg_raise": "leg raise",
            "shoulder_abduction": "raise arm sideways",
            "shoulder_scaption": "raise arm sideways",
            "shoulder_extension": "shoulder extension",
            "shoulder_rotation": "shoulder rotation",
        },
        ("subject 7",),
        ("subject 8", "subject 9"),
    ),
    "cmu7": SkeletonSet(
        "CMU, a fifth of the files (who is in which is not known)",
        (0, 11, 12, 13, 14, 15, 16, 17, 18, 1, 2, 3, 5, 6, 7),
        {"walking": "walk", "running": "run", "jumping": "jump"},
        (),
        ("fifth",),
    ),
}
_TWINS = (
    ("raise left hand", "raise right hand"),
    ("walk turn left", "walk turn right"),
    ("wave left hand", "wave right hand"),
    ("left hand shake", "right hand shake"),
    ("swipe left", "swipe right"),
)
# The side of these is not documented, so they are never mirrored.
_ONE_SIDED = ("leg bend", "right left step", "eight step")
MIRRORED: dict[str, str | None] = {
    **dict(_TWINS),
    **{right: left for left, right in _TWINS},
    **dict.fromkeys(_ONE_SIDED),
}
_HIPS, *_HIP_JOINTS = (BODY_15.joints.index(name) for name in ("hips", "left hip", "right hip"))
_LEFT_WRIST, _RIGHT_WRIST = (BODY_15.joints.index(f"{s} wrist") for s in ("left", "right"))
_LEFT_OUT = ("feminine", "old")  # Bandai's dataset 1: the styles of the test, by other names


def read_pack(folder: Path, name: str, what: str = "the training motions") -> Pack:
    """Return the arrays of ``skel_NAME.npz``. UsageError with ``what`` if it is missing."""
    path = folder / f"skel_{name}.npz"
    if not path.is_file():
        raise UsageError(
            f"{what} are missing",
            where=path,
            hint="give the folder of the skel_*.npz files with --packs",
        )
    with np.load(path, allow_pickle=False) as stored:
        return {key: stored[key] for key in stored.files}


def read_set(folder: Path, name: str) -> list[Motion]:
    """Return the motions of one of ``SETS``, with the merged labels.

    Groups: subjects ("subject 7"), styles ("elderly"); in GTU3D "late" and "middle" for the last
    and the last but one fifth and tenth of the files of each class (neighbouring files are
    probably of one person); in CMU "fifth". Raises UsageError if the pack is missing.
    """
    pack, skeleton_set = read_pack(folder, name), SETS[name]
    groups = _groups(name, pack)
    everything = _joints(name, skeleton_set, pack["x"].astype(np.float32))
    speed = float(pack["fps"]) / RATE_HZ
    out = []
    for k, (begin, length) in enumerate(zip(pack["start"], pack["length"], strict=True)):
        label = skeleton_set.labels.get(str(pack["classes"][pack["y"][k]]))
        if label is None or groups[k] is None:
            continue
        joints = single(everything[begin : begin + length])
        if speed != 1:
            joints = resample_joints(joints, np.arange(0, length - 1 + 1e-6, speed))
        if "*" in label:
            label = label.replace("*", _busier_hand(joints))
        out.append(Motion(f"{name} {pack['files'][k]}", label, str(groups[k]), scaled(joints)))
    return out


def _joints(
    name: str, skeleton_set: SkeletonSet, x: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    out: npt.NDArray[np.float32] = x[:, skeleton_set.joints]
    if -1 in skeleton_set.joints:
        out = between_hips(out)
    if name == "uiprmd":
        out *= np.array((-1, 1, -1), np.float32)
    return out


def between_hips(joints: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return body-15 [..., V, A] with the hips in the middle of the hip joints.

    For sets that have a joint of the trunk but no hips: belly, spine and torso are higher.
    """
    out: npt.NDArray[np.float32] = joints.copy()
    out[..., _HIPS, :] = joints[..., _HIP_JOINTS, :].mean(-2)
    return out


def _groups(name: str, pack: Pack) -> list[str | None]:
    count = len(pack["y"])
    if name == "bandai":
        styles = [str(pack["styles"][k]) for k in pack["style"]]
        old = zip(styles, pack["dataset"], strict=True)
        return [None if d == 1 and s in _LEFT_OUT else s if d == 2 else f"1 {s}" for s, d in old]
    if name == "cmu7":
        return ["fifth" if k % 5 == 4 else "other" for k in range(count)]
    if name != "gtu3d":
        return [f"subject {k}" for k in pack["subject"]]
    groups: list[str | None] = ["early"] * count
    for label in np.unique(pack["y"]):
        files = np.flatnonzero(pack["y"] == label)
        late, middle = len(files) - len(files) // 5, len(files) - len(files) // 3
        for place, k in enumerate(files):
            if place >= middle:
                groups[k] = "late" if place >= late else "middle"
    return groups


def _busier_hand(joints: npt.NDArray[np.float32]) -> str:
    wrists = joints[:, 0, [_LEFT_WRIST, _RIGHT_WRIST], :-1] - joints[:, 0, :1, :-1]
    left, right = wrists.std(0).sum(-1)
    return "left" if left > right else "right"


def scaled(joints: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the joints [T, 1, V, A + 1] of body-15 with bones of mean length 1."""
    seen = joints[:, 0, :, -1] > 0
    child, parent = (list(ends) for ends in zip(*BODY_15.bones, strict=True))
    both = seen[:, child] & seen[:, parent]
    long = np.linalg.norm(joints[:, 0, child, :-1] - joints[:, 0, parent, :-1], axis=-1)
    out: npt.NDArray[np.float32] = joints.copy()
    out[..., :-1] /= max(float(long[both].mean()) if both.any() else 1.0, 1e-3)
    return out


def labels_of(motions: Sequence[Motion]) -> list[str]:
    """Return the labels that occur, in order."""
    return sorted({motion.label for motion in motions})
