"""Tables of joints: every dialect that is written is read back equal, and what is unclear asked."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costream.core.errors import SourceError, UsageError
from costream.core.layouts import (
    BODY_15,
    BODY_25,
    CMU_31,
    COCO_17,
    KINECT_20,
    LAYOUTS,
    MEDIAPIPE_33,
    NTU_25,
    OPENPOSE_18,
    Layout,
)
from costream.sources.skeletons.columns import parse_columns
from costream.sources.skeletons.headings import read_heading
from costream.sources.skeletons.joint_names import joint_phrase
from kit.paths import PACKS
from kit.skeleton_files import clip, faults, frames, joints, long, read, wide

CMU_TAR = PACKS / "samples.tar"


def camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split())


def short(name: str) -> str:
    side, _, rest = name.partition(" ")
    return side[0].upper() + camel(rest) if side in ("left", "right") else camel(name)


BY_NAME = {
    "left_wrist_x": lambda k, name, axis: f"{name.replace(' ', '_')}_{axis}",
    "LEFT_WRIST_X": lambda k, name, axis: f"{name.replace(' ', '_')}_{axis}".upper(),
    "LeftWristX": lambda k, name, axis: camel(name) + camel(axis),
    "left wrist.x": lambda k, name, axis: f"{name}.{axis}",
    "x_left_wrist": lambda k, name, axis: f"{axis}_{name.replace(' ', '_')}",
    "LWrist_x": lambda k, name, axis: f"{short(name)}_{axis}",
    "left-wrist (x)": lambda k, name, axis: f"{name.replace(' ', '-')} ({axis})",
    "left_wrist_x_mm": lambda k, name, axis: f"{name.replace(' ', '_')}_{axis}_mm",
    "11_left_wrist_x": lambda k, name, axis: f"{k}_{name.replace(' ', '_')}_{axis}",
}
OF_ONES_OWN = {"P.left wrist.a": lambda k, name, axis: f"P.{name}.{'abc'['xyz'.index(axis)]}"}
BY_NUMBER = {
    "x0": lambda k, name, axis: f"{axis[0]}{k}",
    "0_x": lambda k, name, axis: f"{k}_{axis}",
    "x_1": lambda k, name, axis: f"{axis}_{k + 1}",
    "joint_1_x": lambda k, name, axis: f"joint_{k + 1}_{axis}",
    "landmark_00_x": lambda k, name, axis: f"landmark_{k:02d}_{axis}",
    "kp0.x": lambda k, name, axis: f"kp{k}.{axis}",
}


def table(
    folder: Path,
    layout: Layout,
    count: int = 3,
    style: str = "left_wrist_x",
    *,
    axes: int = 3,
    **how: Any,
) -> tuple[Path, np.ndarray]:
    """Write one person; return the path and the joints [T, V, C]."""
    x = clip(layout, count, axes)[:, 0]
    heading = {**BY_NAME, **BY_NUMBER, **OF_ONES_OWN}[style]
    return wide(folder / "a.csv", x, layout, heading, **how), x


def turned(x: np.ndarray, layout: Layout) -> np.ndarray:
    """Written to read: y up, and MediaPipe's camera turned about z."""
    if x.shape[-1] == 2:
        return x * np.float32([1, -1])
    return x * np.float32([-1, -1, 1] if layout is MEDIAPIPE_33 else [1, 1, 1])


# --- written and read back --------------------------------------------------------------------


@pytest.mark.parametrize("style", BY_NAME)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_wide_by_name(tmp_path: Path, layout: Layout, style: str) -> None:
    path, x = table(tmp_path, layout, 5, style)
    info, items = read(path, frame_rate_hz=30.0)
    # Kinect v1 in another order is Kinect v1: the names say which joint is which.
    assert info.layout == ("kinect-20" if layout.name == "msraction3d-20" else layout.name)
    found = np.stack([f.joints[0] for f in frames(items)])
    order = [layout.joints.index(name) for name in LAYOUTS[info.layout].joints]
    assert np.array_equal(found, turned(x, layout)[:, order])
    assert all((f.scores[0] == 1).all() and not f.scores[1].any() for f in frames(items))


@pytest.mark.parametrize(
    ("name", "style"),
    [
        *((name, "left_wrist_x") for name, known in LAYOUTS.items() if known.headings),
        *((name, "LeftWristX") for name in ("ntu-25", "kinect-20", "body-25", "mediapipe-33")),
    ],
)
def test_wide_by_the_layouts_own_names(tmp_path: Path, name: str, style: str) -> None:
    """SpineShoulder, hip_center, lhipjoint, left_foot_index: as their programs write them."""
    layout = LAYOUTS[name]
    own = Layout(name, layout.headings, layout.bones, layout.centre)
    path, x = table(tmp_path, own, 3, style)
    assert read(path, frame_rate_hz=30.0)[0].layout == name
    assert np.array_equal(joints(path, frame_rate_hz=1.0)[:, 0], turned(x, layout))


@pytest.mark.parametrize("style", BY_NUMBER)
@pytest.mark.parametrize("layout", [COCO_17, OPENPOSE_18, KINECT_20, MEDIAPIPE_33])
def test_wide_by_number(tmp_path: Path, layout: Layout, style: str) -> None:
    path, x = table(tmp_path, layout, 4, style)
    assert read(path, frame_rate_hz=30.0)[0].layout == layout.name
    assert np.array_equal(joints(path, frame_rate_hz=1.0)[:, 0], turned(x, layout))


@pytest.mark.parametrize("layout", [NTU_25, BODY_25, BODY_15])
def test_numbers_of_joints_that_are_not_enough(tmp_path: Path, layout: Layout) -> None:
    path, x = table(tmp_path, layout, 4, "0_x")
    both = "ntu-25 or body-25" if len(layout.joints) == 25 else "body-15 or jhmdb2d-15"
    with pytest.raises(SourceError, match=rf"joints may be {both}.*--layout NAME"):
        read(path, frame_rate_hz=30.0)
    assert np.array_equal(joints(path, frame_rate_hz=30.0, layout=layout.name)[:, 0], x)


@pytest.mark.parametrize(
    "head", ["frame,person,joint,x,y,z", "frame_id,PersonID,landmark_name,X,Y,Z"]
)
def test_long_by_name(tmp_path: Path, head: str) -> None:
    x = clip(NTU_25, 6, persons=2)
    path = long(tmp_path / "a.csv", x, NTU_25.headings, head)
    info, items = read(path, frame_rate_hz=30.0)
    assert (info.layout, info.axes, info.rate_hz) == ("ntu-25", 3, 30.0)
    assert info.duration_s == pytest.approx(6 / 30)
    assert np.array_equal(np.stack([f.joints for f in frames(items)]), x)


@pytest.mark.parametrize("base", [0, 1])
def test_long_by_number(tmp_path: Path, base: int) -> None:
    x = clip(MEDIAPIPE_33, 6, persons=1)
    names = [str(k + base) for k in range(33)]
    path = long(tmp_path / "a.csv", x, names, "frame,landmark,x,y,z", person=False)
    assert np.array_equal(joints(path, frame_rate_hz=30.0)[:, 0], turned(x[:, 0], MEDIAPIPE_33))


def test_long_without_frames(tmp_path: Path) -> None:
    """Only landmark,x,y,z: a frame ends where a joint comes again."""
    x = clip(MEDIAPIPE_33, 4)[:, 0]
    lines = ["landmark,x,y,z"]
    lines += [f"{k},{a},{b},{c}" for frame in x for k, (a, b, c) in enumerate(frame)]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    _, items = read(tmp_path / "a.csv", frame_rate_hz=10.0)
    assert [f.time_s for f in frames(items)] == pytest.approx([0, 0.1, 0.2, 0.3])
    found = np.stack([f.joints[0] for f in frames(items)])
    assert np.array_equal(found, turned(x, MEDIAPIPE_33))


def test_long_rows_of_missing_joints_may_be_left_out(tmp_path: Path) -> None:
    x = clip(COCO_17, 4)
    path = long(tmp_path / "a.csv", x, COCO_17.joints, "frame,person,joint,x,y,z")
    lines = [line for line in path.read_text().split("\n") if not line.startswith("0,7,left ear")]
    lines = [line for line in lines if not line.startswith(("2,7,nose", "3,7,nose"))]
    path.write_text("\n".join(lines))
    _, items = read(path, frame_rate_hz=30.0)
    gone = [[COCO_17.joints[k] for k in np.flatnonzero(f.scores[0] == 0)] for f in frames(items)]
    assert gone == [["left ear"], [], ["nose"], ["nose"]]
    assert not frames(items)[2].joints[0, 0].any()


def test_wide_with_persons(tmp_path: Path) -> None:
    x = clip(BODY_15, 5, persons=2)
    one = wide(tmp_path / "1.csv", x[:, 0], BODY_15, BY_NAME["left_wrist_x"]).read_text()
    two = wide(tmp_path / "2.csv", x[:, 1], BODY_15, BY_NAME["left_wrist_x"]).read_text()
    rows = [f"{r},{'anna' if r in one else 'bo'}" for r in one.split("\n")[1:] if r]
    others = [f"{r},bo" for r in two.split("\n")[1:] if r]
    lines = [one.split("\n")[0] + ",person"]
    for a, b in zip(rows, others, strict=True):
        lines += [b, a] if len(lines) % 4 == 3 else [a, b]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    assert np.array_equal(joints(tmp_path / "a.csv", frame_rate_hz=30.0), x)


@pytest.mark.long
@given(
    values=st.lists(
        st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6, width=32)), min_size=45, max_size=45),
        min_size=1,
        max_size=4,
    ),
    style=st.sampled_from(sorted(BY_NAME)),
    delimiter=st.sampled_from([",", ";", "\t"]),
    end=st.sampled_from(["\n", "\r\n"]),
    mark=st.booleans(),
    comma=st.booleans(),
    note=st.booleans(),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_numbers_in_any_dialect(
    tmp_path: Path,
    values: list[list[float | None]],
    style: str,
    delimiter: str,
    end: str,
    mark: bool,
    comma: bool,
    note: bool,
) -> None:
    """What is written is read back: bit for bit, and missing joints as missing."""
    x = np.array([[np.nan if v is None else v for v in row] for row in values], np.float32)
    x = x.reshape(-1, 15, 3)
    x[(x == x[..., :1]).all(-1) & (x[..., 0] <= 0)] = (-1, 2, 3)  # not the numbers for "missing"
    path = wide(tmp_path / "a.csv", x, BODY_15, BY_NAME[style], delimiter=delimiter)
    text = path.read_text().replace("\n", end)
    text = (
        text.replace(".", ",") if comma and delimiter != "," and style != "left wrist.x" else text
    )
    text = "# written by a test\n\n" + text if note else text
    path.write_bytes(("\ufeff" if mark else "").encode() + text.encode())
    _, items = read(path, frame_rate_hz=25.0)
    assert faults(items) == []
    found = frames(items)
    assert [f.time_s for f in found] == pytest.approx([k / 25 for k in range(len(x))])
    for frame, wanted in zip(found, x, strict=True):
        there = np.isfinite(wanted).all(1)
        assert np.array_equal(frame.scores[0] > 0, there)
        assert np.array_equal(frame.joints[0][there], wanted[there])
        assert not frame.joints[0][~there].any()
        assert not frame.joints[1:].any()


@pytest.mark.skipif(not CMU_TAR.exists(), reason="needs ../shared/packs/samples.tar")
def test_a_motion_capture_table(tmp_path: Path) -> None:
    name = "samples/skeleton/cmu_subject02_7actions_30fps.csv"
    with tarfile.open(CMU_TAR) as tar:
        (tmp_path / "cmu.csv").write_bytes(tar.extractfile(name).read())  # type: ignore[union-attr]
    table = np.loadtxt(tmp_path / "cmu.csv", delimiter=",", skiprows=1)
    info, items = read(tmp_path / "cmu.csv", frame_rate_hz=30.0)
    assert (info.layout, info.axes) == ("cmu-31", 3)
    assert info.duration_s == pytest.approx(1211 / 30)
    assert [f.time_s for f in frames(items)] == pytest.approx((table[:, 0] / 30).tolist())
    found = np.stack([f.joints[0] for f in frames(items)])
    assert np.array_equal(found, table[:, 1:].astype(np.float32).reshape(-1, 31, 3))
    place = {joint: k for k, joint in enumerate(CMU_31.joints)}
    assert (found[:86, place["head"], 1] > found[:86, place["left ankle"], 1] + 1).all()


# --- scores, missing, axes --------------------------------------------------------------------


def test_scores(tmp_path: Path) -> None:
    scores = np.linspace(0, 1, 66).round(3).reshape(2, 33)
    for style in ("x0", "landmark_00_x"):
        path, _ = table(tmp_path, MEDIAPIPE_33, 2, style, scores=scores)
        text = path.read_text()
        path.write_text(text.replace("score", "visibility").replace("s0", "v0"))
        _, items = read(path, frame_rate_hz=30.0)
        found = np.stack([f.scores[0] for f in frames(items)])
        assert np.allclose(found, scores)
        assert not frames(items)[0].joints[0, 0].any()  # score 0: missing


def test_visibility_counts_before_presence(tmp_path: Path) -> None:
    rows = ["frame,landmark,x,y,z,presence,visibility"]
    rows += [f"{t},{k},0.5,0.5,0.1,0.25,0.75" for t in range(2) for k in range(33)]
    (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
    _, items = read(tmp_path / "a.csv", frame_rate_hz=30.0)
    assert set(frames(items)[0].scores[0].tolist()) == {0.75}


@pytest.mark.parametrize("cell", ["", "nan", "NaN", "null", "None", "NA", "-", "inf", "1e999"])
def test_ways_to_say_missing(tmp_path: Path, cell: str) -> None:
    path, _ = table(tmp_path, BODY_15, 1)
    head, row = path.read_text().strip().split("\n")
    cells = row.split(",")
    cells[5] = cell  # y of the neck
    path.write_text(f"{head}\n{','.join(cells)}\n")
    _, items = read(path, frame_rate_hz=30.0)
    assert faults(items) == []
    assert np.flatnonzero(frames(items)[0].scores[0] == 0).tolist() == [1]


def test_a_person_of_zeros_is_not_there(tmp_path: Path) -> None:
    x = clip(BODY_15, 3)[:, 0]
    x[1] = 0
    path = wide(tmp_path / "a.csv", x, BODY_15, BY_NAME["left_wrist_x"])
    _, items = read(path, frame_rate_hz=30.0)
    assert [bool(f.scores.any()) for f in frames(items)] == [True, False, True]


def test_two_axes_are_a_picture(tmp_path: Path) -> None:
    path, x = table(tmp_path, COCO_17, 3, axes=2)
    assert read(path, frame_rate_hz=30.0)[0].axes == 2
    assert np.array_equal(joints(path, frame_rate_hz=30.0)[:, 0], x * np.float32([1, -1]))
    columns = "x={}_x,y=-{}_y"
    assert np.array_equal(joints(path, frame_rate_hz=30.0, columns=columns)[:, 0], x)


def test_some_details_may_be_missing(tmp_path: Path) -> None:
    path, _ = table(tmp_path, COCO_17, 2, axes=2)
    text = path.read_text().replace("left_ear", "else").replace("right_ear", "other")
    path.write_text(text)
    info, items = read(path, frame_rate_hz=30.0)  # joints of no layout are beside it
    assert info.layout == "coco-17 without 2"
    assert len(frames(items)[0].layout.joints) == 15
    path.write_text(text.replace("else_x", "a").replace("else_y", "b").replace("other_", "c"))
    info, items = read(path, frame_rate_hz=30.0)
    assert info.layout == "coco-17"
    assert np.flatnonzero(frames(items)[0].scores[0] == 0).tolist() == [3, 4]
    # More than details: it must be said.
    path.write_text(text.replace("_knee_", "_thing_"))
    with pytest.raises(SourceError, match="do not make a complete body in any known layout"):
        read(path, frame_rate_hz=30.0)
    info, items = read(path, frame_rate_hz=30.0, layout="coco-17")
    assert np.flatnonzero(frames(items)[0].scores[0] == 0).tolist() == [3, 4, 13, 14]


# --- times ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heading", "stamps"),
    [
        ("time", ["0", "0.04", "0.08"]),
        ("t", ["0.0", "0.04", "0.08"]),
        ("time (s)", ["0", "0.04", "0.08"]),
        ("timestamp_ms", ["0", "40", "80"]),
        ("Timestamp [us]", ["0", "40000", "80000"]),
        ("time_ns", ["0", "40000000", "80000000"]),
        ("timestamp", ["00:00:00.000", "00:00:00.040", "00:00:00.080"]),
        # A calendar's time counts from the first row.
        ("timestamp", ["1718000000.25", "1718000000.29", "1718000000.33"]),
        ("timestamp", ["1718000000250", "1718000000290", "1718000000330"]),
        ("timestamp", ["1718000000250000", "1718000000290000", "1718000000330000"]),
        ("datetime", [f"2026-01-31T12:00:00.0{k}0Z" for k in (0, 4, 8)]),
        ("time", [f"2026-01-31 12:00:00.0{k}0000" for k in (0, 4, 8)]),
    ],
)
def test_time_stamps(tmp_path: Path, heading: str, stamps: list[str]) -> None:
    path, _ = table(tmp_path, BODY_15, stamp=heading, stamps=stamps)
    info, items = read(path)
    assert faults(items) == []
    assert [f.time_s for f in frames(items)] == pytest.approx([0, 0.04, 0.08], abs=1e-6)
    assert info.duration_s == pytest.approx(0.08, abs=1e-6)
    assert info.rate_hz is None


def test_an_unknown_unit_is_asked_for(tmp_path: Path) -> None:
    path, _ = table(tmp_path, BODY_15, stamp="timestamp", stamps=["0", "40", "80"])
    with pytest.raises(SourceError, match=r"increases by 40.*--columns time_ms=timestamp"):
        read(path)
    _, items = read(path, columns="time_ms=timestamp")
    assert [f.time_s for f in frames(items)] == pytest.approx([0, 0.04, 0.08])


def test_times_count_before_frame_numbers(tmp_path: Path) -> None:
    path, _ = table(tmp_path, BODY_15, 3)
    lines = path.read_text().strip().split("\n")
    lines = [f"{line},{end}" for line, end in zip(lines, ["time", "1.5", "1.75", "2"], strict=True)]
    path.write_text("\n".join(lines) + "\n")
    _, items = read(path)
    assert [f.time_s for f in frames(items)] == [1.5, 1.75, 2.0]


def test_without_times_the_rate_is_asked_for(tmp_path: Path) -> None:
    path, _ = table(tmp_path, BODY_15, 3)
    with pytest.raises(UsageError, match="frames have no times; give their rate: --fps"):
        read(path)
    table(tmp_path, BODY_15, stamp=None)
    with pytest.raises(UsageError, match="rows have no times; give their rate: --fps"):
        read(path, rate_hz=8.0)  # a model's rate is not the recording's
    _, items = read(path, frame_rate_hz=10.0)
    assert [f.time_s for f in frames(items)] == pytest.approx([0, 0.1, 0.2])


def test_frame_numbers_keep_their_place(tmp_path: Path) -> None:
    path, _ = table(tmp_path, BODY_15, 4, stamps=["50", "51", "55", "56"])
    info, items = read(path, frame_rate_hz=10.0)
    assert [f.time_s for f in frames(items)] == pytest.approx([5, 5.1, 5.5, 5.6])
    assert info.duration_s == pytest.approx(5.7)
    _, items = read(path, frame_rate_hz=10.0, start_s=5.1, end_s=5.6)
    assert [(f.i, f.time_s) for f in frames(items)] == [(1, 5.1), (2, 5.5)]


# --- --columns and tables without headings ----------------------------------------------------


def test_headings_of_your_own(tmp_path: Path) -> None:
    path, x = table(tmp_path, BODY_15, style="P.left wrist.a", stamp="Tick")
    with pytest.raises(SourceError, match="no joints"):
        read(path, frame_rate_hz=30.0)
    columns = "frame=Tick,x=-P.{}.a,y=P.{}.c,z=P.{}.b"
    found = joints(path, frame_rate_hz=30.0, columns=columns)
    assert np.array_equal(found[:, 0], x[:, :, [0, 2, 1]] * np.float32([-1, 1, 1]))
    with pytest.raises(SourceError, match=r"no column 'Tack'"):
        read(path, frame_rate_hz=30.0, columns="frame=Tack,x=P.{}.a,y=P.{}.c")


def test_two_coordinates_for_one_joint_are_asked_about(tmp_path: Path) -> None:
    path, _ = table(tmp_path, BODY_15, 2)
    path.write_text(path.read_text().replace("neck_x", "hips_x"))
    with pytest.raises(SourceError, match=r"are both x of hips.*--columns x="):
        read(path, frame_rate_hz=30.0)


@pytest.mark.parametrize("counted", [False, True])
def test_no_headings(tmp_path: Path, counted: bool) -> None:
    """The plainest of all: np.savetxt; or pandas, which counts the columns."""
    x = clip(NTU_25, 4)[:, 0]
    head = ",".join(map(str, range(75))) if counted else ""
    np.savetxt(tmp_path / "a.csv", x.reshape(4, 75), "%.4f", ",", header=head, comments="")
    path = tmp_path / "a.csv"
    with pytest.raises(SourceError, match=r"75 columns have no headings.*--layout NAME --columns"):
        read(path, frame_rate_hz=30.0)
    assert np.array_equal(joints(path, frame_rate_hz=30.0, layout="ntu-25")[:, 0], x)


def test_columns_by_order(tmp_path: Path) -> None:
    x = clip(COCO_17, 4, axes=2)[:, 0]
    rows = np.concatenate([x, np.full((4, 17, 1), 0.5, np.float32)], 2).reshape(4, 51)
    rows = np.hstack([np.arange(4).reshape(4, 1) / 4, np.full((4, 1), 9), rows])
    np.savetxt(tmp_path / "a.csv", rows, "%.4f", ",")
    _, items = read(tmp_path / "a.csv", columns="time,_,x,y,score")
    assert [f.time_s for f in frames(items)] == [0, 0.25, 0.5, 0.75]
    assert np.array_equal(frames(items)[3].joints[0], x[3] * np.float32([1, -1]))
    assert set(frames(items)[3].scores[0].tolist()) == {0.5}
    with pytest.raises(SourceError, match=r"53 columns are not 1 and 3 for each joint"):
        read(tmp_path / "a.csv", columns="time,x,y,score")
    # Three numbers for a joint of a picture may be x, y, z or x, y, score.
    np.savetxt(tmp_path / "a.csv", rows[:, 2:], "%.4f", ",")
    with pytest.raises(SourceError, match="have no headings"):
        read(tmp_path / "a.csv", layout="coco-17", frame_rate_hz=4.0)


def test_a_layout_of_your_own(tmp_path: Path) -> None:
    (tmp_path / "suit.toml").write_text(
        'bones = [["Torso", "Pelvis"], ["Hand7", "Torso"]]\n'
        '[joints]\nPelvis = "hips"\nTorso = "neck"\nHand7 = "left hand"\n'
    )
    (tmp_path / "a.csv").write_text(
        "time,Pelvis_x,Pelvis_y,Pelvis_z,Torso_x,Torso_y,Torso_z,Hand7_x,Hand7_y,Hand7_z\n"
        "0,1,2,3,4,5,6,7,8,9\n0.5,1,2,3,4,5,6,7,8,9\n"
    )
    with pytest.raises(SourceError, match=r"\(pelvis, torso, hand 7\) do not make .* joints.toml"):
        read(tmp_path / "a.csv")
    info, items = read(tmp_path / "a.csv", layout=str(tmp_path / "suit.toml"))
    assert info.layout == "suit"
    frame = frames(items)[0]
    assert frame.layout.joints == ("hips", "neck", "left hand")
    assert np.array_equal(frame.joints[0], np.arange(1, 10).reshape(3, 3))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("a,b", "cannot parse 'a'"),
        ("x=,y=b", "cannot parse 'x='"),
        ("x,x,y", "names x twice"),
        ("x,y=b", "every heading"),
        ("frame,x", "needs x and y"),
        ("x,y,frame", "must come before x, y, z"),
        ("x={}a,y=b", "contain one {}"),
        ("x=a,y=b", "needs {} for the joint"),
        ("x,y,-score", "only x, y and z can be negated"),
        ("", "cannot parse ''"),
    ],
)
def test_columns_that_make_no_sense(tmp_path: Path, columns: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_columns(columns)
    assert "\n" not in str(caught.value)


def test_a_layout_that_does_not_fit(tmp_path: Path) -> None:
    path, _ = table(tmp_path, NTU_25, 2, "0_x")
    with pytest.raises(SourceError, match="a joint number 24, but coco-17 has 17 joints"):
        read(path, frame_rate_hz=30.0, layout="coco-17")
    path.write_text("frame,nose_x,nose_y,left_eye_x\n1,2,3,4\n")
    with pytest.raises(SourceError, match="the joint 'left eye' lacks some of x, y"):
        read(path, frame_rate_hz=30.0, layout="coco-17")
    path.write_text("frame,a_x,a_y\n0,1,2\n")
    with pytest.raises(SourceError, match="none of its joints"):
        read(path, frame_rate_hz=30.0, layout="coco-17")
    with pytest.raises(UsageError, match="no joint layout"):
        read(path, frame_rate_hz=30.0, layout="coco")


# --- headings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heading", "role", "joint"),
    [
        ("KneeRight Z (m)", "z", "right knee"),
        ("lwrist.x", "x", "left wrist"),
        ("x_nose", "x", "nose"),
        ("NOSE_visibility", "score", "nose"),
        ("l_eye_likelihood", "score", "left eye"),
        ("v12", "score", "12"),
        ("time_s", "time", ""),
        ("t [ms]", "time_ms", ""),
        ("frameIndex", "frame", ""),
        ("Frame#", "frame", ""),
        ("track_id", "person", ""),
        ("landmark_index", "joint", ""),
        ("y", "y", ""),
        ("", "_", ""),
        ("label", "_", ""),
        ("index", "_", ""),
    ],
)
def test_what_a_heading_says(heading: str, role: str, joint: str) -> None:
    found = read_heading(heading)
    assert (found.role, joint_phrase(found.joint)) == (role, joint)
