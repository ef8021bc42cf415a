"""Joint layouts of skeletons: the order of the joints, and the bones between them.

Sources read them, frontends convert between them, graph networks and drawings use the bones.
Joint names are shared: "left wrist" is the same joint in every layout, "neck" is the base of the
neck between the shoulders, "hips" the midpoint of the hips.
"""

from __future__ import annotations

import difflib
import errno
import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from costream.core.errors import SourceError, UsageError
from costream.core.settings import read_toml


@dataclass(frozen=True)
class Layout:
    """A numbering of the joints of a body.

    All layouts share the joint names ("left wrist"), so that one can be converted to another.
    """

    name: str  # "ntu-25"
    joints: tuple[str, ...]  # V names
    bones: tuple[tuple[int, int], ...]  # (child, parent), all leading to the centre; V - 1 of them
    centre: int
    headings: tuple[
        str, ...
    ] = ()  # column headings of the joints in tables, if they differ from the names

    @property
    def mirrored(self) -> tuple[int, ...]:
        """Index of each joint's counterpart: left for right, itself in the middle of the body."""
        place = {name: k for k, name in enumerate(self.joints)}
        return tuple(place.get(_other_side(name), k) for k, name in enumerate(self.joints))

    def only(self, seen: Collection[int]) -> Layout:
        """Return the layout of these joints alone, each bone leading to the next one seen."""
        order, parents = sorted(seen), dict(self.bones)
        above: dict[int, int] = {}
        for joint in order:
            parent = parents.get(joint)
            while parent is not None and parent not in seen:
                parent = parents.get(parent)
            if parent is not None:
                above[joint] = parent
        centre = next(joint for joint in order if joint not in above)
        place = {joint: k for k, joint in enumerate(order)}
        return Layout(
            f"{self.name} without {len(self.joints) - len(order)}",
            tuple(self.joints[joint] for joint in order),
            tuple((place[j], place[above.get(j, centre)]) for j in order if j != centre),
            place[centre],
            tuple(self.headings[joint] for joint in order) if self.headings else (),
        )


def find_layout(name: str) -> Layout:
    """Return the layout of this name, or the one declared by a TOML file.

    The file has ``name``, ``joints`` (an array of names, or a table from column headings to
    names: ``LHand = "left hand"``), ``bones`` (pairs of names, child and parent) and optionally
    ``centre`` (default: the joint without a parent). Raise UsageError if it is invalid.
    """
    layouts = {**LAYOUTS, **marker_sets()}
    layout = layouts.get(name.lower())
    if layout is not None:
        return layout
    if name.lower().endswith(".toml") or os.path.isfile(name):
        return _declared(Path(name))
    close = difflib.get_close_matches(name.lower(), layouts, 1)
    raise UsageError(
        f"there is no joint layout {name!r}",
        hint=(f"did you mean {close[0]}? " if close else "")
        + f"there are {', '.join(layouts)}, or a TOML file",
    )


@cache
def marker_sets() -> dict[str, Layout]:
    """Return the layouts of the markers and bones of motion capture, by name.

    Unlike the joints of ``LAYOUTS``, which may be numbered, these have names only.
    """
    tables = read_toml(Path(__file__).with_name("marker_sets.toml"), "is missing")
    return {name: _from_table(table, name) for name, table in tables.items()}


def joint_mapping(source: Layout, target: Layout) -> tuple[tuple[int, ...], ...]:
    """Return, for each joint of ``target``, the joints of ``source`` whose mean it is.

    A joint with double weight is listed twice. SourceError names the joints that are missing.
    """
    place = {name: k for k, name in enumerate(source.joints)}
    found = [_derived(name, place, frozenset()) for name in target.joints]
    missing = [name for name, parts in zip(target.joints, found, strict=True) if parts is None]
    if missing:
        raise SourceError(
            f"the layout {source.name} has no {', '.join(missing)}, which {target.name} needs"
        )
    return tuple(parts for parts in found if parts is not None)


def _derived(name: str, place: dict[str, int], tried: frozenset[str]) -> tuple[int, ...] | None:
    """Return the joints whose mean is ``name``, by JOINT_SUBSTITUTES if missing, or None."""
    if name in place:
        return (place[name],)
    side, _, rest = name.partition(" ")
    prefix = f"{side} " if side in ("left", "right") else ""
    for recipe in JOINT_SUBSTITUTES.get(rest if prefix else name, ()):
        wanted = [part.replace("* ", prefix) for part in recipe]
        if tried.intersection(wanted):
            continue
        parts = [_derived(part, place, tried | {name}) for part in wanted]
        found = [part for part in parts if part is not None]
        if len(found) == len(parts):
            # All parts have the same weight, however many joints each is the mean of.
            size = math.lcm(*map(len, found))
            return tuple(k for part in found for k in part * (size // len(part)))
    return None


def _other_side(name: str) -> str:
    for side, other in (("left ", "right "), ("right ", "left ")):
        if name.startswith(side):
            return other + name.removeprefix(side)
    return name


def _declared(path: Path) -> Layout:
    table = read_toml(path, f"cannot be read ({os.strerror(errno.ENOENT)})")
    try:
        return _from_table(table, path.stem)
    except ValueError as error:
        raise UsageError(str(error), where=path, hint="see: costream help skeletons") from None


def _from_table(table: dict[str, Any], stem: str) -> Layout:
    """Return the layout declared by a TOML file; raise ValueError if it is invalid."""
    unknown = set(table) - {"name", "joints", "bones", "centre"}
    if unknown:
        raise ValueError(f"unknown keys of a layout: {', '.join(sorted(unknown))}")
    declared = table.get("joints")
    if isinstance(declared, list):
        declared = {str(k): name for k, name in enumerate(declared)}
    named = list(declared.items()) if isinstance(declared, dict) else []
    if len(named) < 2 or not all(isinstance(name, str) for _, name in named):
        raise ValueError("joints must be two or more names, or a table of names")
    joints = [name for _, name in named]
    headings = [heading for heading, _ in named] if table["joints"] is declared else joints
    if len(set(joints)) < len(joints):
        raise ValueError("two joints have the same name")
    pairs = table.get("bones")
    if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
        raise ValueError("bones must be pairs of joints: child, parent")
    place = {name: k for names in (headings, joints) for k, name in enumerate(names)}
    for name in [*(part for pair in pairs for part in pair), table.get("centre", joints[0])]:
        if not isinstance(name, str) or name not in place:
            raise ValueError(f"there is no joint {name!r}")
    bones = tuple((place[child], place[parent]) for child, parent in pairs)
    roots = set(range(len(joints))) - {child for child, _ in bones}
    centre = place[table["centre"]] if "centre" in table else min(roots, default=0)
    layout = Layout(
        str(table.get("name", stem)),
        tuple(joints),
        bones,
        centre,
        tuple(headings) if headings != joints else (),
    )
    if not leads_to_centre(layout):
        raise ValueError(f"the bones do not lead every joint to the centre, {joints[centre]}")
    return layout


def leads_to_centre(layout: Layout) -> bool:
    """Return whether each joint but the centre has one bone, and all lead to the centre."""
    parents = dict(layout.bones)
    if len(layout.bones) != len(layout.joints) - 1 or layout.centre in parents:
        return False
    if set(parents) | {layout.centre} != set(range(len(layout.joints))):
        return False
    for joint in parents:
        for _ in layout.joints:
            joint = parents.get(joint, layout.centre)
        if joint != layout.centre:
            return False
    return True


def _layout(name: str, joints: str, bones: str, centre: int, headings: str = "") -> Layout:
    """Return a layout from comma-separated names and "child-parent" pairs of indices."""
    pairs = tuple((int(a), int(b)) for a, b in (pair.split("-") for pair in bones.split()))
    split = (tuple(part.strip() for part in text.split(",") if part) for text in (joints, headings))
    return Layout(name, next(split), pairs, centre, next(split))


# Substitutes for a joint that a layout lacks: the mean of the first of these lists whose joints
# exist or can be derived. "*" stands for the side of the joint.
JOINT_SUBSTITUTES: dict[str, tuple[tuple[str, ...], ...]] = {
    "hips": (("left hip", "right hip"),),
    # The joint is below the markers of the pelvis, by about a fifth of the way to the knee.
    "hip": (("* front pelvis", "* back pelvis", "* front pelvis", "* back pelvis", "* knee"),),
    "neck": (("upper back", "breastbone"), ("left shoulder", "right shoulder")),
    "upper neck": (("neck", "head"),),
    "head": (
        ("left front head", "right front head", "left back head", "right back head"),
        ("left head side", "right head side"),
        ("left ear", "right ear"),
        ("nose",),
    ),
    "head top": (("head",),),
    "nose": (("head",),),
    "lower spine": (("hips", "mid spine"),),
    "mid spine": (("hips", "neck"),),
    "chest": (("mid spine", "neck"),),
    "clavicle": (("neck", "* shoulder"),),
    "shoulder": (("* clavicle",),),
    "elbow": (("* inner elbow", "* outer elbow"), ("* outer elbow",)),
    "wrist": (("* inner wrist", "* outer wrist"), ("* outer wrist",), ("* hand",)),
    "hand": (("* index", "* pinky"), ("* wrist",)),
    "knuckles": (("* hand",),),
    "hand tip": (("* index",), ("* hand",)),
    "thumb": (("* hand",),),
    "index": (("* hand tip",),),
    "pinky": (("* hand tip",),),
    "knee": (("* inner knee", "* outer knee"), ("* outer knee",)),
    "ankle": (("* inner ankle", "* outer ankle"), ("* outer ankle",), ("* foot",)),
    "foot": (("* toes",), ("* ankle",)),
    "toes": (("* foot",),),
    "small toe": (("* toes",),),
    "heel": (("* ankle",),),
    "eye": (("nose",),),
    "inner eye": (("* eye",),),
    "outer eye": (("* eye",),),
    "ear": (("head",),),
    "mouth": (("nose",),),
    # Points of COCO-WholeBody
    **{f"face {k}": (("nose",),) for k in range(1, 69)},
    **{f"hand {k}": (("* wrist",),) for k in range(1, 22)},
}

# of costream: the joints that Kinect, MediaPipe and motion capture have in common
BODY_15 = _layout(
    "body-15",
    "hips, neck, head, left shoulder, left elbow, left wrist, right shoulder, right elbow,"
    "right wrist, left hip, left knee, left ankle, right hip, right knee, right ankle",
    "1-0 2-1 3-1 4-3 5-4 6-1 7-6 8-7 9-0 10-9 11-10 12-0 13-12 14-13",
    0,
)

# Kinect v2. Its "neck" is above the base of the neck, which it calls "spine shoulder".
NTU_25 = _layout(
    "ntu-25",
    "hips, mid spine, upper neck, head, left shoulder, left elbow, left wrist, left hand,"
    "right shoulder, right elbow, right wrist, right hand, left hip, left knee, left ankle,"
    "left foot, right hip, right knee, right ankle, right foot, neck, left hand tip, left thumb,"
    "right hand tip, right thumb",
    "0-1 1-20 2-20 3-2 4-20 5-4 6-5 7-6 8-20 9-8 10-9 11-10 12-0 13-12 14-13 15-14 16-0 17-16"
    " 18-17 19-18 21-22 22-7 23-24 24-11",
    20,
    "spine base, spine mid, neck, head, shoulder left, elbow left, wrist left, hand left,"
    "shoulder right, elbow right, wrist right, hand right, hip left, knee left, ankle left,"
    "foot left, hip right, knee right, ankle right, foot right, spine shoulder, hand tip left,"
    "thumb left, hand tip right, thumb right",
)

# Kinect v1 in the order of its SDK.
KINECT_20 = _layout(
    "kinect-20",
    "hips, mid spine, neck, head, left shoulder, left elbow, left wrist, left hand,"
    "right shoulder, right elbow, right wrist, right hand, left hip, left knee, left ankle,"
    "left foot, right hip, right knee, right ankle, right foot",
    "0-1 1-2 3-2 4-2 5-4 6-5 7-6 8-2 9-8 10-9 11-10 12-0 13-12 14-13 15-14 16-0 17-16 18-17 19-18",
    2,
    "hip center, spine, shoulder center, head, shoulder left, elbow left, wrist left, hand left,"
    "shoulder right, elbow right, wrist right, hand right, hip left, knee left, ankle left,"
    "foot left, hip right, knee right, ankle right, foot right",
)

# Kinect v1 in the order of MSR-Action3D.
MSRACTION3D_20 = _layout(
    "msraction3d-20",
    "left shoulder, right shoulder, neck, mid spine, left hip, right hip, hips, left elbow,"
    "right elbow, left wrist, right wrist, left hand, right hand, left knee, right knee,"
    "left ankle, right ankle, left foot, right foot, head",
    "0-2 1-2 3-2 4-6 5-6 6-3 7-0 8-1 9-7 10-8 11-9 12-10 13-4 14-5 15-13 16-14 17-15 18-16 19-2",
    2,
)

# Kinetics-skeleton, and OpenPose's COCO model.
OPENPOSE_18 = _layout(
    "openpose-18",
    "nose, neck, right shoulder, right elbow, right wrist, left shoulder, left elbow, left wrist,"
    "right hip, right knee, right ankle, left hip, left knee, left ankle, right eye, left eye,"
    "right ear, left ear",
    "4-3 3-2 7-6 6-5 13-12 12-11 10-9 9-8 11-5 8-2 5-1 2-1 0-1 15-0 14-0 17-15 16-14",
    1,
)

BODY_25 = _layout(
    "body-25",
    "nose, neck, right shoulder, right elbow, right wrist, left shoulder, left elbow, left wrist,"
    "hips, right hip, right knee, right ankle, left hip, left knee, left ankle, right eye,"
    "left eye, right ear, left ear, left toes, left small toe, left heel, right toes,"
    "right small toe, right heel",
    "0-1 2-1 3-2 4-3 5-1 6-5 7-6 8-1 9-8 10-9 11-10 12-8 13-12 14-13 15-0 16-0 17-15 18-16 19-14"
    " 20-19 21-14 22-11 23-22 24-11",
    1,
    "nose, neck, right shoulder, right elbow, right wrist, left shoulder, left elbow, left wrist,"
    "mid hip, right hip, right knee, right ankle, left hip, left knee, left ankle, right eye,"
    "left eye, right ear, left ear, left big toe, left small toe, left heel, right big toe,"
    "right small toe, right heel",
)

COCO_17 = _layout(
    "coco-17",
    "nose, left eye, right eye, left ear, right ear, left shoulder, right shoulder, left elbow,"
    "right elbow, left wrist, right wrist, left hip, right hip, left knee, right knee,"
    "left ankle, right ankle",
    "15-13 13-11 16-14 14-12 11-5 12-6 9-7 7-5 10-8 8-6 5-0 6-0 1-0 3-1 2-0 4-2",
    0,
)

# Halpe without face and hands, of AlphaPose, RTMPose and Sports2D.
HALPE_26 = _layout(
    "halpe-26",
    f"{', '.join(COCO_17.joints)}, head top, neck, hips, left toes, right toes, left small toe,"
    "right small toe, left heel, right heel",
    "18-19 0-18 17-0 1-0 2-0 3-1 4-2 5-18 6-18 7-5 8-6 9-7 10-8 11-19 12-19 13-11 14-12 15-13"
    " 16-14 20-15 22-20 24-15 21-16 23-21 25-16",
    19,
    f"{', '.join(COCO_17.joints)}, head, neck, hip, left big toe, right big toe, left small toe,"
    "right small toe, left heel, right heel",
)

_FACE, _HANDS = range(23, 91), (range(91, 112), range(112, 133))
# COCO-WholeBody: COCO's joints, the feet, 68 points of the face, and 21 of each hand.
COCO_WHOLEBODY_133 = Layout(
    "coco-wholebody-133",
    (
        *COCO_17.joints,
        *("left toes", "left small toe", "left heel"),
        *("right toes", "right small toe", "right heel"),
        *(f"face {k}" for k in range(1, 69)),
        *(f"{side} hand {k}" for side in ("left", "right") for k in range(1, 22)),
    ),
    (
        *COCO_17.bones,
        *((17, 15), (18, 17), (19, 15), (20, 16), (21, 20), (22, 16)),
        *((k, 0) for k in _FACE),
        *((k, wrist) for hand, wrist in zip(_HANDS, (9, 10), strict=True) for k in hand),
    ),
    COCO_17.centre,
)

# MediaPipe Pose (BlazePose).
MEDIAPIPE_33 = _layout(
    "mediapipe-33",
    "nose, left inner eye, left eye, left outer eye, right inner eye, right eye, right outer eye,"
    "left ear, right ear, left mouth, right mouth, left shoulder, right shoulder, left elbow,"
    "right elbow, left wrist, right wrist, left pinky, right pinky, left index, right index,"
    "left thumb, right thumb, left hip, right hip, left knee, right knee, left ankle,"
    "right ankle, left heel, right heel, left toes, right toes",
    "1-0 2-1 3-2 4-0 5-4 6-5 7-3 8-6 9-0 10-0 11-0 12-0 13-11 14-12 15-13 16-14 17-15 18-16 19-15"
    " 20-16 21-15 22-16 23-11 24-12 25-23 26-24 27-25 28-26 29-27 30-28 31-27 32-28",
    0,
    "nose, left eye inner, left eye, left eye outer, right eye inner, right eye, right eye outer,"
    "left ear, right ear, mouth left, mouth right, left shoulder, right shoulder, left elbow,"
    "right elbow, left wrist, right wrist, left pinky, right pinky, left index, right index,"
    "left thumb, right thumb, left hip, right hip, left knee, right knee, left ankle,"
    "right ankle, left heel, right heel, left foot index, right foot index",
)

JHMDB2D_15 = _layout(
    "jhmdb2d-15",
    "neck, mid spine, head, right shoulder, left shoulder, right hip, left hip, right elbow,"
    "left elbow, right knee, left knee, right wrist, left wrist, right ankle, left ankle",
    "1-0 2-0 3-0 4-0 5-1 6-1 7-3 8-4 9-5 10-6 11-7 12-8 13-9 14-10",
    0,
    "neck, belly, face, right shoulder, left shoulder, right hip, left hip, right elbow,"
    "left elbow, right knee, left knee, right wrist, left wrist, right ankle, left ankle",
)

# Motion capture: Bandai Namco's BVH files.
BANDAI_21 = _layout(
    "bandai-21",
    "hips, lower spine, chest, neck, head, left clavicle, left shoulder, left elbow, left wrist,"
    "right clavicle, right shoulder, right elbow, right wrist, left hip, left knee, left ankle,"
    "left toes, right hip, right knee, right ankle, right toes",
    "1-0 2-1 3-2 4-3 5-2 6-5 7-6 8-7 9-2 10-9 11-10 12-11 13-0 14-13 15-14 16-15 17-0 18-17 19-18"
    " 20-19",
    0,
    "Hips, Spine, Chest, Neck, Head, Shoulder_L, UpperArm_L, LowerArm_L, Hand_L, Shoulder_R,"
    "UpperArm_R, LowerArm_R, Hand_R, UpperLeg_L, LowerLeg_L, Foot_L, Toes_L, UpperLeg_R,"
    "LowerLeg_R, Foot_R, Toes_R",
)

# Motion capture: ASF/AMC files (CMU), which name each bone and place it at the bone's far end.
CMU_31 = _layout(
    "cmu-31",
    "hips, left hip, left knee, left ankle, left foot, left toes, right hip, right knee,"
    "right ankle, right foot, right toes, lower spine, mid spine, chest, neck, upper neck, head,"
    "left shoulder, left elbow, left wrist, left hand, left knuckles, left hand tip, left thumb,"
    "right shoulder, right elbow, right wrist, right hand, right knuckles, right hand tip,"
    "right thumb",
    "1-0 2-1 3-2 4-3 5-4 6-0 7-6 8-7 9-8 10-9 11-0 12-11 13-12 14-13 15-14 16-15 17-13 18-17"
    " 19-18 20-19 21-20 22-21 23-20 24-13 25-24 26-25 27-26 28-27 29-28 30-27",
    0,
    "root, lhipjoint, lfemur, ltibia, lfoot, ltoes, rhipjoint, rfemur, rtibia, rfoot, rtoes,"
    "lowerback, upperback, thorax, lowerneck, upperneck, head, lclavicle, lhumerus, lradius,"
    "lwrist, lhand, lfingers, lthumb, rclavicle, rhumerus, rradius, rwrist, rhand, rfingers,"
    "rthumb",
)

LAYOUTS = {
    layout.name: layout
    for layout in (
        BODY_15,
        NTU_25,
        KINECT_20,
        MSRACTION3D_20,
        OPENPOSE_18,
        BODY_25,
        COCO_17,
        HALPE_26,
        COCO_WHOLEBODY_133,
        MEDIAPIPE_33,
        JHMDB2D_15,
        BANDAI_21,
        CMU_31,
    )
}
