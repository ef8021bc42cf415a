"""Reading of BVH files (Biovision hierarchy): forward kinematics of bones and angles."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from costream.core.errors import SourceError
from costream.sources.skeletons.skeleton_format import SkeletonInput, skeleton_format
from costream.sources.skeletons.skeleton_recording import (
    BAD_FRAME,
    Event,
    SkippedData,
    TruncatedRecording,
)
from costream.sources.skeletons.take import Numbers, Take, frame_times, frames_of, split_subjects
from costream.sources.skeletons.text_lines import decimal, parse_lines

_MOST_BONES = 10_000
_CHANNELS = tuple(f"{axis}{kind}" for kind in ("position", "rotation") for axis in "XYZ")


@dataclass
class _Bone:
    name: str
    parent: int  # index of the bone above, -1 for the root
    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)
    channels: tuple[str, ...] = ()


def is_bvh(source: SkeletonInput) -> bool:
    """Return whether this is a BVH file; of one whose names are not UTF-8, by its suffix."""
    if not source.is_text:
        return source.has_suffix(".bvh")
    return source.first_line.upper() == "HIERARCHY"


@skeleton_format("bvh", sniff=is_bvh, order=4)
def read_bvh(source: SkeletonInput) -> Take:
    """Return the take of a BVH file: the place of the joint at which each bone begins.

    A bone with position channels is placed by them, relative to its parent, instead of its
    offset. Raises SourceError if the hierarchy cannot be read.
    """
    text, where = iter(source.lines()), source.where
    try:
        bones = _hierarchy(text)
        count = int(next(text).split(":")[1])
        seconds = decimal(next(text).split(":")[1])
        if not (0 < seconds < 1e6 and count >= 0):
            raise ValueError("the frame time is not a time")
    except StopIteration:
        raise SourceError("this BVH file ends before its motion", where=where) from None
    except (ValueError, IndexError) as error:
        raise SourceError(f"this BVH file is damaged ({error})", where=where) from None
    rate = source.rate_hz or 1 / seconds
    width = sum(len(bone.channels) for bone in bones)
    rows, bad = parse_lines(text, lambda line: _channels(line, width))
    names, subjects = split_subjects([bone.name for bone in bones])
    if not rows:
        raise SourceError("this BVH file has no frames", where=where)
    places = _places(bones, np.array(rows))[:, None, next(iter(subjects.values()))]
    events: list[Event] = frames_of(places, frame_times(rate))
    events[:0] = [SkippedData(BAD_FRAME)] * bad
    if len(rows) + bad < count:
        events.append(TruncatedRecording(f"the file is cut off: it has {len(rows)} of {count}"))
    return Take(names, 3, events, rate, tilted=True)


def _hierarchy(text: Iterator[str]) -> list[_Bone]:
    """Read up to the line MOTION. Raises ValueError, IndexError or StopIteration."""
    bones: list[_Bone] = []
    above: list[int] = []
    inside = -1  # index of the bone being described, -1: an end site
    for words in _words(text):
        key = words[0].upper()
        if key == "MOTION":
            break
        if key in ("ROOT", "JOINT"):
            bones.append(_Bone(" ".join(words[1:]), above[-1] if above else -1))
            inside = len(bones) - 1
        elif key == "END":
            inside = -1
        elif key == "{":
            above.append(inside)
        elif key == "}":
            above.pop()
        elif inside >= 0:
            _describe(bones[inside], key, words)
        if len(bones) > _MOST_BONES:
            raise ValueError(f"more than {_MOST_BONES} bones")
    else:
        raise StopIteration
    if not bones:
        raise ValueError("there are no bones")
    return bones


def _words(text: Iterator[str]) -> Iterator[list[str]]:
    """Yield the words of the lines; the brace of a bone may stand on the line of its name."""
    lines = (re.sub(r"([{}])", r"\n\1\n", line).split("\n") for line in text)
    return filter(None, map(str.split, itertools.chain.from_iterable(lines)))


def _describe(bone: _Bone, key: str, words: list[str]) -> None:
    """Set the offset or the channels of a bone from a line; others are ignored."""
    if key == "OFFSET":
        x, y, z = map(decimal, words[1:4])
        bone.offset = (x, y, z)
    elif key == "CHANNELS":
        channels = tuple(words[2:])
        if len(channels) != int(words[1]) or not set(channels) <= set(_CHANNELS):
            raise ValueError(f"channels {' '.join(words[1:8])}")
        bone.channels = channels


def _channels(line: str, width: int) -> list[float]:
    """Return the numbers of a row; ValueError unless they are ``width`` finite ones."""
    row = [decimal(cell) for cell in line.split()]
    if len(row) != width or not np.isfinite(row).all():
        raise ValueError("not the numbers of a frame")
    return row


def _places(bones: list[_Bone], rows: Numbers) -> Numbers:
    """Return the place of every bone, [T, bones, 3]."""
    places: list[Numbers] = []
    turns: list[Numbers] = []
    starts = itertools.accumulate((len(bone.channels) for bone in bones), initial=0)
    for bone, start in zip(bones, starts, strict=False):
        values = rows[:, start : start + len(bone.channels)]
        offset = np.tile(np.array(bone.offset), (len(rows), 1))
        turn = np.tile(np.eye(3), (len(rows), 1, 1))
        for k, channel in enumerate(bone.channels):
            axis = "XYZ".index(channel[0])
            if channel.endswith("position"):
                offset[:, axis] = values[:, k]
            else:
                turn = turn @ rotations(axis, np.radians(values[:, k]))
        if bone.parent >= 0:
            offset = places[bone.parent] + np.einsum("tij,tj->ti", turns[bone.parent], offset)
            turn = turns[bone.parent] @ turn
        places.append(offset)
        turns.append(turn)
    return np.stack(places, 1)


def rotations(axis: int, angles: Numbers) -> Numbers:
    """Return the rotations about an axis (0: x) by these angles [T] in radians, [T, 3, 3]."""
    out = np.tile(np.eye(3), (len(angles), 1, 1))
    one, two = (axis + 1) % 3, (axis + 2) % 3
    out[:, one, one] = out[:, two, two] = np.cos(angles)
    out[:, two, one] = np.sin(angles)
    out[:, one, two] = -out[:, two, one]
    return out
