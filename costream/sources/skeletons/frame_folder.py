"""Reading of skeletons from Kinetics-skeleton JSON, and folders of OpenPose and YOLO."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError
from costream.core.layouts import BODY_25, OPENPOSE_18, Layout
from costream.sources.file import require_rate
from costream.sources.skeletons.frame_files import frame_files, is_yolo_pose
from costream.sources.skeletons.joint_names import NAMES_BY_COUNT, find_joints, pad_names
from costream.sources.skeletons.person import make_person
from costream.sources.skeletons.skeleton_format import SkeletonInput, skeleton_format
from costream.sources.skeletons.skeleton_recording import (
    BAD_FRAME,
    Event,
    PersonFrame,
    SkeletonRecording,
    SkippedData,
    check_joints,
)
from costream.sources.skeletons.take import arranged, joint_order

_Raw: TypeAlias = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], str | None]
_UNREADABLE = (OSError, KeyError, TypeError, ValueError, RecursionError)
_YOLO_WITHOUT_SCORES = (34, 35, 36)  # 17 joints, and perhaps a confidence and a track
_WIDTH_OF_HEIGHT = 16 / 9
_WIDE = (
    "YOLO's files contain fractions of the picture size but not the size: a width of 16/9 of the "
    "height is assumed"
)
_BY_COUNT = {len(layout.joints): layout for layout in (OPENPOSE_18, BODY_25)}


def is_yolo_file(source: SkeletonInput) -> bool:
    """Return whether this is one of the files that YOLO writes for each frame."""
    return source.is_text and source.has_suffix(".txt") and is_yolo_pose(source.first_line)


@skeleton_format("yolo-file", sniff=is_yolo_file, order=8)
def refuse_yolo_file(source: SkeletonInput) -> SkeletonRecording:
    """Raise SourceError: a recording is the folder of all frames."""
    folder = os.path.dirname(source.where) or "."
    raise SourceError(
        "this is one frame of YOLO's keypoints",
        where=source.where,
        hint=f"give the folder of all frames: {folder}",
    )


def is_frame_folder(source: SkeletonInput) -> bool:
    """Return whether this is a folder with one file per frame."""
    return frame_files(source.path or "") is not None


@skeleton_format("frame-folder", sniff=is_frame_folder, folder=True)
def read_frame_folder(source: SkeletonInput) -> SkeletonRecording:
    """Open a folder with one file per frame: of OpenPose (pixels) or YOLO (fractions of the image).

    The files do not contain the image size, so y is the negated value. Raises SourceError
    without such files and UsageError without a rate: they have no times.
    """
    folder, where = source.path or "", source.where
    files = frame_files(folder)
    if files is None:
        raise SourceError("there are no files of keypoints in this folder", where=where)
    rate_hz = require_rate(source.rate_hz, where)
    read = _openpose_people if files.kind == "openpose" else _yolo_people
    assumed = (_WIDE,) if files.kind == "yolo" else ()
    paths = [os.path.join(folder, name) for name in files.names]
    count = _joint_count(paths, read)
    layout, order = _joints(count, source.layout, where)
    first = 1 if files.kind == "yolo" and files.numbers[0] > 0 else 0  # YOLO counts from 1
    times_s = [(number - first) / rate_hz for number in files.numbers]

    def events() -> Iterator[Event]:
        for path, time_s in zip(paths, times_s, strict=True):
            try:
                people = [
                    arranged(make_person(*person, signs=(1, -1)), order, np.eye(2))
                    for person in read(path)
                    if len(person[0]) == count or _refuse(len(person[0]))
                ]
            except _UNREADABLE:
                yield SkippedData(BAD_FRAME)
            else:
                yield PersonFrame(time_s, tuple(people))

    duration_s = times_s[-1] + 1 / rate_hz
    return SkeletonRecording(layout, 2, rate_hz, duration_s, events(), assumed=assumed)


def _joints(count: int, layout: Layout | None, where: str) -> tuple[Layout, npt.NDArray[np.int64]]:
    """Return the layout of ``count`` joints, and the place of each of its joints among them."""
    if layout is not None:
        if count:
            check_joints(count, layout, where)
        return layout, np.arange(len(layout.joints))
    if not count:
        raise SourceError("there are no persons in it", where=where)
    if count not in NAMES_BY_COUNT:
        counts = ", ".join(map(str, sorted(NAMES_BY_COUNT)))
        what = f"it has {count} joints per person; known numbers are {counts}"
        raise SourceError(what, where=where, hint="give the layout: --layout NAME, or a TOML file")
    names = pad_names(NAMES_BY_COUNT[count], count)
    found, index = find_joints(names, _BY_COUNT.get(count), where)
    return found, joint_order(index, names, len(found.joints))


def _refuse(count: int) -> bool:
    raise ValueError(f"{count} joints")


def _openpose_people(path: str) -> list[_Raw]:
    """Return places, scores and identity of the persons in a file."""
    with open(path, encoding="utf-8-sig") as file:
        people = json.load(file)["people"]
    if not isinstance(people, list):
        raise ValueError("people is not a list")
    return list(map(_openpose_body, people))


def _openpose_body(person: Any) -> _Raw:
    # Before version 1.2 of OpenPose the name had no "_2d".
    raw = person["pose_keypoints_2d" if "pose_keypoints_2d" in person else "pose_keypoints"]
    values = np.array(raw, float).reshape(-1, 3)
    key = (person.get("person_id") or [-1])[0]
    has_id = isinstance(key, int) and key >= 0
    return values[:, :2], values[:, 2], str(key) if has_id else None


def _yolo_people(path: str) -> list[_Raw]:
    """Return the persons of a file of YOLO: class, box, joints, optional confidence and track."""
    with open(path, encoding="utf-8-sig") as file:
        return [_yolo_body(line.split()) for line in file if line.strip()]


def _yolo_body(cells: list[str]) -> _Raw:
    numbers = np.array(cells, float)[5:]
    # Joints of three numbers are usual: 17 of COCO are 51 numbers, of two numbers 34.
    size = 2 if len(numbers) in _YOLO_WITHOUT_SCORES else 3
    count, left = divmod(len(numbers), size)
    key = cells[-1] if left and cells[-1].isdecimal() else None
    values = numbers[: count * size].reshape(count, size)
    places = values[:, :2] * np.array((_WIDTH_OF_HEIGHT, 1.0))
    return places, values[:, 2] if size == 3 else np.ones(count), key


def _joint_count(paths: Sequence[str], read: Callable[[str], list[_Raw]]) -> int:
    """Return the number of joints of the first person; 0 if no file contains a person."""
    for path in paths:
        try:
            for places, _, _ in read(path):
                return len(places)
        except _UNREADABLE:
            continue
    return 0
