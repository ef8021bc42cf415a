"""Recordings of motion capture and of pose estimators, in the formats of their programs."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costream.core.errors import CostreamError, SourceError, UsageError
from costream.core.layouts import (
    BODY_15,
    BODY_25,
    COCO_17,
    HALPE_26,
    MEDIAPIPE_33,
    NTU_25,
    joint_mapping,
    leads_to_centre,
    marker_sets,
)
from costream.sources.uris import sniff
from kit.mocap_files import (
    BONES,
    MOCAP,
    MOTIVE,
    PLUG_IN_GAIT,
    alphapose,
    as_layout,
    bvh,
    c3d_file,
    deeplabcut_hdf5,
    deeplabcut_table,
    mediapipe,
    mediapipe_text,
    mmpose,
    mot,
    motive,
    moving_bones,
    pixels,
    saved,
    sleap,
    standing,
    to_body,
    trc,
    vicon,
    visual3d,
    z_up,
)
from kit.skeleton_files import faults, frames, read


def of_body(path: Path, **options: object) -> np.ndarray:
    """Return the first person of an intact file as joints of body-15, [T, 15, C]."""
    _, items = read(path, **options)
    assert faults(items) == []
    found = frames(items)
    assert all(frame.scores[0].all() for frame in found)
    return to_body(np.stack([frame.joints[0] for frame in found]), found[0].layout)


def flipped(x: np.ndarray) -> np.ndarray:
    return x * (1, -1)


# --- marker sets ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", marker_sets())
def test_marker_sets_are_bodies(name: str) -> None:
    layout = marker_sets()[name]
    assert leads_to_centre(layout)
    assert len(joint_mapping(layout, BODY_15)) == 15
    mirror = layout.mirrored
    assert {(mirror[a], mirror[b]) for a, b in layout.bones} == set(layout.bones)


def test_a_layout_of_some_joints() -> None:
    seen = {k for k, joint in enumerate(NTU_25.joints) if "hip" in joint or "elbow" in joint}
    part = NTU_25.only(seen)
    assert leads_to_centre(part)
    assert part.joints == tuple(NTU_25.joints[k] for k in sorted(seen))
    whole = NTU_25.only(set(range(25)))
    assert (whole.joints, whole.bones, whole.centre) == (NTU_25.joints, NTU_25.bones, NTU_25.centre)


# --- C3D --------------------------------------------------------------------------------------


def test_c3d(tmp_path: Path) -> None:
    x = as_layout(standing(30), PLUG_IN_GAIT)[:, 0]
    names = [f"Anna:{name}" for name in PLUG_IN_GAIT.headings]
    info, items = read(c3d_file(tmp_path / "a.c3d", z_up(x), names))
    assert (info.kind, info.layout, info.axes, info.rate_hz) == ("skeleton", "plug-in-gait", 3, 50)
    assert info.duration_s == pytest.approx(30 / 50)
    found = np.stack([f.joints[0] for f in frames(items)])
    assert [f.time_s for f in frames(items)] == pytest.approx([k / 50 for k in range(30)])
    assert np.allclose(found, x * 1000, atol=0.01)  # millimetres, turned: y is up
    hips = to_body(found, PLUG_IN_GAIT)[:, 0]
    assert np.allclose(hips[:, 1], 0.8 * 950 + 0.2 * 500, atol=1)


def test_c3d_missing_markers_and_two_subjects(tmp_path: Path) -> None:
    x = z_up(as_layout(standing(10, 2), PLUG_IN_GAIT))
    x[2, 0, 5] = np.nan
    names = [f"{who}:{name}" for who in ("A", "B") for name in PLUG_IN_GAIT.headings]
    path = c3d_file(tmp_path / "a.c3d", x.reshape(10, -1, 3), [*names])
    _, items = read(path)
    found = frames(items)
    assert found[0].scores.all(1).tolist() == [True, True]
    assert np.flatnonzero(found[2].scores[0] == 0).tolist() == [5]
    assert found[0].joints[1, 0, 0] - found[0].joints[0, 0, 0] == pytest.approx(2000)


def test_c3d_of_another_writer(tmp_path: Path) -> None:
    ezc3d = pytest.importorskip("ezc3d")
    x = z_up(as_layout(standing(15), PLUG_IN_GAIT))[:, 0]
    file = ezc3d.c3d()
    file["parameters"]["POINT"]["RATE"]["value"] = [100]
    file["parameters"]["POINT"]["LABELS"]["value"] = [*PLUG_IN_GAIT.headings, "*39"]
    points = np.concatenate([x, x[:, :1]], 1).transpose(2, 1, 0)
    file["data"]["points"] = np.concatenate([points, np.ones((1, *points.shape[1:]))])
    file.write(str(tmp_path / "a.c3d"))
    info, items = read(tmp_path / "a.c3d")
    assert (info.layout, info.rate_hz, len(frames(items))) == ("plug-in-gait", 100, 15)
    assert np.allclose(frames(items)[3].joints[0, :, 1], x[3, :, 2], atol=0.01)


# --- TRC, MOT ---------------------------------------------------------------------------------


def test_trc(tmp_path: Path) -> None:
    x = standing(20)[:, 0]
    path = trc(tmp_path / "a.trc", z_up(x), [f"subject_{n}" for n in BODY_15.joints])
    info, items = read(path)
    assert (info.layout, info.axes, info.rate_hz) == ("body-15", 3, 50.0)
    assert np.allclose(np.stack([f.joints[0] for f in frames(items)]), x * 1000, atol=1e-3)
    assert [f.time_s for f in frames(items)] == pytest.approx([k / 50 for k in range(20)])
    # With y up already, nothing turns; the order of the axes can be said as well.
    assert np.allclose(of_body(trc(tmp_path / "b.trc", x, BODY_15.joints)), x, atol=1e-5)
    assert np.allclose(of_body(path, columns="x,-z,y"), x * 1000, atol=1e-3)
    assert [f.time_s for f in frames(read(path, frame_rate_hz=10.0)[1])][1] == pytest.approx(0.1)


def test_trc_of_pose2sim_without_eyes_and_ears(tmp_path: Path) -> None:
    # pose2sim 187: Halpe-26 without eyes and ears is not the smaller layout that is complete.
    short = {"hips": "Hip", "neck": "Neck", "head top": "Head", "nose": "Nose"}
    sides = {"left": "L", "right": "R"}
    kept = [k for k, name in enumerate(HALPE_26.headings) if name.split()[-1] not in ("eye", "ear")]
    names = []
    for joint, heading in ((HALPE_26.joints[k], HALPE_26.headings[k]) for k in kept):
        side, _, part = heading.partition(" ")
        names.append(short.get(joint) or sides[side] + part.title().replace(" ", ""))
    x = z_up(as_layout(standing(), HALPE_26))[:, 0, kept]
    info, _ = read(trc(tmp_path / "a.trc", x, names))
    assert info.layout == "halpe-26"


def test_trc_empty_cells_and_decimal_commas(tmp_path: Path) -> None:
    x = standing(6)[:, 0]
    x[1, 3] = np.nan
    path = trc(tmp_path / "a.trc", x, BODY_15.joints)
    path.write_text(path.read_text().replace(".", ","), "utf-8")
    _, items = read(path)
    assert np.flatnonzero(frames(items)[1].scores[0] == 0).tolist() == [3]
    assert np.allclose(frames(items)[5].joints[0], x[5], atol=1e-5)


@pytest.mark.parametrize("root", ["Ann:Hip", "Ann", "Ann:Ann"])
def test_motive(tmp_path: Path, root: str) -> None:
    x = standing()[:, 0]
    bones = as_layout(standing(), MOTIVE)[:, 0]
    info, items = read(motive(tmp_path / "a.csv", bones, MOTIVE.headings, root=root))
    assert (info.layout, info.axes, info.rate_hz) == ("motive", 3, 50.0)
    assert [f.time_s for f in frames(items)[:2]] == [0.0, 0.02]
    assert np.allclose(of_body(tmp_path / "a.csv")[:, 8:], x[:, 8:], atol=1e-3)
    _, items = read(tmp_path / "a.csv", frame_rate_hz=10.0)
    assert frames(items)[1].time_s == 0.1


def test_vicon(tmp_path: Path) -> None:
    x = z_up(as_layout(standing(), PLUG_IN_GAIT))[:, 0]
    info, items = read(vicon(tmp_path / "a.csv", x, PLUG_IN_GAIT.headings))
    assert (info.layout, info.axes, info.rate_hz) == ("plug-in-gait", 3, 50.0)
    assert [f.time_s for f in frames(items)[:2]] == [0.0, 0.02]
    trc(tmp_path / "a.trc", x, PLUG_IN_GAIT.headings)
    wanted = np.stack([f.joints for f in frames(read(tmp_path / "a.trc")[1])])
    assert np.allclose(np.stack([f.joints for f in frames(items)]), wanted, atol=1e-2)
    visual3d(tmp_path / "a.txt", x, PLUG_IN_GAIT.headings)
    with pytest.raises(UsageError, match="its frames have no times; give their rate: --fps"):
        read(tmp_path / "a.txt")
    found = frames(read(tmp_path / "a.txt", frame_rate_hz=50.0)[1])
    assert np.allclose(np.stack([f.joints for f in found]), wanted, atol=1e-2)


def test_vicon_without_trajectories(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("Devices\n1000\n,,Force\nFrame,Sub Frame,Fx\n,,N\n1,0,5\n")
    with pytest.raises(SourceError, match=r"no Trajectories \(Devices\); export the traj"):
        read(tmp_path / "a.csv")


def test_landmarks_in_lists_and_frames_without_a_person(tmp_path: Path) -> None:
    # mediapipe 1803, 2157: results are None where nobody was found.
    x = as_layout(standing(), MEDIAPIPE_33)[:, 0]
    lists: list[Any] = [
        [dict(zip("xyz", place, strict=True)) for place in frame]
        for frame in (x * (-1, -1, 1)).tolist()
    ]
    path = saved(tmp_path / "a.json", [None, *lists, None])
    found = frames(read(path, frame_rate_hz=30.0)[1])
    assert [bool(f.scores.any()) for f in found] == [False, *(len(x) * [True]), False]
    body = to_body(np.stack([f.joints[0] for f in found[1:-1]]), MEDIAPIPE_33)
    assert np.allclose(body, to_body(x, MEDIAPIPE_33), atol=1e-3)


@pytest.mark.parametrize("tasks", [False, True])
def test_printed_results_of_mediapipe(tmp_path: Path, tasks: bool) -> None:
    x = as_layout(standing(), MEDIAPIPE_33)[:, 0]
    path = mediapipe_text(tmp_path / "a.txt", x, tasks=tasks)
    info, items = read(path, frame_rate_hz=30.0)
    assert (info.layout, info.axes) == ("mediapipe-33", 3)
    assert len(frames(items)) == len(x)
    assert np.allclose(of_body(path, frame_rate_hz=30.0), to_body(x, MEDIAPIPE_33), atol=1e-3)
    nobody = "PoseLandmarkerResult(pose_landmarks=[], pose_world_landmarks=[])" if tasks else "None"
    path.write_text(f"{path.read_text()}{nobody}\n")
    found = frames(read(path, frame_rate_hz=30.0)[1])
    assert [bool(f.scores.any()) for f in found[-2:]] == [True, False]


def test_mot_angles(tmp_path: Path) -> None:
    """At zero the body stands; a bent hip lifts the knee forward, a bent knee the foot back."""
    zero = dict.fromkeys(
        ("pelvis_tilt", "pelvis_ty", "hip_flexion_r", "hip_flexion_l", "knee_angle_r"), [0.0] * 3
    )
    zero |= {"knee_angle_l": [0.0] * 3, "arm_flex_r": [0.0, 90.0, 0.0], "arm_add_l": [0, 0, -90.0]}
    rows = {**zero, "hip_flexion_r": [0, 90.0, 0], "knee_angle_r": [0, 90.0, 0]}
    x = of_body(mot(tmp_path / "a.mot", rows))
    place = {name: k for k, name in enumerate(BODY_15.joints)}

    def ankle(t: int) -> np.ndarray:
        return x[t, place["right ankle"]] - x[t, place["right hip"]]

    assert np.allclose(ankle(0), (0, -0.809, 0), atol=1e-3)
    assert np.allclose(ankle(1), (0.409, -0.4, 0), atol=1e-3)
    arm = x[1, place["right elbow"]] - x[1, place["right shoulder"]]
    assert arm[0] > 0.25
    side = x[2, place["left elbow"]] - x[2, place["left shoulder"]]
    assert side[2] < -0.25  # lifted to the left, which is -z
    assert x[0, place["left hip"], 2] < x[0, place["right hip"], 2]
    newer = {f"/jointset/any/{name}/value": values for name, values in rows.items()}
    assert np.allclose(of_body(mot(tmp_path / "c.sto", newer)), x, atol=1e-6)
    older = {**rows, "knee_angle_r": [0, -90.0, 0]}  # older models count the knee negative
    assert np.allclose(of_body(mot(tmp_path / "b.mot", older)), x, atol=1e-6)


def test_mot_of_places_and_of_forces(tmp_path: Path) -> None:
    x = standing(5)[:, 0]
    columns = {
        f"{name.replace(' ', '_')}_{axis}": x[:, k, c].tolist()
        for k, name in enumerate(BODY_15.joints)
        for c, axis in enumerate("XYZ")
    }
    assert np.allclose(of_body(mot(tmp_path / "a.sto", columns)), x, atol=1e-6)
    path = mot(tmp_path / "b.mot", {"ground_force_vx": [0.0], "ground_force_vy": [0.0]})
    with pytest.raises(
        SourceError, match=r"columns \(time, ground_force_vx, ground_force_vy\) are"
    ):
        read(path)


# --- BVH --------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "mixamorig:"])
def test_bvh(tmp_path: Path, prefix: str) -> None:
    """Forward kinematics agrees with that of SciPy's rotations, bone by bone."""
    from scipy.spatial.transform import Rotation

    root, angles = moving_bones(8)
    info, items = read(bvh(tmp_path / "a.bvh", root, angles, prefix))
    assert (info.axes, info.rate_hz) == (3, pytest.approx(50))
    assert info.layout is not None
    assert info.layout.startswith("motionbuilder without")
    names = [name for name, _, _ in BONES]
    layout = frames(items)[0].layout
    one_line = (tmp_path / "a.bvh").read_text().replace("\n\t\t{", " {")
    (tmp_path / "b.bvh").write_text(one_line)
    assert np.array_equal(of_body(tmp_path / "b.bvh"), of_body(tmp_path / "a.bvh"))
    for t, frame in enumerate(frames(items)):
        turns: dict[str, Any] = {}
        places: dict[str, Any] = {}
        for k, (name, above, offset) in enumerate(BONES):
            own = Rotation.from_euler("ZXY", angles[t, k], degrees=True)
            turns[name] = turns[above] * own if above else own
            places[name] = places[above] + turns[above].apply(offset) if above else root[t]
        for k, heading in enumerate(layout.headings):
            assert heading in names
            assert np.allclose(frame.joints[0, k], places[heading], atol=1e-2)


# --- DeepLabCut -------------------------------------------------------------------------------


def likely(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.full((*x.shape[:-1], 1), 0.9)], -1)


@pytest.mark.parametrize("persons", [1, 2])
def test_deeplabcut(tmp_path: Path, persons: int) -> None:
    x = pixels(COCO_17, 9, persons)
    table = deeplabcut_table(likely(x), COCO_17.joints, persons > 1)
    table.iloc[4, 1] = np.nan
    table.to_csv(tmp_path / "a.csv")
    assert sniff(str(tmp_path / "a.csv")) == "skeleton"
    info, items = read(tmp_path / "a.csv", frame_rate_hz=30.0)
    assert (info.layout, info.axes) == ("coco-17", 2)
    found = np.stack([f.joints[:persons] for f in frames(items)])
    assert np.flatnonzero(frames(items)[4].scores[0] == 0).tolist() == [0]
    found[4, 0, 0] = x[4, 0, 0] * (1, -1)
    assert np.allclose(found, flipped(x), atol=1e-3)
    assert frames(items)[0].scores[0, 5] == pytest.approx(0.9)
    with pytest.raises(UsageError, match="--fps"):
        read(tmp_path / "a.csv")
    # Saved again by a spreadsheet of another country
    table.to_csv(tmp_path / "b.csv", sep=";", decimal=",")
    assert len(frames(read(tmp_path / "b.csv", frame_rate_hz=30.0)[1])) == 9
    path = deeplabcut_hdf5(tmp_path / "a.h5", likely(x), COCO_17.joints, persons > 1)
    _, items = read(path, frame_rate_hz=30.0)
    found = np.stack([f.joints[:persons] for f in frames(items)])
    assert np.allclose(found, flipped(x), atol=1e-3)


def test_deeplabcut_of_pandas(tmp_path: Path) -> None:
    pytest.importorskip("tables")
    x = pixels(COCO_17, 9, 2)
    table = deeplabcut_table(likely(x), COCO_17.joints, True)
    table.to_hdf(tmp_path / "a.h5", key="df_with_missing", format="table", mode="w")
    _, items = read(tmp_path / "a.h5", frame_rate_hz=30.0)
    assert np.allclose(np.stack([f.joints for f in frames(items)]), flipped(x), atol=1e-3)


def test_joints_of_animals_give_an_error_with_a_layout_to_write(tmp_path: Path) -> None:
    parts = ("snout", "left ear", "tailbase")
    table = deeplabcut_table(likely(np.ones((4, 1, 3, 2))), parts, False)
    table.to_csv(tmp_path / "a.csv")
    with pytest.raises(SourceError, match=r"joints of an animal \(snout, tailbase; all: ") as e:
        read(tmp_path / "a.csv", frame_rate_hz=30.0)
    assert "joints.toml" in str(e.value)
    assert "\n" not in str(e.value)
    (tmp_path / "joints.toml").write_text(
        'bones = [["snout", "tailbase"], ["left ear", "snout"]]\n[joints]\nsnout = "nose"\n'
        '"left ear" = "left ear"\ntailbase = "hips"\n'
    )
    _, items = read(tmp_path / "a.csv", frame_rate_hz=30.0, layout=str(tmp_path / "joints.toml"))
    assert frames(items)[0].scores[0].tolist() == pytest.approx([0.9] * 3)


# --- SLEAP ------------------------------------------------------------------------------------


def test_sleap(tmp_path: Path) -> None:
    x = pixels(COCO_17, 9, 2)
    x[3, 1] = np.nan
    info, items = read(sleap(tmp_path / "a.h5", x, COCO_17.joints), frame_rate_hz=25.0)
    assert (info.layout, info.axes, info.rate_hz) == ("coco-17", 2, 25.0)
    found = frames(items)
    assert [f.scores.any(1).tolist() for f in found[2:4]] == [[True, True], [True, False]]
    assert np.allclose(found[8].joints, flipped(x[8]), atol=1e-3)
    assert found[0].scores[0, 0] == pytest.approx(0.9)


def test_sleap_of_its_library(tmp_path: Path) -> None:
    sio = pytest.importorskip("sleap_io")
    x = pixels(COCO_17, 6, 2)
    skeleton = sio.Skeleton(nodes=[name.replace(" ", "_") for name in COCO_17.joints])
    tracks, video = [sio.Track("a"), sio.Track("b")], sio.Video("a.mp4", open_backend=False)
    labelled = [
        sio.LabeledFrame(
            video=video,
            frame_idx=t,
            instances=[
                sio.PredictedInstance.from_numpy(p, skeleton=skeleton, track=k, point_scores=None)
                for p, k in zip(frame, tracks, strict=True)
            ],
        )
        for t, frame in enumerate(x)
    ]
    labels = sio.Labels(labelled, videos=[video], skeletons=[skeleton], tracks=tracks)
    sio.save_analysis_h5(labels, str(tmp_path / "a.analysis.h5"))
    _, items = read(tmp_path / "a.analysis.h5", frame_rate_hz=25.0)
    assert np.allclose(np.stack([f.joints for f in frames(items)]), flipped(x), atol=1e-3)


def test_sleap_csv(tmp_path: Path) -> None:
    x = pixels(COCO_17, 5, 2)
    names = [name.replace(" ", "_") for name in COCO_17.joints]
    head = ["track", "frame_idx", "instance.score"]
    lines = [",".join([*head, *(f"{n}.{a}" for n in names for a in ("x", "y", "score"))])]
    for t, frame in enumerate(x):
        for m, person in enumerate(frame):
            cells = [repr(float(v)) for joint in person for v in (*joint, 0.9)]
            lines.append(",".join([f"track_{m}", str(t), "0.9", *cells]))
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    _, items = read(tmp_path / "a.csv", frame_rate_hz=25.0)
    assert np.allclose(np.stack([f.joints for f in frames(items)]), flipped(x), atol=1e-3)


# --- JSON and pickles of pose estimators -------------------------------------------------------


def test_mmpose(tmp_path: Path) -> None:
    x = pixels(COCO_17, 7, 2)
    for named in (True, False):
        path = saved(tmp_path / "a.json", mmpose(x, COCO_17.joints, named))
        info, items = read(path, frame_rate_hz=25.0)
        assert (info.layout, info.axes, info.rate_hz) == ("coco-17", 2, 25.0)
        assert [f.time_s for f in frames(items)] == pytest.approx([k / 25 for k in range(7)])
        assert np.allclose(np.stack([f.joints for f in frames(items)]), flipped(x), atol=1e-3)
    whole_body = np.concatenate([x, np.zeros((7, 2, 116, 2))], 2)
    whole_body[:, :, 17:23] = pixels(BODY_25, 7, 2)[:, :, [19, 20, 21, 22, 23, 24]]
    path = saved(tmp_path / "a.json", mmpose(whole_body, ["?"] * 133, False))
    assert np.allclose(of_body(path, frame_rate_hz=25.0), flipped(to_body(x, COCO_17))[:, 0])
    # As the Python interface returns them, a frame each
    poses = [{"keypoints": f, "keypoint_scores": np.ones(f.shape[:2], np.float32)} for f in x]
    _, items = read(saved(tmp_path / "b.pkl", poses), frame_rate_hz=25.0)
    assert np.allclose(np.stack([f.joints for f in frames(items)]), flipped(x), atol=1e-3)


def test_mmpose_in_space(tmp_path: Path) -> None:
    """Of the lifting networks of MMPose, in the order and with the names of Human3.6M, z up."""
    names = "root right_hip right_knee right_foot left_hip left_knee left_foot spine thorax "
    names += "neck_base head left_shoulder left_elbow left_wrist right_shoulder right_elbow "
    named = (names + "right_wrist").split()
    order = ["hips", "right hip", "right knee", "right ankle", "left hip", "left knee"]
    order += ["left ankle", "hips", "neck", "neck", "head", "left shoulder", "left elbow"]
    order += ["left wrist", "right shoulder", "right elbow", "right wrist"]
    x = standing(5)
    h36m = z_up(x[:, :, [BODY_15.joints.index(name) for name in order]])
    path = saved(tmp_path / "a.json", mmpose(h36m, named))
    found = of_body(path, frame_rate_hz=50.0)
    assert np.allclose(found[:, 5], x[:, 0, 5] * 1000, atol=0.1)
    assert np.allclose(found[:, 11], x[:, 0, 11] * 1000, atol=0.1)


def test_alphapose_of_each_person(tmp_path: Path) -> None:
    x = pixels(COCO_17, 12, 2)
    poses = np.concatenate([x, np.full((*x.shape[:-1], 1), 0.9)], -1).reshape(12, 2, -1)
    content = {
        str(person + 1): {str(t): {"keypoints": poses[t, person].tolist()} for t in range(12)}
        for person in range(2)
    }
    del content["2"]["3"]
    _, items = read(saved(tmp_path / "a.json", content), frame_rate_hz=25.0)
    found = frames(items)
    assert [f.time_s for f in found[:2]] == [0.0, 0.04]
    assert [f.scores.any(1).tolist() for f in found[2:4]] == [[True, True], [True, False]]
    assert np.allclose(found[11].joints, flipped(x[11]), atol=1e-3)


def test_alphapose(tmp_path: Path) -> None:
    x = pixels(COCO_17, 11, 2)
    results = alphapose(x)
    random.Random(1).shuffle(results)  # identities keep the persons apart, numbers the frames
    results.sort(key=lambda each: int(each["image_id"].split(".")[0]))
    path = saved(tmp_path / "alphapose-results.json", results)
    _, items = read(path, frame_rate_hz=25.0)
    found = np.stack([f.joints for f in frames(items)])
    first = 0 if np.allclose(found[0, 0], flipped(x[0, 0])) else 1
    assert np.allclose(found[:, [first, 1 - first]], flipped(x), atol=1e-3)
    assert [f.time_s for f in frames(items)] == pytest.approx([k / 25 for k in range(11)])
    for key, inner in (("bodies", "joints"), ("people", "pose_keypoints_2d")):
        other = {
            f"{t}.jpg": {
                "version": 0.1,
                key: [{inner: r["keypoints"]} for r in alphapose(x[t : t + 1])],
            }
            for t in range(11)
        }
        _, items = read(saved(tmp_path / "b.json", other), frame_rate_hz=25.0)
        assert np.allclose(np.stack([f.joints for f in frames(items)]), flipped(x), atol=1e-3)


def test_halpe(tmp_path: Path) -> None:
    names = (*COCO_17.joints, "head top", "neck", "hips", "left toes", "right toes")
    names += ("left small toe", "right small toe", "left heel", "right heel")
    x = np.random.default_rng(0).uniform(10, 90, (3, 1, 26, 2))
    _, items = read(saved(tmp_path / "a.json", alphapose(x)), frame_rate_hz=25.0)
    frame = frames(items)[0]
    for k, joint in enumerate(frame.layout.joints):
        assert np.allclose(frame.joints[0, k], flipped(x[0, 0, names.index(joint)]), atol=1e-4)


def test_mediapipe_json(tmp_path: Path) -> None:
    x = as_layout(standing(6), MEDIAPIPE_33)[:, 0] * (-1, -1, 1)  # its camera's axes
    path = saved(tmp_path / "a.json", mediapipe(x))
    info, items = read(path)
    assert (info.layout, info.axes) == ("mediapipe-33", 3)
    assert [f.time_s for f in frames(items)] == pytest.approx([0.04 * k for k in range(6)])
    assert np.allclose(frames(items)[5].joints[0], x[5] * (-1, -1, 1), atol=1e-5)
    tasks = [{"world_landmarks": [f["poseWorldLandmarks"]] * 2} for f in mediapipe(x)]
    tasks[2]["world_landmarks"] = []  # nobody
    info, items = read(saved(tmp_path / "b.json", {"frames": tasks, "fps": 25}))
    assert info.rate_hz == 25.0
    assert [f.scores.any(1).sum() for f in frames(items)] == [2, 2, 0, 2, 2, 2]


@pytest.mark.parametrize(
    "name", ["mediapipe_body_3d_xyz.npy", "mediaPipeSkel_3d_body_hands_face.npy"]
)
def test_freemocap_arrays(tmp_path: Path, name: str) -> None:
    x = z_up(as_layout(standing(6), MEDIAPIPE_33))[:, 0]
    more = np.concatenate([x, np.zeros((6, 500, 3))], 1) if "Skel" in name else x
    np.save(tmp_path / name, more)
    assert sniff(str(tmp_path / name)) == "skeleton"
    found = of_body(tmp_path / name, frame_rate_hz=30.0)
    assert np.allclose(found, standing(6)[:, 0] * 1000, atol=0.1)


def test_freemocap_table(tmp_path: Path) -> None:
    x = z_up(as_layout(standing(6), MEDIAPIPE_33))[:, 0]
    names = [f"{h.replace(' ', '_')}_{a}" for h in MEDIAPIPE_33.headings for a in "xyz"]
    rows = [",".join(names), *(",".join(map(repr, f.ravel().tolist())) for f in x)]
    (tmp_path / "mediapipe_body_3d_xyz.csv").write_text("\n".join(rows) + "\n")
    found = of_body(tmp_path / "mediapipe_body_3d_xyz.csv", frame_rate_hz=30.0)
    assert np.allclose(found * (-1, 1, -1), standing(6)[:, 0] * 1000, atol=0.1)


# --- tables -----------------------------------------------------------------------------------


def test_decimal_commas_without_headings(tmp_path: Path) -> None:
    x = standing(4)[:, 0]
    rows = [";".join(f"{v:.3f}".replace(".", ",") for v in frame.ravel()) for frame in x]
    (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
    found = of_body(tmp_path / "a.csv", frame_rate_hz=10.0, layout="body-15")
    assert np.allclose(found, x, atol=1e-3)


# --- damage -----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", MOCAP)
@pytest.mark.parametrize("kind", ["empty", "cut", "scrambled", "latin-1", "huge"])
def test_damage(tmp_path: Path, name: str, kind: str) -> None:
    """One clear line, or the frames that can be read, and nothing else."""
    path = MOCAP[name](tmp_path, 6)
    data, chance = path.read_bytes(), random.Random(name + kind)
    read_well = 0
    for k in range(1 if kind == "empty" else 8):
        path.write_bytes(damaged(data, kind, k, chance))
        try:
            _, items = read(path, frame_rate_hz=10.0)
        except CostreamError as error:
            assert "\n" not in str(error)  # noqa: PT017  (either end is right)
            continue
        read_well += 1
        times = [frame.time_s for frame in frames(items)]
        assert times == sorted(set(times))
        for frame in frames(items):
            assert np.isfinite(frame.joints).all()
            assert not frame.joints[frame.scores == 0].any()
    if kind == "empty":
        assert read_well == 0
    if kind == "cut" and path.suffix not in (".h5", ".c3d"):
        assert read_well > 2


def damaged(data: bytes, kind: str, k: int, chance: random.Random) -> bytes:
    if kind == "empty":
        return b""
    if kind == "cut":
        return data[: len(data) * (k + 1) // 9]
    out = bytearray(data)
    if kind == "scrambled":
        for _ in range(3):
            out[chance.randrange(len(out))] = chance.randrange(256)
    if kind == "latin-1":
        at = chance.randrange(len(out))
        out[at:at] = "é".encode("latin-1")
    if kind == "huge":
        digits = [i for i, c in enumerate(out) if 48 <= c <= 57] or [0]
        at = chance.choice(digits)
        out[at:at] = b"9" * chance.choice((1, 6, 30, 400))
    return bytes(out)


def test_without_the_extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name, module, extra in (("c3d", "c3d", "c3d"), ("sleap", "h5py", "h5")):
        path = MOCAP[name](tmp_path, 3)
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(SourceError, match=rf"pip install 'costream\[{extra}\]'"):
            read(path, frame_rate_hz=10.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "no skeletons .nothing.; supported are MMPose"),
        ('{"boxes": [], "video": 3}', "no skeletons .boxes, video."),
        ("[]", "no skeletons .a list."),
        (
            '{"instance_info": [{"frame_id": 1, "instances": [{"a": 1}]}]}',
            "there are no persons in it",
        ),
        ('[{"keypoints": []}]', "there are no persons in it|cannot"),
        (json.dumps([{"image_id": 1, "keypoints": [1, 2]}]), "there are no persons in it"),
    ],
)
def test_other_json(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(SourceError, match=message):
        read(tmp_path / "a.json", frame_rate_hz=30.0)


def test_other_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["weights"] = np.ones(3)
    with pytest.raises(SourceError, match=r"HDF5 file \(weights\) is neither"):
        read(tmp_path / "a.h5", frame_rate_hz=30.0)


def test_pickle_that_would_run(tmp_path: Path) -> None:
    """The names of DeepLabCut's columns are a pickle: it is not executed."""
    h5py = pytest.importorskip("h5py")
    path = MOCAP["deeplabcut h5"](tmp_path, 3)
    mark = tmp_path / "executed"
    with h5py.File(path, "a") as file:
        text = f"cos\nsystem\n(S'touch {mark}'\ntR."
        file["df_with_missing"].attrs["non_index_axes"] = np.bytes_(text.encode())
    with pytest.raises(SourceError, match="names of its columns cannot be read"):
        read(path, frame_rate_hz=30.0)
    assert not mark.exists()


@pytest.mark.parametrize("name", MOCAP)
def test_formats_are_known_by_their_content(tmp_path: Path, name: str) -> None:
    path = MOCAP[name](tmp_path, 4)
    other = path.rename(tmp_path / "data")
    _, items = read(other, frame_rate_hz=10.0)
    assert len(frames(items)) == 4


def test_pyskl_list_is_not_a_pose_list(tmp_path: Path) -> None:
    entry = {
        "frame_dir": "a",
        "keypoint": np.ones((1, 3, 17, 2)),
        "keypoint_score": np.ones((1, 3, 17)),
    }
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([entry]))
    assert len(frames(read(tmp_path / "a.pkl", frame_rate_hz=10.0)[1])) == 3
