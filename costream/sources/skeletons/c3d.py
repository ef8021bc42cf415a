"""Reading of C3D files: markers of optical motion capture. Needs the ``c3d`` extra."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np

from costream.core.errors import SourceError
from costream.sources.skeletons.skeleton_format import SkeletonInput, skeleton_format
from costream.sources.skeletons.skeleton_recording import TruncatedRecording
from costream.sources.skeletons.take import Take, frame_times, marker_take

_MOST = 1 << 31  # bytes of all markers
_MAGIC = b"\x02\x50"  # the parameters begin in the second block of 512 bytes


def is_c3d(source: SkeletonInput) -> bool:
    """Return whether this is a C3D file; of one with another first block, by its suffix."""
    return source.head.startswith(_MAGIC) or source.has_suffix(".c3d")


@skeleton_format("c3d", sniff=is_c3d, order=1)
def read_c3d(source: SkeletonInput) -> Take:
    """Return the take of a C3D file.

    A marker whose residual is negative was not seen. Raises SourceError without the package c3d,
    or if the file cannot be read.
    """
    where = source.where
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
            reader = c3d.Reader(source.seekable())
            labels = [str(name) for name in reader.point_labels]
            rate = source.rate_hz or float(reader.point_rate)
            count = reader.last_frame - reader.first_frame + 1
            if not (0 < rate < 1e6) or not 0 < count * len(labels) * 40 < _MOST:
                raise ValueError(f"{count} frames of {len(labels)} markers at {rate:g} Hz")
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
    take = marker_take(labels, np.array(rows, np.float64), frame_times(rate), rate)
    if len(rows) == count:
        return take
    cut_off = TruncatedRecording(f"the file is cut off: {len(rows)} of {count} frames")
    return replace(take, events=[*take.events, cut_off])


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
