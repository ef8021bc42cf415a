"""Reading of JSON of pose estimators: MMPose, AlphaPose, MediaPipe, Ultralytics, and Kinetics."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from costream.core.errors import SourceError
from costream.core.layouts import MEDIAPIPE_33, Layout
from costream.sources.file import first_of, require_rate
from costream.sources.numbering import numbered
from costream.sources.skeletons.columns import Columns
from costream.sources.skeletons.joint_names import NAMES_BY_COUNT
from costream.sources.skeletons.openpose import read_kinetics
from costream.sources.skeletons.order import is_grouped
from costream.sources.skeletons.person import make_person
from costream.sources.skeletons.skeleton_recording import (
    Event,
    PersonFrame,
    SkeletonRecording,
    SkippedData,
    TruncatedRecording,
)
from costream.sources.skeletons.table_clock import CALENDAR_S, SLOW_S
from costream.sources.skeletons.take import Take, read_take

_BAD_FRAME = "malformed frame(s), left out"
_MEDIAPIPE = ("pose_world_landmarks", "world_landmarks", "pose_landmarks", "landmarks")
# Names of the list of frames, or of the results of one picture
_LISTS = ("data", "instance_info", "frames", "results", "predictions", "annotations")
# Names of a frame's time, and their unit in s; None: they say none.
_TIMES = {
    **dict.fromkeys(("timestamp_ms", "timestampms", "time_ms"), 1e-3),
    **dict.fromkeys(("time", "timestamp"), None),
    "time_s": 1.0,
}
_NUMBERS = ("frame_id", "frame_index", "frame", "image_id")  # names of a frame's number
_LARGEST_NUMBER = 10**14

_Stamp: TypeAlias = tuple[str, float, float | None]


def read_pose_json(
    text: str,
    layout: Layout | None,
    columns: Columns | None,
    rate_hz: float | None,
    where: str,
    slots: int,
) -> SkeletonRecording:
    """Open what a pose estimator has written for a video.

    ``slots``: number of persons that are wanted. Picture coordinates have y down; MediaPipe's are
    those of its world where it has them. Raises SourceError, quoting what is in it, for other
    JSON; UsageError without a rate or times.
    """
    content, whole = _content(text)
    frames, names = _frames(content)
    if not frames:
        if isinstance(content, Mapping) and "people" in content:
            folder = os.path.dirname(where) or "."
            what = "this is one frame of OpenPose keypoints"
            hint = f"give the folder of all frames: {folder}"
        else:
            seen = first_of(map(str, content), 6) if isinstance(content, Mapping) else "a list"
            what = f"this JSON holds no skeletons ({seen or 'nothing'})"
            hint = "read are MMPose, AlphaPose, MediaPipe, Ultralytics and Kinetics-skeleton"
        raise SourceError(what, where=where, hint=hint)
    if all(map(_is_alone, frames)):
        raise SourceError(
            "these are the persons of one picture",
            where=where,
            hint="save a list with such a list for each frame",
        )
    if isinstance(frames[0], Mapping) and "skeleton" in frames[0]:
        return read_kinetics(frames, whole, rate_hz, slots)
    rate_hz = rate_hz or _rate(content)
    return read_take(_take(frames, names, whole, rate_hz, where), layout, columns, where)


def read_pose_list(
    frames: Sequence[Any],
    layout: Layout | None,
    columns: Columns | None,
    rate_hz: float | None,
    where: str,
) -> SkeletonRecording:
    """Open a list of MMPose's results, a frame each, as its Python interface returns them."""
    return read_take(_take(frames, None, True, rate_hz, where), layout, columns, where)


def _content(text: str) -> tuple[Any, bool]:
    """Return the content, and whether it is whole; of a truncated one the frames before the cut."""
    try:
        return json.loads(text), True
    except (ValueError, RecursionError):
        pass
    found = re.search(rf'^\s*\[|"(?:{"|".join(_LISTS)})"\s*:\s*\[', text)
    frames, decoder = [], json.JSONDecoder()
    at = found.end() if found else len(text)
    while at < len(text):
        gap = re.compile(r"[\s,]*").match(text, at)
        try:
            frame, at = decoder.raw_decode(text, gap.end() if gap else at)
        except (ValueError, RecursionError):
            break
        frames.append(frame)
    ids = re.search(r'"keypoint_id2name"\s*:\s*(?=\{)', text)
    meta: dict[str, Any] = {}
    if ids:
        try:
            meta = {"keypoint_id2name": decoder.raw_decode(text, ids.end())[0]}
        except (ValueError, RecursionError):
            meta = {}
    return {"frames": frames, "meta_info": meta}, False


def _frames(content: Any) -> tuple[list[Any], tuple[str, ...] | None]:
    """Return the frames of any of the formats, and the names of joints if they are given."""
    names: tuple[str, ...] | None = None
    if isinstance(content, Mapping):
        meta = content.get("meta_info")
        given = meta.get("keypoint_id2name") if isinstance(meta, Mapping) else None
        if isinstance(given, Mapping):
            names = tuple(str(given[k]) for k in sorted(given, key=_number_of))
        listed = next((content[k] for k in _LISTS if isinstance(content.get(k), list)), None)
        if listed is None and next(_landmarks(content), None) is not None:
            listed = [content]
        if listed is None and content and all(_bodies(v) is not None for v in content.values()):
            # AlphaPose for CMU-Pose or OpenPose: a picture's name, then its bodies
            listed = [{"image_id": k, "instances": _bodies(v)} for k, v in content.items()]
        content = listed
    if not isinstance(content, list):
        return [], None
    if content and all(
        isinstance(e, Mapping) and "image_id" in e and "keypoints" in e for e in content
    ):
        pictures: dict[Any, list[Any]] = {}
        for each in content:
            pictures.setdefault(str(each["image_id"]), []).append(each)
        content = [{"image_id": k, "instances": v} for k, v in pictures.items()]
    known = [frame for frame in content if _people(frame) is not None]
    return (content if known else []), names


def _bodies(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return None
    return value.get("bodies", value.get("people"))


def _take(
    frames: Sequence[Any],
    names: tuple[str, ...] | None,
    whole: bool,
    rate_hz: float | None,
    where: str,
) -> Take:
    times_s, assumed = _times(frames, rate_hz, where)
    events: list[Event] = []
    shape: tuple[int, int] | None = None
    for frame, time_s in zip(frames, times_s, strict=True):
        try:
            raw = [_body(person) for person in _people(frame) or ()]
            if _people(frame) is None:
                raise ValueError("no persons")
            shapes = {places.shape for places, _, _ in raw if places.size} - {shape}
            if shape is None and shapes:
                shape = shapes.pop()
            if shapes:
                raise ValueError("the number of joints changes")
            bodies = tuple(make_person(*each) for each in raw if each[0].size)
            events.append(PersonFrame(time_s, bodies))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            events.append(SkippedData(_BAD_FRAME))
    if shape is None:
        raise SourceError("there are no persons in it", where=where)
    events = _gathered(events)
    if not whole:
        events.append(TruncatedRecording("the file is damaged or cut off after this frame"))
    count, axes = shape
    if names is not None and len(names) != count:
        names = None
    is_mediapipe = any(
        next(_landmarks(frame), None) is not None for frame in frames
    ) or count == len(MEDIAPIPE_33.joints)
    if names is None:
        names = MEDIAPIPE_33.joints if is_mediapipe else NAMES_BY_COUNT.get(count)
    if names is None:
        names = tuple(map(str, range(count)))
    names = tuple(names) + tuple(f"further {k}" for k in range(count - len(names)))
    rate = rate_hz if rate_hz else None
    tilted = axes == 3 and not is_mediapipe
    return Take(names, axes, events, rate, tilted=tilted, assumed=assumed)


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


def _times(
    frames: Sequence[Any], rate_hz: float | None, where: str
) -> tuple[list[float], tuple[str, ...]]:
    """Return the time of each frame, and what was assumed of them."""
    stamps = [_stamp(frame) for frame in frames]
    if any(stamp is not None for stamp in stamps):
        unit_s, assumed = _unit(stamps)
        scaled = [math.nan if s is None else s[1] * (s[2] or unit_s) for s in stamps]
        known = [time_s for time_s in scaled if math.isfinite(time_s)]
        # Seconds since 1970 count from the first frame.
        origin_s = min(known, default=0.0)
        origin_s = origin_s if origin_s >= CALENDAR_S else 0.0
        return [time_s - origin_s for time_s in scaled], assumed
    rate = require_rate(rate_hz, where)
    ids = _numbers(frames, where)
    first = min((n for n in ids if n is not None), default=0)
    # Frames are counted from 0 or from 1.
    return [
        (k if number is None else number - min(first, 1)) / rate for k, number in enumerate(ids)
    ], ()


def _unit(stamps: Sequence[_Stamp | None]) -> tuple[float, tuple[str, ...]]:
    """Return the unit of times whose name has none, in s: the one in which frames follow closely.

    Frames are at least half a millisecond and at most half a second apart, so that there is one.
    """
    open_ = [stamp for stamp in stamps if stamp is not None and stamp[2] is None]
    if not open_:
        return 1.0, ()
    name = open_[0][0]
    usual = 1.0 if name == "time" else 1e-3  # MediaPipe's timestamps are in milliseconds
    values = sorted({value for _, value, _ in open_})
    spacing = min((b - a for a, b in itertools.pairwise(values)), default=0.0)
    fitting = [u for u in (1.0, 1e-3, 1e-6, 1e-9) if SLOW_S / 1000 < spacing * u <= SLOW_S]
    unit_s = fitting[0] if fitting else usual
    if unit_s == usual:
        return usual, ()
    unit = {1.0: "seconds", 1e-3: "milliseconds", 1e-6: "microseconds", 1e-9: "nanoseconds"}[unit_s]
    return unit_s, (f"{name!r} has no unit and counts by {spacing:g}: it is taken as {unit}",)


def _people(frame: Any) -> list[Any] | None:
    """Return the persons of a frame, in whatever form; None if there is no such thing."""
    if isinstance(frame, list):
        frame = {"instances": frame}
    if not isinstance(frame, Mapping):
        return None
    landmarks = next(_landmarks(frame), None)
    if landmarks is not None:
        several = landmarks and isinstance(landmarks[0], list)
        return list(landmarks) if several else ([landmarks] if landmarks else [])
    for key in ("instances", "skeleton", "predictions"):
        people = frame.get(key)
        if isinstance(people, list):
            # MMPose's inferencer puts the persons of a picture into a list of one batch.
            nested = len(people) == 1 and isinstance(people[0], list)
            return people[0] if nested else people
    places = frame.get("keypoints")
    if isinstance(places, np.ndarray) and places.ndim == 3:  # a frame of MMPose's Python interface
        scores = frame.get("keypoint_scores")
        scores = [None] * len(places) if scores is None else scores
        return [{"keypoints": p, "keypoint_scores": s} for p, s in zip(places, scores, strict=True)]
    return [frame] if "keypoints" in frame else None


def _landmarks(frame: Any) -> Iterator[list[Any]]:
    """Yield the lists of MediaPipe's landmarks in a frame, those of the world first."""
    if isinstance(frame, Mapping):
        named = {
            re.sub(r"([A-Z])", r"_\1", str(key)).lower(): value for key, value in frame.items()
        }
        for name in _MEDIAPIPE:
            if isinstance(named.get(name), list):
                yield named[name]


def _body(person: Any) -> tuple[Any, Any, str | None]:
    """Return joints [V, C], scores [V] and identity of a person; ValueError if they do not fit."""
    if isinstance(person, list):  # landmarks
        places = np.array([[p["x"], p["y"], p["z"]] for p in person], float)
        seen = [p.get("visibility", 1.0) for p in person]
        return places, np.array([1.0 if s is None else s for s in seen], float), None
    key = next(
        (person[k] for k in ("track_id", "idx", "person_id") if person.get(k) is not None), None
    )
    if isinstance(key, list):
        key = key[0] if key else None
    identity = None if key is None or key == -1 else str(key)
    raw = [person[k] for k in ("keypoints", "joints", "pose_keypoints_2d") if k in person]
    if not raw:
        raise ValueError("a person without joints")
    if isinstance(raw[0], Mapping):  # Ultralytics: a list of each coordinate
        named = [raw[0][axis] for axis in ("x", "y")]
        return np.array(named, float).T, _seen(raw[0].get("visible")), identity
    values = np.array(raw[0], float)
    scores_given = person.get("keypoint_scores")
    if values.ndim == 1:
        values = values.reshape(-1, 3)
        return values[:, :2], values[:, 2], identity
    if values.ndim != 2 or values.shape[1] not in (2, 3):
        raise ValueError(f"keypoints have the shape {values.shape}")
    scores = None if scores_given is None else np.array(scores_given, float)
    if scores is not None and scores.shape != values.shape[:1]:
        raise ValueError("the numbers of scores and joints differ")
    return values, scores, identity


def _is_alone(frame: Any) -> bool:
    """Return whether this is a person of Ultralytics outside the list of a frame."""
    return (
        isinstance(frame, Mapping)
        and isinstance(frame.get("keypoints"), Mapping)
        and not _TIMES.keys() & set(map(str, frame))
        and not any(key in frame for key in _NUMBERS)
    )


def _seen(scores: Any) -> Any:
    return None if scores is None else np.array(scores, float)


def _stamp(frame: Any) -> _Stamp | None:
    """Return name, value and unit of a frame's time; the unit is None if its name has none."""
    if isinstance(frame, Mapping):
        for key, value in frame.items():
            name = str(key).lower()
            if name in _TIMES and isinstance(value, (int, float)):
                return name, float(value), _TIMES[name]
    return None


def _numbers(frames: Sequence[Any], where: str) -> list[int | None]:
    """Return the number of each frame: frame_id, or that in the name of a picture.

    Raises SourceError if pictures of several videos are among them.
    """
    given = [
        next((str(f[key]) for key in _NUMBERS if key in f), "") if isinstance(f, Mapping) else ""
        for f in frames
    ]
    pairs = numbered([name for name in given if name])
    videos: dict[str, set[int]] = {}
    for video, number in pairs:
        if number is not None:
            videos.setdefault(video, set()).add(number)
    if len(videos) > 1 and len(set.union(*videos.values())) < sum(map(len, videos.values())):
        names = first_of((name for name in given if name), 2)
        raise SourceError(
            f"it holds frames of {len(videos)} videos ({names})",
            where=where,
            hint="save each video on its own",
        )
    found = iter(pairs)
    numbers = [next(found)[1] if name else None for name in given]
    return [n if n is not None and n < _LARGEST_NUMBER else None for n in numbers]


def _rate(content: Any) -> float | None:
    """Return the frames a second that are written beside the frames."""
    rate = content.get("fps") if isinstance(content, Mapping) else None
    return float(rate) if isinstance(rate, (int, float)) and 0 < rate < 1e4 else None


def _number_of(key: object) -> int:
    return int(str(key)) if str(key).isdecimal() else -1
