"""Reading of skeletons from Kinetics-skeleton JSON and folders of OpenPose keypoints."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from costream.errors import SourceError, display_name
from costream.layouts import BODY_25, OPENPOSE_18, Layout
from costream.sources.file import require_rate
from costream.sources.skeletons.persons import (
    Event,
    Person,
    PersonFrame,
    SkeletonRecording,
    SkippedData,
    TruncatedRecording,
    check_joints,
    make_person,
)

KINETICS_RATE_HZ = 30.0
_CONSIDERED = 5  # persons of a frame, in the order of the file
_KEYPOINTS = re.compile(r"(.*?)_?([0-9]+)_keypoints\.json")
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


def keypoint_files(folder: str) -> list[str]:
    """Return the names of the keypoint files in a folder, in numerical order.

    Raises SourceError if the folder cannot be read or contains those of several videos.
    """
    try:
        names = [m for name in os.listdir(folder) if (m := _KEYPOINTS.fullmatch(name))]
    except OSError as error:
        raise SourceError(
            f"cannot be read ({error.strerror})", where=display_name(folder)
        ) from error
    videos = sorted({match[1] for match in names})
    if len(videos) > 1:
        raise SourceError(
            f"it holds the keypoints of {len(videos)} videos ({videos[0]}, {videos[1]}, ...)",
            where=display_name(folder),
            hint="use a separate folder for each video",
        )
    return [match[0] for match in sorted(names, key=lambda match: int(match[2]))]


def read_openpose(
    folder: str, layout: Layout | None, rate_hz: float | None, where: str
) -> SkeletonRecording:
    """Open a folder of OpenPose keypoints: image pixels, y up from 0.

    The files do not contain the image size, so y is OpenPose's value negated. Raises SourceError
    without keypoints and UsageError without a rate: the files have no times.
    """
    names = keypoint_files(folder)
    if not names:
        raise SourceError("there are no *_keypoints.json in this folder", where=where)
    rate_hz = require_rate(rate_hz, where)
    count = _joint_count(folder, names)
    known = layout or _BY_COUNT.get(count)
    if known is None:
        what = f"there are {count} joints in it, OpenPose has 18 or 25"
        raise SourceError(what, where=where)
    if count:
        check_joints(count, known, where)
    duration_s = (_number(names[-1]) + 1) / rate_hz
    return SkeletonRecording(
        known, 2, rate_hz, duration_s, _openpose(folder, names, known, rate_hz)
    )


def _openpose(folder: str, names: Sequence[str], layout: Layout, rate_hz: float) -> Iterator[Event]:
    for name in names:
        try:
            people = [_openpose_body(person, layout) for person in _people(folder, name)]
        except (OSError, KeyError, TypeError, ValueError, RecursionError):
            yield SkippedData(_BAD_FRAME)
        else:
            yield PersonFrame(_number(name) / rate_hz, tuple(people))


def _openpose_body(person: Any, layout: Layout) -> Person:
    values = np.array(person["pose_keypoints_2d"], float).reshape(len(layout.joints), 3)
    key = (_get(person, "person_id") or [-1])[0]
    known = isinstance(key, int) and key >= 0
    return make_person(values[:, :2], values[:, 2], str(key) if known else None, signs=(1, -1))


def _joint_count(folder: str, names: Sequence[str]) -> int:
    """Return the number of joints of the first person; 0 if no file contains a person."""
    for name in names:
        try:
            for person in _people(folder, name):
                return len(person["pose_keypoints_2d"]) // 3
        except (OSError, KeyError, TypeError, ValueError, RecursionError):
            continue
    return 0


def _people(folder: str, name: str) -> list[Any]:
    with open(os.path.join(folder, name), encoding="utf-8-sig") as file:
        people = json.load(file)["people"]
    if not isinstance(people, list):
        raise ValueError("people is not a list")
    return people


def _number(name: str) -> int:
    match = _KEYPOINTS.fullmatch(name)
    return int(match[2]) if match else 0


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
