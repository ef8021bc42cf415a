"""Reading of C3D files: markers of optical motion capture. Needs the ``c3d`` extra."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from costream.core.errors import SourceError
from costream.sources.skeletons.skeleton_recording import Event, TruncatedRecording
from costream.sources.skeletons.take import Take, frame_times, frames_of, split_subjects

_MOST = 1 << 31  # bytes of all markers


def read_c3d(file: Any, rate_hz: float | None, where: str) -> Take:
    """Return the take of a C3D file; ``file``: open, can be sought.

    A marker whose residual is negative was not seen. Raises SourceError without the package c3d,
    or if the file cannot be read.
    """
    try:
        import c3d
    except ImportError:
        raise SourceError(
            "this is a C3D file, which needs the package c3d",
            where=where,
            hint="pip install 'costream[c3d]'",
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader = c3d.Reader(file)
            names, subjects = split_subjects([str(name) for name in reader.point_labels])
            rate = rate_hz or float(reader.point_rate)
            count = reader.last_frame - reader.first_frame + 1
            if not (0 < rate < 1e6) or not 0 < count * len(names) * 40 < _MOST:
                raise ValueError(f"{count} frames of {len(names)} markers at {rate:g} Hz")
    except Exception as error:  # the package raises nearly anything
        raise SourceError(f"this C3D file is damaged ({_reason(error)})", where=where) from None
    rows, cut = [], ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _, points, _ in reader.read_frames(copy=True):
                rows.append(np.where(points[:, 3:4] < 0, np.nan, points[:, :3]))
    except Exception as error:
        cut = f" ({_reason(error)})"
    if not rows:
        raise SourceError(f"there are no frames in this C3D file{cut}", where=where)
    marks = np.array(rows, np.float64)
    marks = np.concatenate([marks, np.full((len(marks), 1, 3), np.nan)], 1)
    places = np.stack([marks[:, place] for place in subjects.values()], 1)
    events: list[Event] = frames_of(places, frame_times(rate), keys=list(subjects))
    if len(rows) < count:
        events.append(TruncatedRecording(f"the file is cut off: {len(rows)} of {count} frames"))
    return Take(names, 3, events, rate, tilted=True)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
