"""Frames and persons in the JSON of pose estimators."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from costream.sources.skeletons.pose_times import NUMBER_NAMES, TIME_NAMES

_MEDIAPIPE = ("pose_world_landmarks", "world_landmarks", "pose_landmarks", "landmarks")
# Names of the list of frames, or of the results of one picture
_LISTS = ("data", "instance_info", "frames", "results", "predictions", "annotations")


def parse_content(text: str) -> tuple[Any, bool]:
    """Return the content and whether it is complete; of truncated JSON the complete frames."""
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


def find_frames(content: Any) -> tuple[list[Any], tuple[str, ...] | None]:
    """Return the frames of any of the formats, and the names of the joints if it has them."""
    names: tuple[str, ...] | None = None
    if isinstance(content, Mapping):
        meta = content.get("meta_info")
        by_number = meta.get("keypoint_id2name") if isinstance(meta, Mapping) else None
        if isinstance(by_number, Mapping):
            names = tuple(str(by_number[k]) for k in sorted(by_number, key=_number_of))
        listed = next((content[k] for k in _LISTS if isinstance(content.get(k), list)), None)
        if listed is None and next(landmarks_of(content), None) is not None:
            listed = [content]
        if listed is None and content and all(_bodies(v) is not None for v in content.values()):
            # AlphaPose for CMU-Pose or OpenPose: a picture's name, then its bodies
            listed = [{"image_id": k, "instances": _bodies(v)} for k, v in content.items()]
        listed = listed or _by_frame(content)
        content = listed
    if not isinstance(content, list):
        return [], None
    if content and all(
        isinstance(e, Mapping) and "image_id" in e and "keypoints" in e for e in content
    ):
        pictures: dict[Any, list[Any]] = {}
        for person in content:
            pictures.setdefault(str(person["image_id"]), []).append(person)
        content = [{"image_id": k, "instances": v} for k, v in pictures.items()]
    readable = any(people_of(frame) is not None for frame in content if frame is not None)
    return (content if readable else []), names


def _by_frame(persons: Mapping[Any, Any]) -> list[Any] | None:
    """Return the frames of persons who each have frames; None for other content."""
    frames: dict[str, list[Any]] = {}
    for person, of_person in persons.items():
        if not isinstance(of_person, Mapping) or not of_person:
            return None
        for number, pose in of_person.items():
            if not isinstance(pose, Mapping) or "keypoints" not in pose:
                return None
            frames.setdefault(str(number), []).append({**pose, "idx": person})
    ordered = sorted(frames, key=lambda name: (_number_of(name), name))
    return [{"image_id": name, "instances": frames[name]} for name in ordered] or None


def _bodies(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return None
    return value.get("bodies", value.get("people"))


def people_of(frame: Any) -> list[Any] | None:
    """Return the persons of a frame of any format; None if it has no list of persons."""
    if frame is None:  # MediaPipe has found nobody
        return []
    if isinstance(frame, list):
        if frame and isinstance(frame[0], Mapping) and {"x", "y", "z"} <= frame[0].keys():
            return [frame]  # the landmarks of one person
        frame = {"instances": frame}
    if not isinstance(frame, Mapping):
        return None
    landmarks = next(landmarks_of(frame), None)
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


def landmarks_of(frame: Any) -> Iterator[list[Any]]:
    """Yield the lists of MediaPipe's landmarks in a frame, world landmarks first."""
    if isinstance(frame, Mapping):
        named = {
            re.sub(r"([A-Z])", r"_\1", str(key)).lower(): value for key, value in frame.items()
        }
        for name in _MEDIAPIPE:
            if isinstance(named.get(name), list):
                yield named[name]


def joints_of(person: Any) -> tuple[Any, Any, str | None]:
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


def is_single_person(frame: Any) -> bool:
    """Return whether this is a person of Ultralytics that is not in the list of a frame."""
    return (
        isinstance(frame, Mapping)
        and isinstance(frame.get("keypoints"), Mapping)
        and not TIME_NAMES.keys() & set(map(str, frame))
        and not any(key in frame for key in NUMBER_NAMES)
    )


def _seen(scores: Any) -> Any:
    return None if scores is None else np.array(scores, float)


def _number_of(key: object) -> int:
    return int(str(key)) if str(key).isdecimal() else -1
