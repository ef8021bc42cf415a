"""Skeleton recordings other than tables: NTU, Kinetics, OpenPose, pyskl, arrays."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from costream.core.errors import SourceError, UsageError
from costream.core.layouts import BODY_15, BODY_25, COCO_17, NTU_25, OPENPOSE_18, Layout
from costream.sources.base import SourceOptions
from costream.sources.features.feature_source import FeatureSource
from costream.sources.skeletons.skeleton_format import FORMATS, SkeletonInput, skeleton_format
from costream.sources.skeletons.skeleton_source import SkeletonSource
from costream.sources.skeletons.take import Take, frame_times, frames_of
from costream.sources.uris import expand, open_source, sniff
from kit.paths import REFS
from kit.skeleton_files import clip, faults, frames, joints, kinetics, ntu, openpose, read

NTU_REFS = REFS / "skeleton"
RECORDED = NTU_REFS / "S001C001P001R001A010.skeleton"

# --- NTU --------------------------------------------------------------------------------------


def test_ntu(tmp_path: Path) -> None:
    x = clip(NTU_25, 9, persons=2)
    x[3] = 0
    x[:2, 1] = 0
    path = ntu(tmp_path / "S001C001P001R001A001.skeleton", x)
    info, items = read(path)
    assert (info.kind, info.layout, info.axes, info.rate_hz) == ("skeleton", "ntu-25", 3, 30.0)
    assert info.duration_s == pytest.approx(9 / 30)
    assert [f.time_s for f in frames(items)] == pytest.approx([k / 30 for k in range(9)])
    assert np.array_equal(np.stack([f.joints for f in frames(items)]), x)
    assert not frames(items)[3].scores.any()  # nobody is there: a frame all the same
    _, items = read(path, frame_rate_hz=15.0, start_s=0.2, end_s=0.4)
    assert [f.time_s for f in frames(items)] == pytest.approx([3 / 15, 4 / 15, 5 / 15])


@pytest.mark.skipif(not RECORDED.exists(), reason="needs ../shared/refs/skeleton")
def test_ntu_like_the_benchmarks_reader() -> None:
    """Coordinates are those of the reference reader; its two persons are ours, by energy."""
    theirs = np.load(NTU_REFS / "parse_ntu.npz")["read_xyz"].transpose(1, 3, 2, 0)  # [T, M, V, C]
    info, items = read(RECORDED)
    ours = np.stack([f.joints for f in frames(items)])
    assert (info.layout, len(ours)) == ("ntu-25", 14)
    order = [0, 1] if np.array_equal(ours[:, 0], theirs[:, 0].astype(np.float32)) else [1, 0]
    assert np.array_equal(ours[:, order], theirs.astype(np.float32))
    present = [int(f.scores.any(axis=1).sum()) for f in frames(items)]
    bodies = np.load(NTU_REFS / "parse_ntu.npz")["bodies_per_frame"]
    assert present == [min(2, int(n)) for n in bodies]  # the third has no slot


@pytest.mark.skipif(not RECORDED.exists(), reason="needs ../shared/refs/skeleton")
def test_room_for_a_third() -> None:
    _, items = read(RECORDED, persons=4)
    present = [int(f.scores.any(axis=1).sum()) for f in frames(items)]
    assert present == np.load(NTU_REFS / "parse_ntu.npz")["bodies_per_frame"].tolist()
    assert frames(items)[0].joints.shape == (4, 25, 3)


def test_ntu_ids_swap_places_in_the_file(tmp_path: Path) -> None:
    x = clip(NTU_25, 6, persons=2)
    swapped = x.copy()
    swapped[3:] = x[3:, ::-1]
    text = ntu(tmp_path / "a.skeleton", x[:3], ["7", "9"]).read_text().split("\n", 1)[1]
    text += ntu(tmp_path / "b.skeleton", swapped[3:], ["9", "7"]).read_text().split("\n", 1)[1]
    (tmp_path / "c.skeleton").write_text("6\n" + text)
    assert np.array_equal(joints(tmp_path / "c.skeleton"), x)


def test_ntu_tracking_states(tmp_path: Path) -> None:
    path = ntu(tmp_path / "a.skeleton", clip(NTU_25, 1))
    lines = path.read_text().split("\n")
    lines[4] = lines[4].removesuffix("2") + "0"
    lines[5] = lines[5].removesuffix("2") + "1"
    path.write_text("\n".join(lines))
    _, items = read(path)
    assert frames(items)[0].scores[0, :3].tolist() == [0.0, 0.5, 1.0]
    assert not frames(items)[0].joints[0, 0].any()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_ntu_cut_off(tmp_path: Path, share: float) -> None:
    path = ntu(tmp_path / "a.skeleton", clip(NTU_25, 10))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    _, items = read(path)
    assert len(frames(items)) == int(10 * share)
    assert [fault.fatal for fault in faults(items)] == [True]
    assert f"{int(10 * share)} of 10 frames" in faults(items)[0].message


def test_ntu_damaged(tmp_path: Path) -> None:
    path = ntu(tmp_path / "a.skeleton", clip(NTU_25, 10))
    lines = path.read_text().split("\n")
    lines[70] = lines[70].replace(".", "!")
    path.write_text("\n".join(lines))
    _, items = read(path)
    assert len(frames(items)) == 2
    assert "damaged in frame 2 of 10" in faults(items)[0].message


def test_no_ntu(tmp_path: Path) -> None:
    (tmp_path / "a.skeleton").write_text("0\n")
    with pytest.raises(SourceError, match="no frames in it"):
        read(tmp_path / "a.skeleton")
    (tmp_path / "a.skeleton").write_text("1" + 400 * "0")
    with pytest.raises(SourceError, match=r"not a \.skeleton file"):
        read(tmp_path / "a.skeleton")
    (tmp_path / "a.skeleton").write_text("5\nwhat\n")
    _, items = read(tmp_path / "a.skeleton")
    assert (frames(items), [f.fatal for f in faults(items)]) == ([], [True])


# --- Kinetics ---------------------------------------------------------------------------------


def test_kinetics(tmp_path: Path) -> None:
    x = (clip(OPENPOSE_18, 6, axes=2, persons=2, seed=3) / 20).round(4)
    info, items = read(kinetics(tmp_path / "a.json", x))
    assert (info.kind, info.layout, info.axes, info.rate_hz) == ("skeleton", "openpose-18", 2, 30.0)
    assert info.duration_s == pytest.approx(6 / 30)
    assert [f.time_s for f in frames(items)] == pytest.approx([k / 30 for k in range(6)])
    found = np.stack([f.joints for f in frames(items)])
    assert np.allclose(found, (x - 0.5) * (1, -1), atol=1e-6)  # centred, y up
    assert np.allclose(np.stack([f.scores for f in frames(items)]), 0.9)


def test_kinetics_missing_joints_and_people(tmp_path: Path) -> None:
    path = kinetics(tmp_path / "a.json", clip(OPENPOSE_18, 4, axes=2) / 20)
    content = json.loads(path.read_text())
    content["data"][0]["skeleton"][0]["score"][4] = 0.0
    content["data"][1]["skeleton"] = []
    del content["data"][2]
    path.write_text(json.dumps(content))
    _, items = read(path)
    assert [f.time_s for f in frames(items)] == pytest.approx([0, 1 / 30, 3 / 30])
    assert np.flatnonzero(frames(items)[0].scores[0] == 0).tolist() == [4]
    assert not frames(items)[0].joints[0, 4].any()  # not -0.5, 0.5
    assert not frames(items)[1].scores.any()


def test_kinetics_with_more_people_than_slots(tmp_path: Path) -> None:
    """Each frame has the two best-scored of the first five, as in ST-GCN's reader."""
    rng = np.random.default_rng(2)
    x = (clip(OPENPOSE_18, 12, axes=2, persons=6, seed=3) / 40).round(4)
    path = kinetics(tmp_path / "a.json", x)
    content = json.loads(path.read_text())
    scores = rng.uniform(0.1, 1, (12, 6, 18)).round(3)
    scores[3, :, 4] = 0
    for t, frame in enumerate(content["data"]):
        for m, person in enumerate(frame["skeleton"]):
            person["score"] = scores[t, m].tolist()
        if t == 5:
            frame["skeleton"] = frame["skeleton"][:1]
    path.write_text(json.dumps(content))
    # feeder_kinetics.py: data [3, T, M, V] of the first five, sorted by the sum of scores
    data = np.zeros((3, 12, 5, 18))
    data[:2] = (x[:, :5] - 0.5).transpose(3, 0, 1, 2) * np.array((1, -1)).reshape(2, 1, 1, 1)
    data[2] = scores[:, :5]
    data[:, 5, 1:] = 0
    data[:2, data[2] == 0] = 0
    order = (-data[2].sum(axis=2)).argsort(axis=1)
    expected = np.stack([data[:, t, m] for t, m in enumerate(order)], 1)[:, :, :2]
    found = frames(read(path)[1])
    places = np.stack([f.joints for f in found]).transpose(3, 0, 1, 2)
    assert np.allclose(places, expected[:2], atol=1e-6)
    assert np.allclose(np.stack([f.scores for f in found]), expected[2])
    # With a slot for each, persons are followed.
    followed = np.stack([f.joints for f in frames(read(path, persons=6)[1])])
    assert np.allclose(followed[0].any(2), True)
    seen = [np.linalg.norm(np.diff(followed[6:, m], axis=0), axis=-1).max() for m in range(6)]
    assert max(seen) < 0.05


def test_kinetics_damage(tmp_path: Path) -> None:
    path = kinetics(tmp_path / "a.json", clip(OPENPOSE_18, 6, axes=2) / 20)
    content = json.loads(path.read_text())
    content["data"][1]["skeleton"][0]["pose"].pop()
    content["data"][2] = 3
    del content["data"][3]["frame_index"]
    path.write_text(json.dumps(content))
    _, items = read(path)
    assert [f.time_s for f in frames(items)] == pytest.approx([0, 4 / 30, 5 / 30])
    assert sum(fault.count for fault in faults(items)) == 3
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 9 // 10])
    _, items = read(path)
    assert [f.time_s for f in frames(items)] == pytest.approx([0, 4 / 30])
    assert faults(items)[-1].fatal


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "contains no skeletons"),
        ('{"data": []}', "contains no skeletons"),
        ('{"label": "x", "people', "contains no skeletons"),
        ("[1, 2]", "contains no skeletons"),
        ("[" * 100_000, "contains no skeletons"),
        ('{"version": 1.3, "people": []}', "one frame of OpenPose keypoints; a recording is"),
    ],
)
def test_other_json(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(SourceError, match=message):
        read(tmp_path / "a.json")


# --- OpenPose ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [OPENPOSE_18, BODY_25])
def test_openpose(tmp_path: Path, layout: Layout) -> None:
    x = (clip(layout, 12, axes=2, persons=2) * 50).round(2)
    folder = openpose(tmp_path / "keypoints", x)
    assert expand(str(folder)) == [str(folder)]
    info, items = read(folder, frame_rate_hz=25.0)
    assert (info.name, info.layout, info.axes) == ("keypoints", layout.name, 2)
    assert info.duration_s == pytest.approx(12 / 25)
    found = np.stack([f.joints for f in frames(items)])
    assert np.allclose(found, x * (1, -1))  # pixels, y up
    assert np.allclose(np.stack([f.scores for f in frames(items)]), 0.8)
    with pytest.raises(UsageError, match="--fps"):
        read(folder)


def test_openpose_ids(tmp_path: Path) -> None:
    x = (clip(BODY_25, 4, axes=2, persons=2) * 50).round(2)
    folder = openpose(tmp_path / "k", x[:, ::-1])
    for t, path in enumerate(sorted(folder.iterdir())):
        content = json.loads(path.read_text())
        for person, key in zip(content["people"], [1, 0], strict=True):
            person["person_id"] = [key]
        content["people"].sort(key=lambda person: person["person_id"][0] * (-1) ** t)
        path.write_text(json.dumps(content))
    assert np.allclose(joints(folder, frame_rate_hz=25.0), x * (1, -1))


def test_openpose_missing_joints_frames_and_damage(tmp_path: Path) -> None:
    folder = openpose(tmp_path / "k", clip(BODY_25, 8, axes=2))
    files = sorted(folder.iterdir())
    content = json.loads(files[0].read_text())
    content["people"][0]["pose_keypoints_2d"][:3] = [0, 0, 0]
    files[0].write_text(json.dumps(content))
    files[1].write_text("{")
    files[2].write_text('{"people": [{"pose_keypoints_2d": [1, 2]}]}')
    files[3].write_text('{"people": []}')
    files[4].unlink()
    (folder / "notes.txt").write_text("x")
    _, items = read(folder, frame_rate_hz=1.0)
    assert [f.time_s for f in frames(items)] == [0, 3, 5, 6, 7]
    assert np.flatnonzero(frames(items)[0].scores[0] == 0).tolist() == [0]
    assert not frames(items)[1].scores.any()
    assert sum(fault.count for fault in faults(items)) == 2


def test_openpose_of_several_videos(tmp_path: Path) -> None:
    folder = openpose(tmp_path / "k", clip(BODY_25, 2, axes=2))
    (folder / "other_0_keypoints.json").write_text('{"people": []}')
    with pytest.raises(SourceError, match=r"keypoints of 2 videos \(clip, other\)"):
        expand(str(folder))


def test_openpose_that_does_not_fit(tmp_path: Path) -> None:
    folder = openpose(tmp_path / "k", clip(BODY_15, 2, axes=2))
    with pytest.raises(SourceError, match="15 joints per person; known numbers are 17, 18, 25"):
        read(folder, frame_rate_hz=1.0)
    with pytest.raises(SourceError, match="15 joints in it, coco-17 has 17"):
        read(folder, frame_rate_hz=1.0, layout="coco-17")
    assert read(folder, frame_rate_hz=1.0, layout="body-15")[0].layout == "body-15"


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    for function in (expand, sniff, open_source):
        with pytest.raises(SourceError, match="this is a folder"):
            function(str(tmp_path))


# --- pyskl ------------------------------------------------------------------------------------


def annotation(x: np.ndarray, **more: object) -> dict[str, object]:
    return {"total_frames": len(x), "label": 3, "keypoint": x.transpose(1, 0, 2, 3), **more}


def test_pyskl_2d(tmp_path: Path) -> None:
    x = clip(COCO_17, 5, axes=2, persons=2) * 60
    scores = np.full((2, 5, 17), 0.7, np.float16)
    scores[1, 2, 4] = 0.005
    content = {
        "split": {"train": ["a"], "test": ["b"]},
        "annotations": [
            annotation(
                x.astype(np.float16), frame_dir="a", img_shape=(480, 640), keypoint_score=scores
            ),
            annotation(x, frame_dir="b/2"),
        ],
    }
    path = tmp_path / "k.pkl"
    path.write_bytes(pickle.dumps(content))
    assert expand(str(path)) == [f"{path}#a", f"{path}#b/2"]
    assert sniff(f"{path}#a") == "skeleton"
    info, items = read(f"{path}#a", frame_rate_hz=30.0)
    assert (info.name, info.layout, info.axes) == ("k.pkl#a", "coco-17", 2)
    assert info.duration_s == pytest.approx(5 / 30)
    wanted = (x.astype(np.float16) / (640, 480) - 0.5) * (1, -1)
    wanted[2, 1, 4] = 0
    assert np.allclose(np.stack([f.joints for f in frames(items)]), wanted, atol=1e-6)
    assert frames(items)[2].scores[1, 4] == 0
    assert read(f"{path}#b/2", frame_rate_hz=30.0)[0].name == "k.pkl#b_2"
    assert np.allclose(joints(f"{path}#b/2", frame_rate_hz=30.0), x * (1, -1))
    with pytest.raises(SourceError, match="no recording 'c' in it; it has a, b/2"):
        read(f"{path}#c", frame_rate_hz=30.0)
    with pytest.raises(SourceError, match="several recordings"):
        SkeletonSource(str(path), SourceOptions(frame_rate_hz=30.0)).open()
    with pytest.raises(UsageError, match="--fps"):
        read(f"{path}#a")


def test_pyskl_3d_and_absent_persons(tmp_path: Path) -> None:
    x = clip(NTU_25, 5, persons=2)
    x[2:, 1] = 0
    path = tmp_path / "k.pkl"
    path.write_bytes(pickle.dumps([annotation(x, frame_dir="S001")]))
    assert expand(str(path)) == [str(path)]
    info, items = read(path, frame_rate_hz=30.0)
    assert (info.layout, info.axes) == ("ntu-25", 3)
    assert np.array_equal(np.stack([f.joints for f in frames(items)]), x)
    assert [f.scores[1].any() for f in frames(items)] == [True, True, False, False, False]


@pytest.mark.parametrize("shape", [None, (0, 640), ("a", "b"), (480, 640, 3), 480, float("nan")])
def test_pyskl_without_a_size_is_in_pixels(tmp_path: Path, shape: object) -> None:
    x = clip(COCO_17, 3, axes=2)
    (tmp_path / "k.pkl").write_bytes(pickle.dumps(annotation(x, img_shape=shape)))
    assert np.array_equal(joints(tmp_path / "k.pkl", frame_rate_hz=9.0)[:, :1], x * (1, -1))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"keypoint": np.zeros((5, 17, 2))}, r"shape \(5, 17, 2\)"),
        ({"keypoint": np.zeros((1, 5, 17, 4))}, r"shape \(1, 5, 17, 4\)"),
        ({"keypoint": np.zeros((1, 5, 19, 2))}, "19 joints are unknown"),
        (
            {"keypoint": np.ones((1, 5, 17, 2)), "keypoint_score": np.ones((1, 4, 17))},
            "differ in shape",
        ),
    ],
)
def test_pyskl_that_does_not_fit(tmp_path: Path, entry: dict[str, object], message: str) -> None:
    (tmp_path / "k.pkl").write_bytes(pickle.dumps(entry))
    with pytest.raises(SourceError, match=message):
        read(tmp_path / "k.pkl", frame_rate_hz=30.0)


# --- arrays -----------------------------------------------------------------------------------

X = clip(NTU_25, 12, persons=2)  # [T, M, V, C]
SHAPES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], int]] = {
    "N C T V M": (lambda x: x.transpose(3, 0, 2, 1)[None], 2),
    "C T V M": (lambda x: x.transpose(3, 0, 2, 1), 2),
    "M T V C": (lambda x: x.transpose(1, 0, 2, 3), 2),
    "T M V C": (lambda x: x, 2),
    "T V C": (lambda x: x[:, 0], 1),
    "T VC": (lambda x: x[:, 0].reshape(len(x), -1), 1),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_arrays(tmp_path: Path, shape: str, ending: str) -> None:
    change, persons = SHAPES[shape]
    path = tmp_path / f"x.{ending}"
    np.save(path, change(X)) if ending == "npy" else np.savez(path, clip=change(X))
    info, items = read(path, layout="ntu-25", frame_rate_hz=30.0)
    assert (info.kind, info.layout, info.axes) == ("skeleton", "ntu-25", 3)
    found = np.stack([f.joints for f in frames(items)])
    assert np.array_equal(found[:, :persons], X[:, :persons])
    with pytest.raises(UsageError, match="--fps"):
        read(path, layout="ntu-25", rate_hz=8.0)


def test_many_clips_in_one_array(tmp_path: Path) -> None:
    x = np.stack([X, X * 2]).transpose(0, 4, 1, 3, 2)  # [N, C, T, V, M]
    path = tmp_path / "train_data_joint.npy"
    np.save(path, x)
    assert expand(str(path)) == [f"{path}#0", f"{path}#1"]
    options = {"layout": "ntu-25", "frame_rate_hz": 30.0}
    assert np.array_equal(joints(f"{path}#1", **options), X * 2)
    assert read(f"{path}#1", **options)[0].name == "train_data_joint.npy#1"
    with pytest.raises(SourceError, match="shape"):
        read(f"{path}#2", **options)


def test_the_third_number_of_a_picture_is_a_score(tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(0.1, 1, (9, 18, 3))
    np.save(tmp_path / "x.npy", x)
    options = {"layout": "openpose-18", "frame_rate_hz": 30.0}
    _, items = read(tmp_path / "x.npy", **options)
    assert np.allclose(frames(items)[3].joints[0], x[3, :, :2] * (1, -1))
    assert np.allclose(frames(items)[3].scores[0], x[3, :, 2])
    found = joints(tmp_path / "x.npy", **options, columns="x,-y,z")
    assert np.allclose(found[3, 0], x[3] * (1, -1, 1))
    with pytest.raises(SourceError, match="in order, without headings"):
        read(tmp_path / "x.npy", **options, columns="x,y")


def test_arrays_need_a_layout_that_fits(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(SourceError, match=r"shape \(12, 2, 25, 3\) .* --layout NAME"):
        FeatureSource(str(tmp_path / "x.npy"), SourceOptions(rate_hz=4.0)).open()
    with pytest.raises(SourceError, match=r"is not .* 17 joints of coco-17"):
        read(tmp_path / "x.npy", layout="coco-17", frame_rate_hz=30.0)
    np.savez(tmp_path / "x.npz", a=X, b=X)
    with pytest.raises(SourceError, match="it contains a, b, not one array"):
        read(tmp_path / "x.npz", layout="ntu-25", frame_rate_hz=30.0)


def test_cut_off_array(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X[:, 0])
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(data[:-400])
    _, items = read(tmp_path / "x.npy", layout="ntu-25", frame_rate_hz=30.0)
    assert len(frames(items)) == 10
    assert [(f.fatal, f.message) for f in faults(items)] == [
        (True, "the file is cut off after this frame")
    ]


# --- formats from outside ---------------------------------------------------------------------


@FORMATS.temporarily()
def test_a_format_is_one_function_with_a_decorator(tmp_path: Path) -> None:
    path = tmp_path / "walk.stick"
    path.write_text("STICK\n" + "".join(f"{k} {k + 1}\n" for k in range(3)))
    assert sniff(str(path)) == "video"

    @skeleton_format("stick", sniff=lambda source: source.first_line == "STICK")
    def read_stick(source: SkeletonInput) -> Take:
        rows = [list(map(float, line.split())) for line in source.lines() if line != "STICK"]
        places = np.array(rows)[:, None, None, :] * np.ones((1, 1, 17, 1))
        return Take(COCO_17.joints, 2, frames_of(places, frame_times(4.0)), 4.0)

    assert sniff(str(path)) == "skeleton"
    info, items = read(path)
    assert (info.layout, info.axes, info.rate_hz) == ("coco-17", 2, 4.0)
    assert [frame.time_s for frame in frames(items)] == [0.0, 0.25, 0.5]
    assert frames(items)[1].joints[0, 0].tolist() == [1.0, -2.0]  # y up
