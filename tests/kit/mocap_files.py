"""Writers of recordings of motion capture and pose estimators, as their programs write them."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costream.core.layouts import BODY_15, COCO_17, MEDIAPIPE_33, Layout, joint_mapping, marker_sets

PLUG_IN_GAIT, MOTIVE = marker_sets()["plug-in-gait"], marker_sets()["motive"]
# A person who stands, faces +z and has the arms out; metres, y up, the left side at +x.
_STANDING = {
    "hips": (0, 0.95, 0),
    "neck": (0, 1.45, 0),
    "head": (0, 1.7, 0.02),
    "left shoulder": (0.2, 1.45, 0),
    "left elbow": (0.45, 1.44, 0),
    "left wrist": (0.7, 1.43, 0),
    "left hip": (0.1, 0.95, 0),
    "left knee": (0.11, 0.5, 0.02),
    "left ankle": (0.12, 0.08, 0),
}


# Joint of body-15: parts of other layouts that are put there.
_NEAR = {
    "ankle": ("foot", "toes", "toe", "heel"),
    "knee": ("shank", "thigh"),
    "hip": ("pelvis",),
    "wrist": ("hand", "thumb", "index", "pinky"),
    "elbow": ("forearm", "arm"),
    "head": ("eye", "nose", "ear", "mouth", "top"),
    "neck": ("back", "breastbone", "chest"),
    "shoulder": ("clavicle",),
    "hips": ("spine",),
}


def standing(frames: int = 12, persons: int = 1) -> np.ndarray:
    """Return persons who stand side by side and wave, [T, M, 15, 3]."""
    out = np.zeros((frames, persons, 15, 3))
    for k, name in enumerate(BODY_15.joints):
        x, y, z = _STANDING[name.replace("right", "left")]
        out[:, :, k] = (-x if name.startswith("right") else x, y, z)
    wave = 0.2 * np.sin(np.arange(frames) / 3)
    out[:, :, BODY_15.joints.index("left wrist"), 1] += wave[:, None]
    out[..., 0] += 2.0 * np.arange(persons)[:, None]
    return out


def as_layout(x: np.ndarray, layout: Layout) -> np.ndarray:
    """Return [..., 15, 3] as joints of ``layout``: each at the nearest joint of the 15."""
    out = np.zeros((*x.shape[:-2], len(layout.joints), x.shape[-1]))
    for k, name in enumerate(layout.joints):
        side, _, part = name.rpartition(" ")
        side = side.split(" ")[0]
        near = next((to for to, parts in _NEAR.items() if part in parts), part)
        sided = f"{side} {near}" if f"{side} {near}" in BODY_15.joints else near
        out[..., k, :] = x[..., BODY_15.joints.index(sided), :]
    return out


def z_up(x: np.ndarray) -> np.ndarray:
    """Return coordinates of a laboratory with z up, millimetres."""
    return np.stack([x[..., 0], -x[..., 2], x[..., 1]], -1) * 1000


def c3d_file(path: Path, x: np.ndarray, names: Sequence[str], rate_hz: float = 50.0) -> Path:
    """Write [T, V, 3] with the package c3d; NaN is a marker that was not seen."""
    c3d = pytest.importorskip("c3d")
    writer = c3d.Writer(point_rate=rate_hz, analog_rate=rate_hz)
    writer.set_point_labels(list(names))
    for frame in x:
        lost = np.isnan(frame).any(1)
        points = np.zeros((len(names), 5), np.float32)
        points[:, :3] = np.where(lost[:, None], 0, frame)
        points[lost, 3] = -1
        writer.add_frames([(points, np.zeros((0, 1), np.float32))])
    with path.open("wb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there are no analog data
        writer.write(file)
    return path


def trc(path: Path, x: np.ndarray, names: Sequence[str], rate_hz: float = 50.0) -> Path:
    """Write [T, V, 3] as OpenSim's documentation shows the format."""
    lines = [
        f"PathFileType\t4\t(X/Y/Z)\t{path.name}",
        "DataRate\tCameraRate\tNumFrames\tNumMarkers\tUnits\tOrigDataRate\tOrigDataStartFrame"
        "\tOrigNumFrames",
        f"{rate_hz:.2f}\t{rate_hz:.2f}\t{len(x)}\t{len(names)}\tmm\t{rate_hz:.2f}\t1\t{len(x)}",
        "Frame#\tTime\t" + "\t\t\t".join(names),
        "\t\t" + "\t".join(f"{a}{k + 1}" for k in range(len(names)) for a in "XYZ"),
        "",
    ]
    for t, frame in enumerate(x):
        cells = ["" if np.isnan(v) else repr(float(v)) for v in frame.ravel()]
        lines.append("\t".join([str(t + 1), repr(t / rate_hz), *cells]))
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def motive(
    path: Path,
    x: np.ndarray,
    bones: Sequence[str],
    rate_hz: float = 50.0,
    *,
    root: str = "Ann:Hip",
) -> Path:
    """Write [T, V, 3] as Motive's CSV of the bones of a skeleton, with their rotations.

    ``root``: the name of its first bone, of Motive 3; that of the skeleton in older versions.
    """
    names = [root if bone == "Hip" else f"Ann:{bone}" for bone in bones]
    axes = [*("X", "Y", "Z", "W"), *("X", "Y", "Z")]
    kinds = 4 * ["Rotation"] + 3 * ["Position"]
    rows = [
        ["Format Version", "1.23", "Take Name", "Take", "Export Frame Rate", f"{rate_hz:.6f}"],
        [],
        ["", "Type", *(7 * len(names) * ["Bone"])],
        ["", "Name", *(name for name in names for _ in axes)],
        ["", "ID", *(7 * len(names) * ["1"])],
        ["", "", *(len(names) * kinds)],
        ["Frame", "Time (Seconds)", *(len(names) * axes)],
    ]
    for t, frame in enumerate(x):
        cells = [f"{v:.6f}" for place in frame for v in (0, 0, 0, 1, *place)]
        rows.append([str(t), f"{t / rate_hz:.6f}", *cells])
    path.write_text("".join(",".join(row) + "\n" for row in rows))
    return path


def vicon(path: Path, x: np.ndarray, markers: Sequence[str], rate_hz: float = 50.0) -> Path:
    """Write [T, V, 3] as a CSV of Vicon Nexus with a section before the trajectories."""
    names = [cell for marker in markers for cell in (f"Ann:{marker}", "", "")]
    rows = [
        *(["Joints"], [f"{rate_hz:g}"], ["", "", "Ann:LKneeAngles"]),
        *(["Frame", "Sub Frame", "RX"], ["", "", "deg"], ["1", "0", "5"], []),
        *(["Trajectories"], [f"{rate_hz:g}"], ["", "", *names]),
        ["Frame", "Sub Frame", *(len(markers) * ["X", "Y", "Z"])],
        ["", "", *(3 * len(markers) * ["mm"])],
    ]
    for t, frame in enumerate(x):
        rows.append([str(t + 1), "0", *(f"{v:.4f}" for v in frame.ravel())])
    path.write_text("".join(",".join(row) + "\n" for row in rows))
    return path


def visual3d(path: Path, x: np.ndarray, markers: Sequence[str]) -> Path:
    """Write [T, V, 3] as Visual3D exports signals, also of recordings of Theia3D."""
    count = 3 * len(markers)
    rows = [
        ["", *(count * ["walk.c3d"])],
        ["", *(marker for marker in markers for _ in range(3))],
        *(["", *(count * ["TARGET"])], ["", *(count * ["PROCESSED"])]),
        ["ITEM", *(len(markers) * ["X", "Y", "Z"])],
    ]
    for t, frame in enumerate(x):
        rows.append([str(t + 1), *(f"{v:.4f}" for v in frame.ravel())])
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


def mot(path: Path, columns: dict[str, Sequence[float]], rate_hz: float = 50.0) -> Path:
    """Write columns as OpenSim's motions."""
    rows = list(zip(*columns.values(), strict=True))
    head = [path.stem, "version=1", f"nRows={len(rows)}", f"nColumns={len(columns) + 1}"]
    lines = [*head, "inDegrees=yes", "endheader", "\t".join(["time", *columns])]
    lines += ["\t".join(map(repr, map(float, (t / rate_hz, *row)))) for t, row in enumerate(rows)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


# Bone, bone above, offset from it: a person with the names of MotionBuilder, arms out.
BONES = (
    ("Hips", "", (0, 0, 0)),
    ("Spine", "Hips", (0, 10, 0)),
    ("Neck", "Spine", (0, 40, 0)),
    ("Head", "Neck", (0, 20, 0)),
    ("LeftArm", "Neck", (20, -5, 0)),
    ("LeftForeArm", "LeftArm", (25, 0, 0)),
    ("LeftHand", "LeftForeArm", (25, 0, 0)),
    ("RightArm", "Neck", (-20, -5, 0)),
    ("RightForeArm", "RightArm", (-25, 0, 0)),
    ("RightHand", "RightForeArm", (-25, 0, 0)),
    ("LeftUpLeg", "Hips", (10, -5, 0)),
    ("LeftLeg", "LeftUpLeg", (0, -45, 0)),
    ("LeftFoot", "LeftLeg", (0, -42, 0)),
    ("RightUpLeg", "Hips", (-10, -5, 0)),
    ("RightLeg", "RightUpLeg", (0, -45, 0)),
    ("RightFoot", "RightLeg", (0, -42, 0)),
)


def bvh(path: Path, root: np.ndarray, angles: np.ndarray, prefix: str = "") -> Path:
    """Write the root [T, 3] and the angles [T, bones, 3] (z, x, y; degrees) of ``BONES``."""

    def bone(name: str, depth: int) -> list[str]:
        pad = "\t" * depth
        offset = next(o for n, _, o in BONES if n == name)
        where = "3 Zrotation Xrotation Yrotation"
        if depth == 0:
            where = "6 Xposition Yposition Zposition Zrotation Xrotation Yrotation"
        out = [f"{pad}{'JOINT' if depth else 'ROOT'} {prefix}{name}", pad + "{"]
        out += [f"{pad}\tOFFSET {' '.join(map(str, offset))}", f"{pad}\tCHANNELS {where}"]
        below = [n for n, above, _ in BONES if above == name]
        for each in below:
            out += bone(each, depth + 1)
        if not below:
            out += [f"{pad}\tEnd Site", pad + "\t{", f"{pad}\t\tOFFSET 0 5 0", pad + "\t}"]
        return [*out, pad + "}"]

    order = [line.split()[1].removeprefix(prefix) for line in bone("Hips", 0) if "JOINT" in line]
    index = [[n for n, _, _ in BONES].index(name) for name in ("Hips", *order)]
    lines = ["HIERARCHY", *bone("Hips", 0), "MOTION", f"Frames: {len(root)}", "Frame Time: 0.02"]
    for place, turn in zip(root, angles[:, index], strict=True):
        lines.append(" ".join(f"{v:.6f}" for v in (*place, *turn.ravel())))
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def moving_bones(frames: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Return roots and angles for ``bvh``."""
    rng = np.random.default_rng(4)
    root = np.array([5.0, 95.0, 3.0]) + rng.normal(0, 1, (frames, 3))
    return root, rng.normal(0, 15, (frames, len(BONES), 3))


def deeplabcut_table(x: np.ndarray, names: Sequence[str], individuals: bool) -> Any:
    """Return [T, M, V, 3] (x, y, likelihood) as the table that DeepLabCut saves."""
    import pandas as pd

    persons = [f"individual{m + 1}" for m in range(x.shape[1])]
    levels = [["DLC_resnet50"], *([persons] if individuals else []), list(names)]
    named = ["scorer", *(["individuals"] if individuals else []), "bodyparts", "coords"]
    columns = pd.MultiIndex.from_product([*levels, ["x", "y", "likelihood"]], names=named)
    return pd.DataFrame(x.reshape(len(x), -1), columns=columns)


def deeplabcut_hdf5(path: Path, x: np.ndarray, names: Sequence[str], individuals: bool) -> Path:
    """Write the same as pandas and PyTables do, which need not be installed."""
    h5py = pytest.importorskip("h5py")
    table = deeplabcut_table(x, names, individuals)
    values = table.to_numpy(np.float64)
    rows = np.zeros(len(x), [("index", "<i8"), ("values_block_0", "<f8", values.shape[1:])])
    rows["index"], rows["values_block_0"] = table.index, values
    with h5py.File(path, "w") as file:
        group = file.create_group("df_with_missing")
        group.attrs["non_index_axes"] = np.bytes_(pickle.dumps([(1, list(table.columns))], 0))
        group.create_dataset("table", data=rows)
    return path


def sleap(path: Path, x: np.ndarray, names: Sequence[str]) -> Path:
    """Write [T, M, V, 2] as SLEAP's "Export Analysis HDF5"."""
    h5py = pytest.importorskip("h5py")
    tracks = x.transpose(1, 3, 2, 0)
    with h5py.File(path, "w") as file:
        file["tracks"] = tracks
        file["node_names"] = np.array([name.encode() for name in names])
        file["track_names"] = np.array([f"track_{m}".encode() for m in range(x.shape[1])])
        file["track_occupancy"] = np.ones((len(x), x.shape[1]), np.uint8)
        file["point_scores"] = np.where(np.isnan(tracks[:, 0]), np.nan, 0.9)
    return path


def mmpose(x: np.ndarray, names: Sequence[str], named: bool = True) -> dict[str, Any]:
    """Return [T, M, V, C] as MMPose's demos save a video."""
    ids = {str(k): name.replace(" ", "_") for k, name in enumerate(names)}
    return {
        "meta_info": {"dataset_name": "coco", **({"keypoint_id2name": ids} if named else {})},
        "instance_info": [
            {
                "frame_id": t + 1,
                "instances": [
                    {
                        "keypoints": person.tolist(),
                        "keypoint_scores": [0.8] * len(names),
                        "bbox": [[0.0, 0.0, 1.0, 1.0]],
                        "bbox_score": 0.9,
                    }
                    for person in frame
                ],
            }
            for t, frame in enumerate(x)
        ],
    }


def alphapose(x: np.ndarray) -> list[dict[str, Any]]:
    """Return [T, M, V, 2] as AlphaPose's default results, with the identities of its tracker."""
    return [
        {
            "image_id": f"{t}.jpg",
            "category_id": 1,
            "keypoints": np.concatenate([person, np.full((len(person), 1), 0.7)], 1)
            .ravel()
            .tolist(),
            "score": 2.5,
            "box": [0.0, 0.0, 1.0, 1.0],
            "idx": m + 1,
        }
        for t, frame in enumerate(x)
        for m, person in enumerate(frame)
    ]


def mediapipe(x: np.ndarray, *, stamps: bool = True) -> list[dict[str, Any]]:
    """Return [T, 33, 3] as MediaPipe's results for the web, saved frame by frame."""
    return [
        {
            **({"timestamp": 40 * t} if stamps else {}),
            "poseLandmarks": [{"x": 0.5, "y": 0.5, "z": 0.0, "visibility": 1.0}] * 33,
            "poseWorldLandmarks": [
                {"x": x_, "y": y, "z": z, "visibility": 0.9} for x_, y, z in frame.tolist()
            ],
        }
        for t, frame in enumerate(x)
    ]


def mediapipe_text(path: Path, x: np.ndarray, *, tasks: bool = False) -> Path:
    """Write [T, 33, 3] as ``print`` shows the results of MediaPipe; ``tasks``: its newer API."""
    lines = []
    for frame in x * (-1, -1, 1):  # x right, y down, z away
        if tasks:
            named = [f"x={a}, y={b}, z={c}, visibility=0.9, presence=0.9" for a, b, c in frame]
            picture = ", ".join(f"NormalizedLandmark({text})" for text in named)
            space = ", ".join(f"Landmark({text})" for text in named)
            both = f"pose_landmarks=[[{picture}]], pose_world_landmarks=[[{space}]]"
            lines.append(f"PoseLandmarkerResult({both}, segmentation_masks=None)")
        else:
            rows = zip(("x", "y", "z"), frame.T, strict=True)
            values = {name: column.tolist() for name, column in rows}
            for k in range(len(frame)):
                inner = [f"  {name}: {of[k]}" for name, of in values.items() if of[k]]
                lines += ["landmark {", *inner, "  visibility: 0.9", "}"]
    path.write_text("\n".join(lines) + "\n")
    return path


def saved(path: Path, content: object) -> Path:
    """Write JSON, or a pickle."""
    if path.suffix == ".pkl":
        path.write_bytes(pickle.dumps(content))
    else:
        path.write_text(json.dumps(content), "utf-8")
    return path


_PIXELS = np.array((100.0, -100.0)), np.array((50.0, 400.0))


def pixels(layout: Layout, frames: int = 12, persons: int = 1) -> np.ndarray:
    """Return standing persons in a picture, y down, [T, M, V, 2]."""
    scale, shift = _PIXELS
    return as_layout(standing(frames, persons), layout)[..., :2] * scale + shift


def _likely(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.full((*x.shape[:-1], 1), 0.9)], -1)


# Writers of so many frames into a folder, one of each format, as ``skeleton_files.SKELETONS``.
MOCAP: dict[str, Callable[[Path, int], Path]] = {
    "c3d": lambda folder, n: c3d_file(
        folder / "a.c3d",
        z_up(as_layout(standing(n), PLUG_IN_GAIT))[:, 0],
        PLUG_IN_GAIT.headings,
    ),
    "trc": lambda folder, n: trc(folder / "a.trc", z_up(standing(n))[:, 0], BODY_15.joints),
    "motive": lambda folder, n: motive(
        folder / "a.csv", as_layout(standing(n), MOTIVE)[:, 0], MOTIVE.headings
    ),
    "vicon": lambda folder, n: vicon(
        folder / "a.csv",
        z_up(as_layout(standing(n), PLUG_IN_GAIT))[:, 0],
        PLUG_IN_GAIT.headings,
    ),
    "visual3d": lambda folder, n: visual3d(
        folder / "a.txt",
        z_up(as_layout(standing(n), PLUG_IN_GAIT))[:, 0],
        PLUG_IN_GAIT.headings,
    ),
    "mediapipe text": lambda folder, n: mediapipe_text(
        folder / "a.txt", as_layout(standing(n), MEDIAPIPE_33)[:, 0]
    ),
    "bvh": lambda folder, n: bvh(folder / "a.bvh", *moving_bones(n)),
    "mot": lambda folder, n: mot(
        folder / "a.mot",
        dict.fromkeys(
            ("pelvis_tilt", "hip_flexion_r", "hip_flexion_l", "knee_angle_r", "knee_angle_l"),
            [5.0] * n,
        ),
    ),
    "deeplabcut csv": lambda folder, n: deeplabcut_csv(folder / "a.csv", n),
    "deeplabcut h5": lambda folder, n: deeplabcut_hdf5(
        folder / "a.h5", _likely(pixels(COCO_17, n)), COCO_17.joints, True
    ),
    "sleap": lambda folder, n: sleap(folder / "a.h5", pixels(COCO_17, n, 2), COCO_17.joints),
    "mmpose": lambda folder, n: saved(
        folder / "a.json", mmpose(pixels(COCO_17, n, 2), COCO_17.joints)
    ),
    "alphapose": lambda folder, n: saved(folder / "a.json", alphapose(pixels(COCO_17, n, 2))),
    "mediapipe": lambda folder, n: saved(
        folder / "a.json", mediapipe(as_layout(standing(n), MEDIAPIPE_33)[:, 0])
    ),
}


def deeplabcut_csv(path: Path, frames: int) -> Path:
    """Write a table of one person."""
    table = deeplabcut_table(_likely(pixels(COCO_17, frames)), COCO_17.joints, False)
    table.to_csv(path)
    return path


def to_body(joints: np.ndarray, layout: Layout) -> np.ndarray:
    """Return joints [..., V, C] of ``layout`` as those of body-15."""
    parts = joint_mapping(layout, BODY_15)
    return np.stack([joints[..., list(part), :].mean(-2) for part in parts], -2)
