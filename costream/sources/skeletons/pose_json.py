"""Reading of JSON of pose estimators: MMPose, AlphaPose, MediaPipe, Ultralytics, and Kinetics."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from costream.core.errors import SourceError
from costream.core.layouts import MEDIAPIPE_33
from costream.sources.file import first_of, read_all
from costream.sources.skeletons.frame_files import is_frame_folder
from costream.sources.skeletons.joint_names import NAMES_BY_COUNT, pad_names
from costream.sources.skeletons.kinetics import read_kinetics
from costream.sources.skeletons.order import is_grouped
from costream.sources.skeletons.person import make_person
from costream.sources.skeletons.pose_frames import (
    find_frames,
    is_single_person,
    joints_of,
    landmarks_of,
    parse_content,
    people_of,
)
from costream.sources.skeletons.pose_times import frame_times_s, stated_rate
from costream.sources.skeletons.skeleton_format import SkeletonInput, skeleton_format
from costream.sources.skeletons.skeleton_recording import (
    BAD_FRAME,
    Event,
    PersonFrame,
    SkeletonRecording,
    SkippedData,
    TruncatedRecording,
)
from costream.sources.skeletons.take import Take

_JSON = re.compile(rb'(\xef\xbb\xbf)?\s*(\{\s*(["}]|$)|\[\s*([\[{"\d\-\]]|null|$))')


def is_json(source: SkeletonInput) -> bool:
    """Return whether this is text that begins like an object or array of JSON."""
    return source.is_text and _JSON.match(source.head) is not None


@skeleton_format("json", sniff=is_json, order=6)
def read_pose_json(source: SkeletonInput) -> Take | SkeletonRecording:
    """Open what a pose estimator has written for a video.

    In pictures y points down. MediaPipe's world coordinates are preferred to those in the picture.
    Raises SourceError for other JSON, UsageError without a rate or times.
    """
    where = source.where
    content, complete = parse_content(read_all(source.file).decode("utf-8-sig", "replace"))
    frames, names = find_frames(content)
    if not frames:
        raise _no_skeletons(content, where)
    if all(map(is_single_person, frames)):
        raise SourceError(
            "this is a list of the persons in one picture",
            where=where,
            hint="save a list of such lists, one per frame",
        )
    if isinstance(frames[0], Mapping) and "skeleton" in frames[0]:
        return read_kinetics(frames, complete, source.rate_hz, source.options.persons)
    rate_hz = source.rate_hz or stated_rate(content)
    take = pose_take(frames, names, rate_hz, where)
    if complete:
        return take
    cut_off = TruncatedRecording("the file is damaged or cut off after this frame")
    return replace(take, events=[*take.events, cut_off])


def _no_skeletons(content: Any, where: str) -> SourceError:
    if isinstance(content, Mapping) and "people" in content:
        folder = os.path.dirname(where) or "."
        hint = f"give the folder of all frames: {folder}"
        if not is_frame_folder(folder):
            hint = "a recording is a folder with a file for each frame: NAME_000000_keypoints.json"
        return SourceError("this is one frame of OpenPose keypoints", where=where, hint=hint)
    seen = first_of(map(str, content), 6) if isinstance(content, Mapping) else "a list"
    return SourceError(
        f"this JSON contains no skeletons ({seen or 'nothing'})",
        where=where,
        hint="supported are MMPose, AlphaPose, MediaPipe, Ultralytics and Kinetics-skeleton",
    )


def pose_take(
    frames: Sequence[Any], names: tuple[str, ...] | None, rate_hz: float | None, where: str
) -> Take:
    """Return the take of frames as pose estimators write them; ``names``: of joints, if given."""
    times_s, assumed = frame_times_s(frames, rate_hz, where)
    events, shape = _read_frames(frames, times_s)
    if shape is None:
        raise SourceError("there are no persons in it", where=where)
    count, axes = shape
    is_mediapipe = count == len(MEDIAPIPE_33.joints) or any(
        next(landmarks_of(frame), None) is not None for frame in frames
    )
    if names is None or len(names) != count:
        named = MEDIAPIPE_33.joints if is_mediapipe else NAMES_BY_COUNT.get(count)
        names = tuple(map(str, range(count))) if named is None else pad_names(named, count)
    tilted = axes == 3 and not is_mediapipe
    return Take(names, axes, _gathered(events), rate_hz or None, tilted=tilted, assumed=assumed)


def _read_frames(
    frames: Sequence[Any], times_s: Sequence[float]
) -> tuple[list[Event], tuple[int, int] | None]:
    """Return the events of the frames, and the shape [V, C] of their persons; None without any.

    The first frame with persons sets the shape; frames with another one are left out.
    """
    events: list[Event] = []
    shape: tuple[int, int] | None = None
    for frame, time_s in zip(frames, times_s, strict=True):
        try:
            people = people_of(frame)
            if people is None:
                raise ValueError("no persons")
            persons = [person for person in map(joints_of, people) if person[0].size]
            shapes = {joints.shape for joints, _, _ in persons} - {shape}
            if shape is None and shapes:
                shape = shapes.pop()
            if shapes:
                raise ValueError("the number of joints changes")
            events.append(PersonFrame(time_s, tuple(make_person(*person) for person in persons)))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            events.append(SkippedData(BAD_FRAME))
    return events, shape


def _gathered(events: list[Event]) -> list[Event]:
    """Return the events with the persons of a frame together, whose entries may stand apart.

    Entries that follow each other with one time are a frame. If the persons have identities, and
    come one after the other, the frames are sorted.
    """
    frames = [event for event in events if isinstance(event, PersonFrame)]
    owners = [
        (frame.time_s, body.key)
        for frame in frames
        for body in frame.bodies
        if body.key is not None or len(frame.bodies) == 1
    ]
    if all(key is not None for _, key in owners) and is_grouped(owners):
        others: list[Event] = [event for event in events if not isinstance(event, PersonFrame)]
        events = [*others, *sorted(frames, key=lambda frame: frame.time_s)]
    together: list[Event] = []
    for event in events:
        last = together[-1] if together else None
        if (
            isinstance(event, PersonFrame)
            and isinstance(last, PersonFrame)
            and last.time_s == event.time_s
        ):
            together[-1] = PersonFrame(last.time_s, (*last.bodies, *event.bodies))
        else:
            together.append(event)
    return together
