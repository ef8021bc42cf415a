"""Reading of FreeMoCap's arrays and tables: MediaPipe's joints, triangulated by several cameras."""

from __future__ import annotations

import os

import numpy as np

from costream.core.errors import SourceError
from costream.core.layouts import MEDIAPIPE_33
from costream.sources.file import require_rate
from costream.sources.skeletons.skeleton_arrays import is_array_file, load_array
from costream.sources.skeletons.skeleton_format import SkeletonInput, skeleton_format
from costream.sources.skeletons.skeleton_recording import SkeletonRecording
from costream.sources.skeletons.table import is_table, read_table
from costream.sources.skeletons.take import Take, frame_times, frames_of

# Names of FreeMoCap's outputs, in folders output_data and output_data/raw_data.
_BEGINNINGS = ("mediapipe_body_3d", "mediapipe_body_rigid", "mediapipeskel", "mediapipe_skeleton")


def is_freemocap(path: str | None) -> bool:
    """Return whether this is the name of one of FreeMoCap's outputs in space."""
    return os.path.basename(path or "").lower().startswith(_BEGINNINGS)


def is_freemocap_array(source: SkeletonInput) -> bool:
    """Return whether this is an array of FreeMoCap, and the options name no other layout."""
    no_layout = source.options.layout is None
    return no_layout and is_freemocap(source.path) and is_array_file(source)


@skeleton_format("freemocap", sniff=is_freemocap_array, order=1)
def read_freemocap(source: SkeletonInput) -> Take:
    """Return the take of an array [T, V, 3] in millimetres; the body's 33 joints come first.

    Raises SourceError for other arrays, UsageError without a rate.
    """
    array, end = load_array(source)
    count = len(MEDIAPIPE_33.joints)
    if array.ndim != 3 or array.shape[1] < count or array.shape[2] != 3 or array.dtype.kind != "f":
        raise SourceError(
            f"an array {array.shape} is not FreeMoCap's (frames, {count} joints or more, 3)",
            where=source.where,
        )
    rate = require_rate(source.rate_hz, source.where)
    places = np.array(array[:, None, :count], np.float64)
    events = [*frames_of(places, frame_times(rate)), *end]
    return Take(MEDIAPIPE_33.joints, 3, events, rate, tilted=True)


def is_freemocap_table(source: SkeletonInput) -> bool:
    """Return whether this is a table of FreeMoCap, and the options name no other layout."""
    return source.options.layout is None and is_freemocap(source.path) and is_table(source)


@skeleton_format("freemocap-table", sniff=is_freemocap_table, order=3)
def read_freemocap_table(source: SkeletonInput) -> Take | SkeletonRecording:
    """Return the take of a table with three axes, of any other its recording."""
    recording = read_table(source)
    if recording.axes != 3:
        return recording
    return Take(recording.layout.joints, 3, list(recording.events), recording.rate_hz, tilted=True)
