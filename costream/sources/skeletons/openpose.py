"""Reading of skeletons from Kinetics-skeleton JSON, and folders of OpenPose and YOLO."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError
from costream.core.layouts import BODY_25, OPENPOSE_18, Layout
from costream.sources.file import require_rate
from costream.sources.skeletons.frame_files import frame_files
from costream.sources.skeletons.joint_names import NAMES_BY_COUNT, find_joints
from costream.sources.skeletons.person import Person, make_person
from costream.sources.skeletons.skeleton_recording import (
    Event,
    PersonFrame,
    SkeletonRecording,
    SkippedData,
    TruncatedRecording,
    check_joints,
)
from costream.sources.skeletons.take import arranged, joint_order

KINETICS_RATE_HZ = 30.0
_CONSIDERED = 5  # persons of a frame, in the order of the file
_Raw: TypeAlias = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], str | None]
_UNREADABLE = (OSError, KeyError, TypeError, ValueError, RecursionError)
_YOLO_WITHOUT_SCORES = (34, 35, 36)  # 17 joints, and perhaps a confidence and a track
_WIDTH_OF_HEIGHT = 16 / 9
_WIDE = (
    "YOLO's files give shares of a picture and not its size: its width is taken as 16/9 of its "
    "height"
)
_BY_COUNT = {len(layout.joints): layout for layout in (OPENPOSE_18, BODY_25)}

_BAD_FRAME = "malformed frame(s), left out"


def read_kinetics(
    frames: Sequence[Any], whole: bool, rate_hz: float | None, slots: int
) -> SkeletonRecording:
    """Open Kinetics-skeleton JSON: x, y as fractions of the image, centred, y up; 18 joints.

    Frames are numbered from 1. ``whole``: whether nothing follows them that cannot be read. If a
    frame has more persons than ``slots``, slot k of every frame has the person with the k-th
    highest score among the first five, as in ST-GCN and what was trained with its reader.
    """
    rate = rate_hz or KINETICS_RATE_HZ
    numbers = [n for frame in frames if isinstance(n := _get(frame, "frame_index"), int)]
    duration_s = max(numbers) / rate if numbers else None
    people = [_get(frame, "skeleton") for frame in frames]
    ranked = any(isinstance(each, list) and len(each) > slots for each in people)
    events = _kinetics(frames, rate, whole, slots if ranked else None)
    return SkeletonRecording(OPENPOSE_18, 2, rate, duration_s, events)


def _kinetics(
    frames: Sequence[Any], rate_hz: float, whole: bool, best: int | None
) -> Iterator[Event]:
    """Yield the frames; ``best``: with only so many persons, ordered by their scores."""
    for frame in frames:
        try:
            number = frame["frame_index"]
            people = [_kinetics_body(person) for person in frame["skeleton"]]
            if best is not None:
                order = sorted(people[:_CONSIDERED], key=lambda body: -float(body.scores.sum()))
                people = [replace(body, key=rank) for rank, body in enumerate(order[:best])]
            moment = PersonFrame((int(number) - 1) / rate_hz, tuple(people))
        except (KeyError, TypeError, ValueError):
            yield SkippedData(_BAD_FRAME)
        else:
            yield moment
    if not whole:
        yield TruncatedRecording("the file is damaged or cut off after this frame")


def _kinetics_body(person: Any) -> Person:
    places = np.array(person["pose"], float).reshape(len(OPENPOSE_18.joints), 2)
    scores = np.array(person["score"], float)
    if scores.shape != places.shape[:1]:
        raise ValueError("the numbers of scores and joints differ")
    return make_person(places, scores, shift=0.5, signs=(1, -1))


def read_frame_files(
    folder: str, layout: Layout | None, rate_hz: float | None, where: str
) -> SkeletonRecording:
    """Open a folder with a file a frame: of OpenPose, image pixels, or of YOLO, shares of it.

    The files do not contain the image size, so y is their value negated. Raises SourceError
    without such files and UsageError without a rate: they have no times.
    """
    files = frame_files(folder)
    if files is None:
        raise SourceError("there are no files of keypoints in this folder", where=where)
    rate_hz = require_rate(rate_hz, where)
    read = _openpose_people if files.kind == "openpose" else _yolo_people
    assumed = (_WIDE,) if files.kind == "yolo" else ()
    paths = [os.path.join(folder, name) for name in files.names]
    count = _joint_count(paths, read)
    names = tuple(map(str, range(count)))
    if layout is None and count in NAMES_BY_COUNT:
        names = NAMES_BY_COUNT[count] + tuple(
            f"further {k}" for k in range(len(NAMES_BY_COUNT[count]), count)
        )
        layout, index = find_joints(names, _BY_COUNT.get(count), where)
    elif layout is None and not count:
        raise SourceError("there are no persons in it", where=where)
    elif layout is None:
        known = ", ".join(map(str, sorted(NAMES_BY_COUNT)))
        what = f"there are {count} joints in it, pose estimators have {known}"
        raise SourceError(what, where=where, hint="give the layout: --layout NAME, or a TOML file")
    else:
        if count:
            check_joints(count, layout, where)
        index = {name: k for k, name in enumerate(names)}
    order = joint_order(index, names, len(layout.joints))
    first = 1 if files.kind == "yolo" and files.numbers[0] > 0 else 0  # YOLO counts from 1
    times_s = [(number - first) / rate_hz for number in files.numbers]

    def events() -> Iterator[Event]:
        for path, time_s in zip(paths, times_s, strict=True):
            try:
                people = [
                    arranged(make_person(*each, signs=(1, -1)), order, np.eye(2))
                    for each in read(path)
                    if len(each[0]) == count or _refuse(len(each[0]))
                ]
            except _UNREADABLE:
                yield SkippedData(_BAD_FRAME)
            else:
                yield PersonFrame(time_s, tuple(people))

    duration_s = times_s[-1] + 1 / rate_hz
    return SkeletonRecording(layout, 2, rate_hz, duration_s, events(), assumed=assumed)


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
    key = (_get(person, "person_id") or [-1])[0]
    known = isinstance(key, int) and key >= 0
    return values[:, :2], values[:, 2], str(key) if known else None


def _yolo_people(path: str) -> list[_Raw]:
    """Return the persons of a file of YOLO: class, box, joints, and confidence and track if any."""
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


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
