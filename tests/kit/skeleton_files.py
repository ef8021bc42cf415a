"""Writers of skeleton recordings, in the dialects that people have."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from costream.core.layouts import BODY_25, COCO_17, MEDIAPIPE_33, NTU_25, OPENPOSE_18, Layout
from costream.core.records import Fault, Item, SkeletonFrame, SourceInfo
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source

Heading = Callable[[int, str, str], str]  # joint, its name, axis -> heading


def underscored(_: int, name: str, axis: str) -> str:
    """Return a heading like left_wrist_x."""
    return f"{name.replace(' ', '_')}_{axis}"


def clip(
    layout: Layout, frames: int = 20, axes: int = 3, persons: int = 1, seed: int = 0
) -> np.ndarray:
    """Return persons who drift slowly and stand well apart, [T, M, V, C], four decimals."""
    rng = np.random.default_rng(seed)
    body = rng.uniform(-1, 1, (1, persons, len(layout.joints), axes))
    steps = rng.normal(0, 0.02, (frames, persons, 1, axes)).cumsum(0)
    apart = np.zeros((1, persons, 1, axes))
    apart[..., 0] = 5.0 * np.arange(persons).reshape(1, persons, 1)
    return (body + steps + apart + 3.0).round(4).astype(np.float32)


def wide(
    path: Path,
    x: np.ndarray,
    layout: Layout,
    heading: Heading,
    *,
    delimiter: str = ",",
    stamps: Sequence[str] | None = None,
    stamp: str | None = "frame",
    scores: np.ndarray | None = None,
) -> Path:
    """Write [T, V, C] with a row a frame; NaN gives an empty cell."""
    axes = [*"xyz"[: x.shape[2]], *(["score"] if scores is not None else [])]
    head = [stamp] if stamp else []
    head += [heading(k, name, axis) for k, name in enumerate(layout.joints) for axis in axes]
    rows = [head]
    for t, frame in enumerate(x):
        row = [stamps[t] if stamps else str(t)] if stamp else []
        for k, joint in enumerate(frame):
            row += ["" if np.isnan(v) else repr(float(v)) for v in joint.astype(np.float64)]
            row += [str(scores[t, k])] if scores is not None else []
        rows.append(row)
    path.write_text("".join(delimiter.join(row) + "\n" for row in rows), "utf-8")
    return path


def long(path: Path, x: np.ndarray, names: Sequence[str], head: str, person: bool = True) -> Path:
    """Write [T, M, V, C] with a row a joint: frame, person, joint, x, y, ..."""
    lines = [head]
    for t in range(x.shape[0]):
        for m in range(x.shape[1]):
            for k, name in enumerate(names):
                who = f"{m + 7}," if person else ""
                places = ",".join(repr(float(v)) for v in x[t, m, k].astype(np.float64))
                lines.append(f"{t},{who}{name},{places}")
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def ntu(path: Path, x: np.ndarray, ids: Sequence[str] | None = None) -> Path:
    """Write [T, M, 25, 3] as a .skeleton file; a person of zeros is not there."""
    lines = [str(len(x))]
    for frame in x:
        bodies = [m for m in range(len(frame)) if frame[m].any()]
        lines.append(str(len(bodies)))
        for m in bodies:
            key = ids[m] if ids else str(72057594037900000 + m)
            lines += [f"{key} 0 1 1 1 1 0 0.01 -0.02 2", "25"]
            lines += [f"{a!r} {b!r} {c!r} 1 2 3 4 1 0 0 0 2" for a, b, c in frame[m].tolist()]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def kinetics(path: Path, x: np.ndarray, first: int = 1) -> Path:
    """Write [T, M, 18, 2], y down in 0..1, as Kinetics-skeleton JSON."""
    data = [
        {
            "frame_index": t + first,
            "skeleton": [
                {"pose": person.astype(float).round(4).ravel().tolist(), "score": [0.9] * 18}
                for person in frame
            ],
        }
        for t, frame in enumerate(x)
    ]
    path.write_text(json.dumps({"data": data, "label": "wave", "label_index": 3}), "utf-8")
    return path


def openpose(folder: Path, x: np.ndarray, name: str = "clip") -> Path:
    """Write [T, M, V, 2], pixels with y down, as a folder of keypoint files."""
    folder.mkdir()
    for t, frame in enumerate(x):
        sure = np.full((*frame.shape[:2], 1), 0.8)
        people = [
            {"person_id": [-1], "pose_keypoints_2d": person.ravel().tolist()}
            for person in np.concatenate([frame, sure], 2).astype(float)
        ]
        text = json.dumps({"version": 1.3, "people": people})
        (folder / f"{name}_{t:012d}_keypoints.json").write_text(text, "utf-8")
    return folder


def pyskl(path: Path, x: np.ndarray) -> Path:
    """Write [T, M, 17, 2], pixels with y down, as a pickle of one recording."""
    places = x.transpose(1, 0, 2, 3)
    entry = {"frame_dir": "a", "keypoint": places, "keypoint_score": np.ones(places.shape[:3])}
    path.write_bytes(pickle.dumps({"annotations": [entry]}))
    return path


def array(path: Path, x: np.ndarray) -> Path:
    """Write [T, M, V, C] as an array [N, C, T, V, M]."""
    np.save(path, x.transpose(3, 0, 2, 1)[None])
    return path


# Writers of a recording of so many frames into a folder, one of each format.
SKELETONS: dict[str, Callable[[Path, int], Path]] = {
    "wide csv": lambda folder, n: wide(
        folder / "a.csv", clip(NTU_25, n)[:, 0], NTU_25, underscored
    ),
    "rows csv": lambda folder, n: wide(
        folder / "a.csv", clip(NTU_25, n)[:, 0], NTU_25, underscored, stamp=None
    ),
    "long csv": lambda folder, n: long(
        folder / "a.csv",
        clip(MEDIAPIPE_33, n, persons=2),
        MEDIAPIPE_33.joints,
        "frame,person,landmark,x,y,z",
    ),
    "ntu": lambda folder, n: ntu(folder / "a.skeleton", clip(NTU_25, n, persons=2)),
    "kinetics": lambda folder, n: kinetics(
        folder / "a.json", clip(OPENPOSE_18, n, axes=2, persons=2) / 20
    ),
    "openpose": lambda folder, n: openpose(
        folder / "keypoints", clip(BODY_25, n, axes=2, persons=2)
    ),
    "pyskl": lambda folder, n: pyskl(folder / "k.pkl", clip(COCO_17, n, axes=2, persons=2)),
    "array": lambda folder, n: array(folder / "x.npy", clip(NTU_25, n, persons=2)),
}


def read(path: Path | str, **options: object) -> tuple[SourceInfo, list[Item]]:
    """Open a source and return all of its items."""
    source = open_source(str(path), SourceOptions(**options))  # type: ignore[arg-type]
    try:
        return source.open(), list(source.items())
    finally:
        source.close()


def frames(items: Sequence[Item]) -> list[SkeletonFrame]:
    return [item for item in items if isinstance(item, SkeletonFrame)]


def faults(items: Sequence[Item]) -> list[Fault]:
    return [item for item in items if isinstance(item, Fault)]


def joints(path: Path | str, **options: object) -> np.ndarray:
    """Return the joints of a source, [T, M, V, C], which must be intact."""
    _, items = read(path, **options)
    assert faults(items) == []
    return np.stack([frame.joints for frame in frames(items)])
