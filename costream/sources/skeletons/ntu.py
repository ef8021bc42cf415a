"""Reading of NTU RGB+D ``.skeleton`` files (Kinect v2)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from costream.core.errors import SourceError
from costream.core.layouts import NTU_25
from costream.sources.skeletons.person import Person, make_person
from costream.sources.skeletons.skeleton_format import SkeletonInput, skeleton_format
from costream.sources.skeletons.skeleton_recording import (
    Event,
    PersonFrame,
    SkeletonRecording,
    TruncatedRecording,
)

RATE_HZ = 30.0  # of the sensor
# Kinect's tracking states of a joint (not tracked, inferred, tracked) as scores.
SCORES = (0.0, 0.5, 1.0)


def is_ntu(source: SkeletonInput) -> bool:
    """Return whether the first line is a number of frames."""
    return source.is_text and source.first_line.isdecimal()


@skeleton_format("ntu", sniff=is_ntu, order=7)
def read_ntu(source: SkeletonInput) -> SkeletonRecording:
    """Open a ``.skeleton`` file: frames of bodies with an id, 25 joints each, metres, y up.

    Raises SourceError if it does not begin like one.
    """
    text, where = iter(source.lines()), source.where
    rate = source.rate_hz or RATE_HZ
    try:
        frames = int(next(text))
        duration_s = frames / rate
    except (ValueError, OverflowError, StopIteration):
        raise SourceError("this is not a .skeleton file", where=where) from None
    if frames < 1:
        raise SourceError("there are no frames in it", where=where)
    return SkeletonRecording(NTU_25, 3, rate, duration_s, _events(text, frames, rate))


def _events(text: Iterator[str], frames: int, rate_hz: float) -> Iterator[Event]:
    for i in range(frames):
        try:
            bodies = [_body(text) for _ in range(int(next(text)))]
        except StopIteration:
            yield TruncatedRecording(f"the file is cut off: it has {i} of {frames} frames")
            return
        except (ValueError, IndexError) as error:
            # Lines do not identify their frame: the rest is unusable.
            yield TruncatedRecording(f"the file is damaged in frame {i} of {frames} ({error})")
            return
        yield PersonFrame(i / rate_hz, tuple(bodies))


def _body(text: Iterator[str]) -> Person:
    """Read one body; raises StopIteration at the end of the text, ValueError if invalid."""
    key = next(text).split()[0]
    count = int(next(text))
    if count != len(NTU_25.joints):
        raise ValueError(f"a body with {count} joints")
    rows = [next(text).split() for _ in range(count)]
    joints = np.array([[float(cell) for cell in row[:3]] for row in rows])
    scores = [SCORES[int(row[11])] for row in rows]
    return make_person(joints, scores, key)
