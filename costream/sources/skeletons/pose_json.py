"""Reading of JSON of pose estimators: MMPose, AlphaPose, MediaPipe, Kinetics-skeleton."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from costream.errors import SourceError
from costream.layouts import BODY_25, COCO_17, MEDIAPIPE_33, OPENPOSE_18, Layout
from costream.sources.file import first_of, require_rate
from costream.sources.skeletons.headings import Columns
from costream.sources.skeletons.openpose import read_kinetics
from costream.sources.skeletons.persons import (
    Event,
    Person,
    PersonFrame,
    SkeletonRecording,
    SkippedData,
    TruncatedRecording,
    make_person,
)
from costream.sources.skeletons.take import Take, read_take

_BAD_FRAME = "malformed frame(s), left out"
_FEET = ("left toes", "left small toe", "left heel", "right toes", "right small toe", "right heel")
# Of Halpe (AlphaPose): the feet are the other way round, joint by joint.
_HALPE = ("head top", "neck", "hips", *(_FEET[k] for k in (0, 3, 1, 4, 2, 5)))
# Names of the joints by their number; further ones, of hands and face, are not used.
_NAMES = {
    17: COCO_17.joints,
    18: OPENPOSE_18.joints,
    25: BODY_25.joints,
    26: (*COCO_17.joints, *_HALPE),
    133: (*COCO_17.joints, *_FEET),
    136: (*COCO_17.joints, *_HALPE),
}
_MEDIAPIPE = ("pose_world_landmarks", "world_landmarks", "pose_landmarks", "landmarks")
# Names of the list of frames, or of the results of one picture
_LISTS = ("data", "instance_info", "frames", "results", "predictions", "annotations")
_TIMES = {"timestamp_ms": 1e-3, "timestampms": 1e-3, "time_ms": 1e-3, "time": 1.0, "time_s": 1.0}

_Frame = tuple[float, list[Person]]  # number or time, joints in the file's order


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
            what, hint = "this is one frame of OpenPose keypoints", "give the folder of all frames"
        else:
            seen = first_of(map(str, content), 6) if isinstance(content, Mapping) else "a list"
            what = f"this JSON holds no skeletons ({seen or 'nothing'})"
            hint = "read are MMPose, AlphaPose, MediaPipe and Kinetics-skeleton"
        raise SourceError(what, where=where, hint=hint)
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
    ids = [_number(frame) for frame in frames]
    first = min((n for n in ids if n is not None), default=0)
    events: list[Event] = []
    shape: tuple[int, int] | None = None
    for k, frame in enumerate(frames):
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
            time_s = _time(frame)
            if time_s is None:
                number = ids[k]
                # Frames are counted from 0 or from 1.
                index = k if number is None else number - min(first, 1)
                time_s = index / require_rate(rate_hz, where)
            events.append(PersonFrame(time_s, bodies))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            events.append(SkippedData(_BAD_FRAME))
    if shape is None:
        raise SourceError("there are no persons in it", where=where)
    if not whole:
        events.append(TruncatedRecording("the file is damaged or cut off after this frame"))
    count, axes = shape
    if names is not None and len(names) != count:
        names = None
    is_mediapipe = any(
        next(_landmarks(frame), None) is not None for frame in frames
    ) or count == len(MEDIAPIPE_33.joints)
    if names is None:
        names = MEDIAPIPE_33.joints if is_mediapipe else _NAMES.get(count)
    if names is None:
        names = tuple(map(str, range(count)))
    names = tuple(names) + tuple(f"further {k}" for k in range(count - len(names)))
    rate = rate_hz if rate_hz else None
    return Take(names, axes, events, rate, tilted=axes == 3 and not is_mediapipe)


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


def _time(frame: Any) -> float | None:
    if isinstance(frame, Mapping):
        for key, value in frame.items():
            unit = _TIMES.get(str(key).lower())
            if unit is None and str(key).lower() == "timestamp":
                unit = 1e-3  # as MediaPipe's own, in milliseconds
            if unit is not None and isinstance(value, (int, float)):
                return float(value) * unit
    return None


def _number(frame: Any) -> int | None:
    """Return the number of a frame: frame_id, or the one in the name of a picture."""
    if not isinstance(frame, Mapping):
        return None
    for key in ("frame_id", "frame_index", "frame", "image_id"):
        if key in frame:
            digits = re.findall(r"\d+", str(frame[key]))
            return int(digits[-1]) if digits and len(digits[-1]) < 15 else None
    return None


def _rate(content: Any) -> float | None:
    """Return the frames a second that are written beside the frames."""
    rate = content.get("fps") if isinstance(content, Mapping) else None
    return float(rate) if isinstance(rate, (int, float)) and 0 < rate < 1e4 else None


def _number_of(key: object) -> int:
    return int(str(key)) if str(key).isdecimal() else -1
