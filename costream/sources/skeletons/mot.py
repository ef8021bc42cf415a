"""Reading of OpenSim's text files: markers (TRC), and motions and storages (MOT, STO)."""

from __future__ import annotations

import numpy as np

from costream.core.errors import SourceError
from costream.sources.file import first_of, require_rate
from costream.sources.skeletons.bvh import rotations
from costream.sources.skeletons.skeleton_format import SkeletonInput, skeleton_format
from costream.sources.skeletons.skeleton_recording import BAD_ROW, Event, SkippedData
from costream.sources.skeletons.table_rows import number
from costream.sources.skeletons.take import Numbers, Take, frames_of
from costream.sources.skeletons.text_lines import parse_lines

# The skeleton on which the angles of a motion act: Rajagopal et al. (2016), unscaled; metres,
# x forward, y up, z right. Only proportions matter. Of the left side z is negated.
_HIP = (-0.056, -0.078, 0.077)
_THIGH = (0.0, -0.409, 0.0)
_SHANK = (0.0, -0.4, 0.0)
_BACK = (-0.101, 0.082, 0.0)
_SHOULDER = (0.003, 0.372, 0.170)
_NECK = (0.0, 0.4, 0.0)
_HEAD = (0.02, 0.6, 0.0)
_UPPER_ARM = (0.013, -0.286, 0.0)
_FOREARM = (0.0, -0.249, 0.0)
_NEEDED = ("pelvis_tilt", "hip_flexion_r", "hip_flexion_l", "knee_angle_r", "knee_angle_l")
_JOINTS = ("hips", "neck", "head")
_SIDE = ("shoulder", "elbow", "wrist", "hip", "knee", "ankle")


def is_mot(source: SkeletonInput) -> bool:
    """Return whether this is a MOT or STO file; of one with a long header, by its suffix."""
    return (source.is_text and b"\nendheader" in source.head) or source.has_suffix(".mot", ".sto")


@skeleton_format("mot", sniff=is_mot, order=2)
def read_mot(source: SkeletonInput) -> Take:
    """Return the take of a MOT or STO file: lines up to ``endheader``, headings, rows.

    Places are read as they are (``torso_X``, ``torso_Y``, ``torso_Z``); the angles of OpenSim's
    full-body models move a skeleton of common proportions. Raises SourceError, quoting the columns,
    for others.
    """
    text, where = iter(source.lines()), source.where
    degrees = True
    for line in text:
        key, _, value = line.strip().partition("=")
        if key.strip().lower() == "indegrees":
            degrees = value.strip().lower() != "no"
        if line.strip().lower() == "endheader":
            break
    headings = next((line.split() for line in text if line.strip()), [])
    if len(headings) < 2 or headings[0].lower() != "time":
        raise SourceError("this file has no column time after endheader", where=where)
    parsed, bad = parse_lines(text, lambda line: _numbers(line, len(headings)))
    if not parsed:
        raise SourceError("there are no rows in this file", where=where)
    rows = np.array(parsed, float)
    headings = [_coordinate(heading) for heading in headings]
    values = dict(zip(headings, rows.T, strict=True))
    times = rows[:, 0]
    if source.rate_hz:
        times = np.arange(len(rows)) / require_rate(source.rate_hz, where)
    points = [
        h[:-2] for h in headings if h[-2:] == "_X" and {h[:-2] + "_Y", h[:-2] + "_Z"} <= set(values)
    ]
    if len(points) > 3:
        names = tuple(points)
        places = np.stack([np.stack([values[f"{n}_{a}"] for a in "XYZ"], 1) for n in names], 1)
    elif all(name in values for name in _NEEDED):
        names = (*_JOINTS, *(f"{side} {part}" for side in ("right", "left") for part in _SIDE))
        places = _posed(values, np.pi / 180 if degrees else 1.0, len(rows))
    else:
        raise SourceError(
            f"its columns ({first_of(headings, 8)}) are neither places of joints nor the angles of "
            "a full body",
            where=where,
            hint=f"angles need {', '.join(_NEEDED)}; or use the markers (.trc)",
        )
    events: list[Event] = [SkippedData(BAD_ROW)] * bad
    return Take(names, 3, [*events, *frames_of(places[:, None], times.tolist())], source.rate_hz)


def _coordinate(heading: str) -> str:
    """Return the name in ``/jointset/hip_r/hip_flexion_r/value``, as newer versions write it."""
    if not heading.endswith("/value"):
        return heading
    return heading.removesuffix("/value").rpartition("/")[2]


def _numbers(line: str, width: int) -> list[float]:
    """Return the time and the values of a row; a value may be NaN. ValueError for other rows."""
    row = [number(cell) for cell in line.split()]
    if len(row) != width or not np.isfinite(row[0]) or np.isinf(row).any():
        raise ValueError("not the numbers of a row")
    return row


def _posed(values: dict[str, Numbers], unit: float, count: int) -> Numbers:
    """Return the joints [T, 15, 3] of the skeleton, posed by the angles."""

    def angle(name: str, sign: float = 1.0) -> Numbers:
        return sign * unit * values.get(name, np.zeros(count))

    def turned(*steps: tuple[int, Numbers]) -> Numbers:
        turn = np.tile(np.eye(3), (count, 1, 1))
        for axis, by in steps:
            turn = turn @ rotations(axis, by)
        return turn

    def at(
        place: Numbers, turn: Numbers, offset: tuple[float, ...], mirror: float = 1.0
    ) -> Numbers:
        return place + turn @ (np.array(offset) * (1, 1, mirror))

    pelvis = np.stack([values.get(f"pelvis_t{a}", np.zeros(count)) for a in "xyz"], 1)
    frame = turned(
        (2, angle("pelvis_tilt")), (0, angle("pelvis_list")), (1, angle("pelvis_rotation"))
    )
    back = at(pelvis, frame, _BACK)
    torso = frame @ turned(
        (2, angle("lumbar_extension")), (0, angle("lumbar_bending")), (1, angle("lumbar_rotation"))
    )
    sides = []
    middle = np.zeros((count, 3))
    for side, m in (("r", 1.0), ("l", -1.0)):
        arm = torso @ turned(
            (2, angle(f"arm_flex_{side}")),
            (0, angle(f"arm_add_{side}", m)),
            (1, angle(f"arm_rot_{side}", m)),
        )
        shoulder = at(back, torso, _SHOULDER, m)
        elbow = at(shoulder, arm, _UPPER_ARM, m)
        forearm = arm @ turned((2, angle(f"elbow_flex_{side}")))
        hip = at(pelvis, frame, _HIP, m)
        leg = frame @ turned(
            (2, angle(f"hip_flexion_{side}")),
            (0, angle(f"hip_adduction_{side}", m)),
            (1, angle(f"hip_rotation_{side}", m)),
        )
        knee = at(hip, leg, _THIGH, m)
        # Knees bend one way; older models count it negative.
        shank = leg @ turned((2, -np.abs(angle(f"knee_angle_{side}"))))
        wrist, ankle = at(elbow, forearm, _FOREARM, m), at(knee, shank, _SHANK, m)
        sides += [shoulder, elbow, wrist, hip, knee, ankle]
        middle += hip / 2
    trunk = [middle, at(back, torso, _NECK), at(back, torso, _HEAD)]
    return np.stack([*trunk, *sides], 1)
