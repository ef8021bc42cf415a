"""Reading of FreeMoCap's arrays and tables: MediaPipe's joints, triangulated by several cameras."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError
from costream.core.layouts import MEDIAPIPE_33
from costream.sources.file import require_rate
from costream.sources.skeletons.skeleton_recording import SkeletonRecording
from costream.sources.skeletons.take import Take, frame_times, frames_of

# Names of FreeMoCap's outputs, in folders output_data and output_data/raw_data.
_BEGINNINGS = ("mediapipe_body_3d", "mediapipe_body_rigid", "mediapipeskel", "mediapipe_skeleton")


def is_freemocap(path: str | None) -> bool:
    """Return whether this is the name of one of FreeMoCap's outputs in space."""
    return os.path.basename(path or "").lower().startswith(_BEGINNINGS)


def read_freemocap(array: npt.NDArray[Any], rate_hz: float | None, where: str) -> Take:
    """Return the take of an array [T, V, 3] in millimetres; the body's 33 joints come first.

    Raises SourceError for other arrays, UsageError without a rate.
    """
    count = len(MEDIAPIPE_33.joints)
    if array.ndim != 3 or array.shape[1] < count or array.shape[2] != 3 or array.dtype.kind != "f":
        raise SourceError(
            f"an array {array.shape} is not FreeMoCap's (frames, {count} joints or more, 3)",
            where=where,
        )
    rate = require_rate(rate_hz, where)
    places = np.array(array[:, None, :count], np.float64)
    return Take(MEDIAPIPE_33.joints, 3, frames_of(places, frame_times(rate)), rate, tilted=True)


def table_take(recording: SkeletonRecording) -> Take:
    """Return the take of one of FreeMoCap's tables, which has been opened as a table of joints."""
    return Take(recording.layout.joints, 3, list(recording.events), recording.rate_hz, tilted=True)
