"""Reading of pickles of pyskl, MMAction2 and MMPose."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError, display_name
from costream.core.layouts import BODY_25, COCO_17, NTU_25, OPENPOSE_18, Layout
from costream.sources.features.feature_arrays import is_pickle
from costream.sources.features.feature_pickles import load_pickle
from costream.sources.file import first_of
from costream.sources.media.input_file import check_file
from costream.sources.skeletons.pose_json import pose_take
from costream.sources.skeletons.skeleton_arrays import array_recording
from costream.sources.skeletons.skeleton_format import SkeletonInput, skeleton_format
from costream.sources.skeletons.skeleton_recording import (
    SkeletonRecording,
    check_joints,
)
from costream.sources.skeletons.table_schema import orientation
from costream.sources.skeletons.take import Take

# By numbers of joints and coordinates, for pickles, which name no layout: pyskl's data sets.
_PYSKL = {
    (17, 2): COCO_17,
    (17, 3): COCO_17,
    (18, 2): OPENPOSE_18,
    (25, 2): BODY_25,
    (25, 3): NTU_25,
}
_LEAST_SCORE = 0.01  # pyskl treats joints with a lower score as missing


def pyskl_recordings(path: str) -> dict[str, Mapping[str, Any]]:
    """Return the recordings of a pickle of pyskl, MMAction2 or MMPose by name, if it is one.

    Cached together with the pickle. Raises SourceError like ``load_pickle``.
    """
    check_file(path)
    status = os.stat(path)
    return _recordings(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1)
def _recordings(path: str, _mtime_ns: int, _size: int) -> dict[str, Mapping[str, Any]]:
    content = load_pickle(path)
    if isinstance(content, Mapping) and isinstance(content.get("annotations"), list):
        content = content["annotations"]
    if isinstance(content, Mapping) and "keypoint" in content:
        content = [content]
    if not isinstance(content, list):
        return {}
    if content and all(isinstance(frame, Mapping) and "keypoints" in frame for frame in content):
        return {"poses": {"poses": content}}  # MMPose: a list of frames
    return {
        str(entry.get("frame_dir", k)): entry
        for k, entry in enumerate(content)
        if isinstance(entry, Mapping) and isinstance(entry.get("keypoint"), np.ndarray)
    }


def is_pyskl(source: SkeletonInput) -> bool:
    """Return whether this is a pickle with recordings of skeletons."""
    path = source.path
    return path is not None and is_pickle(source.head, path) and bool(pyskl_recordings(path))


def _names(source: SkeletonInput) -> list[str]:
    path = source.path or ""
    return list(pyskl_recordings(path)) if is_pickle(source.head, path) else []


@skeleton_format("pyskl", sniff=is_pyskl, order=1, names=_names)
def read_pyskl(source: SkeletonInput) -> Take | SkeletonRecording:
    """Open one recording of a pickle; raise SourceError for an unknown name."""
    entry = _entry(source)
    if "poses" in entry:
        return pose_take(entry["poses"], None, source.rate_hz, source.where)
    return read_annotation(entry, source.layout, source.rate_hz, source.where)


def _entry(source: SkeletonInput) -> Any:
    found, name = pyskl_recordings(source.path or ""), source.name
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    with contextlib.suppress(KeyError):
        return found[name or ""]
    raise SourceError(
        f"there is no recording {name!r} in it"
        if name
        else "it contains several recordings: choose one with FILE#NAME",
        where=display_name(source.path or ""),
        hint=f"it has {first_of(found, 3)}" if found else None,
    )


def read_annotation(
    entry: Mapping[str, Any], layout: Layout | None, rate_hz: float | None, where: str
) -> SkeletonRecording:
    """Open one recording of a pyskl pickle: keypoint [M, T, V, C], keypoint_score [M, T, V].

    Two coordinates are pixels; with ``img_shape`` they become fractions of the image relative to
    its centre, y up, as in Kinetics-skeleton. Raises SourceError if the shapes do not match.
    """
    places = entry["keypoint"]
    if places.ndim != 4 or places.shape[3] not in (2, 3) or places.dtype.kind not in "iuf":
        raise SourceError(f"keypoint has the shape {places.shape}, not (M, T, V, C)", where=where)
    count = places.shape[2]
    known_layout = layout or _PYSKL.get((count, places.shape[3]))
    if known_layout is None:
        raise SourceError(f"{count} joints are unknown", where=where, hint="give --layout NAME")
    check_joints(count, known_layout, where)
    scores = entry.get("keypoint_score")
    if scores is not None:
        if getattr(scores, "shape", None) != places.shape[:3]:
            raise SourceError("keypoint_score and keypoint differ in shape", where=where)
        scores = np.where(scores > _LEAST_SCORE, scores, 0)
    signs = orientation(known_layout, places.shape[3])
    size = _size(entry.get("img_shape")) if places.shape[3] == 2 else None
    if size is None:
        return array_recording(places, scores, signs, known_layout, rate_hz, where)
    return array_recording(places, scores, signs / size, known_layout, rate_hz, where, size / 2)


def _size(shape: object) -> npt.NDArray[np.float64] | None:
    """Return width and height from ``img_shape`` (height, width); None if it is invalid."""
    try:
        size = np.array(shape, np.float64)
    except (TypeError, ValueError):
        return None
    usable = size.shape == (2,) and np.isfinite(size).all() and (size > 0).all()
    return size[::-1] if usable else None
