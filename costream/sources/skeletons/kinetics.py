"""Reading of Kinetics-skeleton JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from costream.core.layouts import OPENPOSE_18
from costream.sources.skeletons.person import Person, make_person
from costream.sources.skeletons.skeleton_recording import (
    BAD_FRAME,
    Event,
    PersonFrame,
    SkeletonRecording,
    SkippedData,
    TruncatedRecording,
)

KINETICS_RATE_HZ = 30.0
_CONSIDERED = 5  # first persons of a frame that are ranked by score


def read_kinetics(
    frames: Sequence[Any], complete: bool, rate_hz: float | None, slots: int
) -> SkeletonRecording:
    """Open Kinetics-skeleton JSON: x, y as fractions of the image, centred, y up; 18 joints.

    Frames are numbered from 1. ``complete``: the file is not cut off. If a frame has
    more persons than ``slots``, slot k of every frame has the person with the k-th highest score
    among the first five, as in ST-GCN and the data sets made with its reader.
    """
    rate = rate_hz or KINETICS_RATE_HZ
    numbers = [n for frame in frames if isinstance(n := _get(frame, "frame_index"), int)]
    duration_s = max(numbers) / rate if numbers else None
    people = [_get(frame, "skeleton") for frame in frames]
    ranked = any(isinstance(persons, list) and len(persons) > slots for persons in people)
    events = _kinetics(frames, rate, complete, slots if ranked else None)
    return SkeletonRecording(OPENPOSE_18, 2, rate, duration_s, events)


def _kinetics(
    frames: Sequence[Any], rate_hz: float, complete: bool, best: int | None
) -> Iterator[Event]:
    """Yield the frames; ``best``: maximum number of persons, ordered by their scores."""
    for frame in frames:
        try:
            number = frame["frame_index"]
            people = [_kinetics_body(person) for person in frame["skeleton"]]
            if best is not None:
                order = sorted(people[:_CONSIDERED], key=lambda body: -float(body.scores.sum()))
                people = [replace(body, key=rank) for rank, body in enumerate(order[:best])]
            moment = PersonFrame((int(number) - 1) / rate_hz, tuple(people))
        except (KeyError, TypeError, ValueError):
            yield SkippedData(BAD_FRAME)
        else:
            yield moment
    if not complete:
        yield TruncatedRecording("the file is damaged or cut off after this frame")


def _kinetics_body(person: Any) -> Person:
    places = np.array(person["pose"], float).reshape(len(OPENPOSE_18.joints), 2)
    scores = np.array(person["score"], float)
    if scores.shape != places.shape[:1]:
        raise ValueError("the numbers of scores and joints differ")
    return make_person(places, scores, shift=0.5, signs=(1, -1))


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
