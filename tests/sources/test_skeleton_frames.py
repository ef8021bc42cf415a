"""Recordings of a file, or an entry, a frame: which number is the frame's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.errors import SourceError
from costream.core.layouts import BODY_25, COCO_17, HALPE_26, OPENPOSE_18
from costream.labels.media import Media
from costream.sources.base import SourceOptions
from costream.sources.numbering import numbered
from costream.sources.uris import expand, open_source, sniff
from kit.mocap_files import alphapose, as_layout, pixels, saved, standing, to_body
from kit.skeleton_files import faults, frames, openpose, read

COUNT = 12
X = pixels(COCO_17, COUNT, 2)
HALPE = (*COCO_17.joints, "head top", "neck", "hips", "left toes", "right toes")
HALPE += ("left small toe", "right small toe", "left heel", "right heel")


def found(path: Path, **options: object) -> np.ndarray:
    """Return the joints of an intact recording in pixels, and check its times."""
    _, items = read(path, frame_rate_hz=25.0, **options)
    assert faults(items) == []
    assert [f.time_s for f in frames(items)] == pytest.approx([k / 25 for k in range(COUNT)])
    return np.stack([frame.joints for frame in frames(items)]) * (1, -1)


# --- numbers in names -------------------------------------------------------------------------

NAMES = {
    "plain": lambda t: f"{t}.jpg",
    "padded": lambda t: f"frame_{t:05d}.jpg",
    "size behind": lambda t: f"frame_{t:05d}_720p.jpg",
    "camera behind": lambda t: f"{t:05d}-cam1",
    "camera before": lambda t: f"cam2_{t}",
    "time of day behind": lambda t: f"frame_{t:05d}_12-{t // 6:02d}-{t % 6 * 10:02d}.png",
    "time of day before": lambda t: f"2026-01-31_12-{t // 6:02d}-{t % 6 * 10:02d}_{t:04d}.png",
    "time in ms behind": lambda t: f"f{t}_{40 * t:06d}ms.jpg",
}


@pytest.mark.parametrize("first", [0, 1, 250])
@pytest.mark.parametrize("name", NAMES)
def test_the_number_that_varies_is_the_frame(name: str, first: int) -> None:
    names = [NAMES[name](first + t) for t in range(40)]
    pairs = numbered(names * 2)
    assert [number for _, number in pairs] == list(range(first, first + 40)) * 2
    assert len({video for video, _ in pairs}) == 1


@given(st.integers(2, 4), st.integers(2, 30), st.sampled_from(["cam{}_{:04d}", "{1:04d}-cam{0}"]))
def test_several_cameras_are_several_recordings(cameras: int, count: int, form: str) -> None:
    if cameras >= count:
        count = cameras + 1
    names = [form.format(c, t) for c in range(cameras) for t in range(count)]
    pairs = numbered(names)
    assert len({video for video, _ in pairs}) == cameras
    assert [number for _, number in pairs] == list(range(count)) * cameras


def test_names_without_a_number_have_none() -> None:
    assert numbered(["a.jpg", "b.jpg"]) == [("a.jpg", None), ("b.jpg", None)]


@pytest.mark.parametrize("name", NAMES)
def test_alphapose_and_coco_results_with_any_names_of_pictures(tmp_path: Path, name: str) -> None:
    results = alphapose(X)
    for each in results:
        each["image_id"] = NAMES[name](int(each["image_id"].split(".")[0]))
    path = saved(tmp_path / "a.json", results)
    assert np.allclose(found(path), X, atol=1e-3)
    # A person after the other
    saved(path, sorted(results, key=lambda each: each["idx"]))
    assert np.allclose(found(path), X, atol=1e-3)


def test_entries_of_persons_one_by_one(tmp_path: Path) -> None:
    entries: list[dict[str, Any]] = [
        {"frame": t, "track_id": m, "keypoints": X[t, m].tolist()}
        for m in range(2)
        for t in range(COUNT)
    ]
    path = saved(tmp_path / "a.json", entries)
    assert np.allclose(found(path), X, atol=1e-3)
    entries.sort(key=lambda entry: entry["frame"])
    for entry in entries:
        del entry["track_id"]
    assert np.allclose(found(saved(path, entries)), X, atol=1e-3)


def test_pictures_of_two_videos_are_refused(tmp_path: Path) -> None:
    results = alphapose(X[:, :1])
    both = [dict(each, image_id=f"cam{c}_{each['image_id']}") for c in (1, 2) for each in results]
    with pytest.raises(SourceError, match=r"frames of 2 videos \(cam1_0.jpg"):
        read(saved(tmp_path / "a.json", both), frame_rate_hz=25.0)


# --- folders ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        "clip_{:012d}_keypoints.json",
        "{}_keypoints.json",
        "{:05d}-cam1_keypoints.json",
        "clip_{:012d}_rendered_keypoints.json",
        "cam01_{:06d}.json",
    ],
)
def test_folders_of_openpose_and_of_programs_that_write_its_format(
    tmp_path: Path, form: str
) -> None:
    folder = tmp_path / "k"
    x = pixels(BODY_25, COUNT, 2)
    openpose(folder, x)
    for t, path in enumerate(sorted(folder.iterdir())):
        path.rename(folder / form.format(t))
    assert sniff(str(folder)) == "skeleton"
    assert expand(str(folder)) == [str(folder)]
    assert [medium.source for medium in Media(tmp_path).found] == [str(folder)]
    assert np.allclose(found(folder), x, atol=1e-3)
    with pytest.raises(SourceError, match=rf"one frame of OpenPose.*give the folder.*: .*{folder}"):
        read(folder / form.format(0), frame_rate_hz=25.0)


def test_openpose_before_its_names_had_a_2d(tmp_path: Path) -> None:
    x = pixels(OPENPOSE_18, COUNT, 2)
    folder = openpose(tmp_path / "k", x)
    for path in folder.iterdir():
        path.write_text(path.read_text().replace("pose_keypoints_2d", "pose_keypoints"))
    assert np.allclose(found(folder), x, atol=1e-3)


@pytest.mark.parametrize("count", [17, 26, 133, 136])
def test_folders_with_the_joints_of_halpe_and_whole_bodies(tmp_path: Path, count: int) -> None:
    names = HALPE[: 17 if count in (17, 133) else 26]
    if count == 133:
        names += ("left toes", "left small toe", "left heel")
        names += ("right toes", "right small toe", "right heel")
    x = np.full((COUNT, 1, count, 2), 5.0)
    whole = as_layout(standing(COUNT), BODY_25)[..., :2] * (100, -100) + (50, 400)
    x[:, :, : len(names)] = 30.0
    for k, name in enumerate(names):
        alike = name.replace("head top", "nose")
        near = alike if alike in BODY_25.joints else alike.split()[0] + " ankle"
        x[:, :, k] = whole[:, :, BODY_25.joints.index(near)]
    info, items = read(openpose(tmp_path / "k", x), frame_rate_hz=25.0)
    assert faults(items) == []
    got = np.stack([frame.joints[0] for frame in frames(items)]) * (1, -1)
    layout = frames(items)[0].layout
    body = to_body(got, layout)
    assert np.allclose(body, to_body(whole[:, 0], BODY_25), atol=12)
    assert info.axes == 2


def test_cameras_in_one_folder_are_distinguished_with_what_to_type(tmp_path: Path) -> None:
    folder = openpose(tmp_path / "k", pixels(BODY_25, 4), "cam1")
    for path in list(folder.iterdir()):
        (folder / path.name.replace("cam1", "cam2")).write_bytes(path.read_bytes())
    with pytest.raises(SourceError, match=r"2 videos \(cam1, cam2\)") as caught:
        read(folder, frame_rate_hz=25.0)
    assert str(caught.value).endswith(f"cd {folder}; mkdir cam1; mv cam1_* cam1")


def yolo(folder: Path, x: np.ndarray, *, scores: bool = True, tracks: bool = False) -> Path:
    """Write [T, M, V, 2], shares of a picture, as Ultralytics saves texts; frames count from 1."""
    folder.mkdir()
    for t, frame in enumerate(x):
        lines = []
        for m, person in enumerate(frame):
            joints = np.concatenate([person, np.full((len(person), 1), 0.9)], 1)
            cells = [0, 0.5, 0.5, 0.3, 0.8, *(joints if scores else person).ravel()]
            lines.append(" ".join([*(f"{cell:g}" for cell in cells), *([str(m + 1)] * tracks)]))
        (folder / f"clip_{t + 1}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("scores", [True, False])
@pytest.mark.parametrize("tracks", [True, False])
def test_folders_of_yolo(tmp_path: Path, scores: bool, tracks: bool) -> None:
    shares = X / (1600, 900)
    folder = yolo(tmp_path / "labels", shares, scores=scores, tracks=tracks)
    if tracks:
        (folder / "clip_5.txt").write_text(
            "\n".join(reversed((folder / "clip_5.txt").read_text().split("\n")))
        )
    source = open_source(str(folder), SourceOptions(frame_rate_hz=25.0))
    info = source.open()
    source.close()
    assert (info.layout, len(info.assumed)) == ("coco-17", 1)
    assert "a width of 16/9 of the height is assumed" in info.assumed[0]
    assert np.allclose(found(folder), X / 900, atol=1e-4)
    with pytest.raises(SourceError, match=r"one frame of YOLO.*give the folder of all frames: "):
        read(folder / "clip_1.txt", frame_rate_hz=25.0)


def test_a_folder_of_boxes_is_not_a_recording(tmp_path: Path) -> None:
    for t in range(3):
        (tmp_path / f"clip_{t}.txt").write_text("0 0.5 0.5 0.1 0.1\n")
        (tmp_path / f"clip_{t}.json").write_text('{"shapes": []}')
    with pytest.raises(SourceError, match="this is a folder"):
        sniff(str(tmp_path))


# --- Ultralytics, and times of JSON -----------------------------------------------------------


def ultralytics(x: np.ndarray) -> list[list[dict[str, Any]]]:
    return [
        [
            {
                "name": "person",
                "class": 0,
                "keypoints": {
                    "x": person[:, 0].tolist(),
                    "y": person[:, 1].tolist(),
                    "visible": [0.9] * len(person),
                },
            }
            for person in frame
        ]
        for frame in x
    ]


def test_json_of_ultralytics(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.json", ultralytics(X))
    assert np.allclose(found(path), X, atol=1e-3)
    with pytest.raises(SourceError, match="persons in one picture; save a list"):
        read(saved(path, ultralytics(X)[0]), frame_rate_hz=25.0)


@pytest.mark.parametrize("rate_hz", [4, 25, 250, 1500])
@pytest.mark.parametrize(
    ("name", "per_s", "told"),
    [
        ("timestamp", 1e3, ""),
        ("timestamp", 1.0, "seconds"),
        ("timestamp", 1e6, "microseconds"),
        ("time", 1.0, ""),
        ("time", 1e3, "milliseconds"),
        ("time", 1e9, "nanoseconds"),
        ("timestamp_ms", 1e3, ""),
        ("time_s", 1.0, ""),
    ],
)
def test_times_of_json_in_any_unit(
    tmp_path: Path, rate_hz: int, name: str, per_s: float, told: str
) -> None:
    entries = [
        {name: t * per_s / rate_hz, "instances": [{"keypoints": X[t, 0].tolist()}]}
        for t in range(COUNT)
    ]
    path = saved(tmp_path / "a.json", entries)
    source = open_source(str(path))
    assumed = source.open().assumed
    times = [f.time_s for f in frames(list(source.items()))]
    source.close()
    assert times == pytest.approx([t / rate_hz for t in range(COUNT)])
    assert [f": {told} assumed" in line for line in assumed] == ([True] if told else [])


def test_times_since_1970_count_from_the_first_frame(tmp_path: Path) -> None:
    entries = [
        {"timestamp": 1_769_860_800_000 + 40 * t, "instances": [{"keypoints": X[t, 0].tolist()}]}
        for t in range(COUNT)
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(entries))
    _, items = read(path)
    assert [f.time_s for f in frames(items)] == pytest.approx(
        [t / 25 for t in range(COUNT)], abs=1e-6
    )


@pytest.mark.parametrize("names", ["clip_*.json", "*", "clip_000000000004_keypoints.json"])
def test_files_of_a_folder_are_the_folder(tmp_path: Path, names: str) -> None:
    folder = openpose(tmp_path / "clip", as_layout(standing(COUNT), BODY_25))
    assert expand(str(folder / names)) == [str(folder)]
    other = saved(folder / "about.json", {"people": []})
    assert expand(str(other)) == [str(other)]


def test_numbers_of_joints_that_are_enough(tmp_path: Path) -> None:
    x = as_layout(standing(COUNT), HALPE_26)[:, 0]
    np.savetxt(tmp_path / "a.csv", x.reshape(COUNT, -1), delimiter=",")
    info, items = read(tmp_path / "a.csv", frame_rate_hz=25.0, columns="x,y,z")
    assert info.layout == "halpe-26"
    assert np.allclose(frames(items)[3].joints[0], x[3], atol=1e-3)
    wide = np.concatenate([x[:, :17], x[:, :1].repeat(116, 1)], 1)
    np.save(tmp_path / "b.npy", wide)
    _, items = read(tmp_path / "b.npy", frame_rate_hz=25.0, layout="coco-wholebody-133")
    assert np.allclose(to_body(frames(items)[3].joints[0], items[0].layout)[5], x[3, 9], atol=1e-3)
