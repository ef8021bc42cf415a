"""Reading of skeletons from arrays: pyskl pickles, .npy and .npz."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError, UsageError
from costream.core.layouts import BODY_25, COCO_17, NTU_25, OPENPOSE_18, Layout
from costream.sources.features.feature_pickles import load_pickle
from costream.sources.file import require_rate
from costream.sources.media.input_file import check_file
from costream.sources.skeletons.axes_option import AxesOption
from costream.sources.skeletons.columns import AXES, Columns
from costream.sources.skeletons.person import make_person
from costream.sources.skeletons.skeleton_recording import (
    Event,
    PersonFrame,
    SkeletonRecording,
    check_joints,
)
from costream.sources.skeletons.table_schema import IMAGE_LAYOUTS, orientation

# By numbers of joints and coordinates, for pickles, which name no layout: pyskl's data sets.
_PYSKL = {
    (17, 2): COCO_17,
    (17, 3): COCO_17,
    (18, 2): OPENPOSE_18,
    (25, 2): BODY_25,
    (25, 3): NTU_25,
}
_SURE = 0.01  # pyskl treats joints with a lower score as missing
_SHAPES = "(N, C, T, V, M), (C, T, V, M), (M, T, V, C), (T, M, V, C), (T, V, C) or (T, V * C)"


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
    if content and all(isinstance(each, Mapping) and "keypoints" in each for each in content):
        return {"poses": {"poses": content}}  # MMPose, a frame each
    return {
        str(entry.get("frame_dir", k)): entry
        for k, entry in enumerate(content)
        if isinstance(entry, Mapping) and isinstance(entry.get("keypoint"), np.ndarray)
    }


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
    known = layout or _PYSKL.get((count, places.shape[3]))
    if known is None:
        raise SourceError(f"{count} joints are unknown", where=where, hint="give --layout NAME")
    check_joints(count, known, where)
    scores = entry.get("keypoint_score")
    if scores is not None:
        if getattr(scores, "shape", None) != places.shape[:3]:
            raise SourceError("keypoint_score and keypoint differ in shape", where=where)
        scores = np.where(scores > _SURE, scores, 0)
    signs = orientation(known, places.shape[3])
    size = _size(entry.get("img_shape")) if places.shape[3] == 2 else None
    if size is None:
        return _recording(places, scores, signs, known, rate_hz, where)
    return _recording(places, scores, signs / size, known, rate_hz, where, size / 2)


def _size(shape: object) -> npt.NDArray[np.float64] | None:
    """Return width and height from ``img_shape`` (height, width); None if it is invalid."""
    try:
        size = np.array(shape, np.float64)
    except (TypeError, ValueError):
        return None
    usable = size.shape == (2,) and np.isfinite(size).all() and (size > 0).all()
    return size[::-1] if usable else None


def read_array(
    array: npt.NDArray[Any],
    layout: Layout | None,
    columns: Columns | None,
    rate_hz: float | None,
    where: str,
    clip: int = 0,
) -> SkeletonRecording:
    """Open an array of one of the common shapes; ``clip``: index along N.

    The order of coordinates is x, y, z or x, y, or x, y, score for image layouts, unless
    --columns overrides it. Raises SourceError if the shape does not match the layout.
    """
    if layout is None:
        raise UsageError("an array needs a joint layout", where=where, hint="give --layout NAME")
    if array.dtype.kind not in "iuf":
        raise SourceError("not an array of numbers", where=where)
    people = _people(array, len(layout.joints), clip)
    if people is None:
        raise SourceError(
            f"an array of shape {array.shape} is not {_SHAPES} with the {len(layout.joints)} "
            f"joints of {layout.name}",
            where=where,
        )
    roles, signs = _roles(people.shape[3], layout, columns, where)
    axes = [roles.index(axis) for axis in AXES if axis in roles]
    score = roles.index("score") if "score" in roles else None
    scores = None if score is None else people[..., score]
    signs = signs * orientation(layout, len(axes))
    recording = _recording(people[..., axes], scores, signs, layout, rate_hz, where)
    return replace(recording, option=AxesOption(more=() if score is None else ("score",)))


def _people(array: npt.NDArray[Any], joints: int, clip: int) -> npt.NDArray[Any] | None:
    """Return the array as [M, T, V, C]; None if it has none of the shapes."""
    coordinates = (2, 3, 4)
    if array.ndim == 5:
        if clip >= len(array):
            return None
        array = array[clip].transpose(3, 1, 2, 0)
    if array.ndim == 2 and array.shape[1] % joints == 0:
        array = array.reshape(len(array), joints, -1)
    if array.ndim == 3:
        array = array[None]
    if array.ndim != 4 or array.shape[2] != joints or 0 in array.shape:
        return None
    first, last = array.shape[0], array.shape[3]
    # If both ends may be coordinates, the larger one is: there are few persons.
    if first in coordinates and (last not in coordinates or last < first):
        array = array.transpose(3, 1, 2, 0)
    if array.shape[3] not in coordinates:
        return None
    # (T, M, V, C): there are more frames than persons.
    return array if array.shape[0] <= array.shape[1] else array.swapaxes(0, 1)


def _roles(
    count: int, layout: Layout, columns: Columns | None, where: str
) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Return the role of each of ``count`` numbers per joint, and the coordinates' signs."""
    if columns is not None:
        used = [column for column in columns.all if column.role in (*AXES, "score")]
        if not columns.by_order or len(used) != len(columns.all) or len(used) != count:
            raise SourceError(
                f"a joint has {count} numbers",
                where=where,
                hint="list them in order, without headings: --columns x,y,score",
            )
        signs = [column.sign for axis in AXES for column in used if column.role == axis]
        return [column.role for column in used], np.array(signs, float)
    if count == 3 and layout in IMAGE_LAYOUTS:
        return ["x", "y", "score"], np.ones(2)
    return [*AXES, "score"][:count], np.ones(min(count, 3))


def _recording(
    places: npt.NDArray[Any],
    scores: npt.NDArray[Any] | None,
    signs: npt.NDArray[np.float64],
    layout: Layout,
    rate_hz: float | None,
    where: str,
    shift: npt.ArrayLike = 0.0,
) -> SkeletonRecording:
    """Return the recording of [M, T, V, C]; the index along M identifies a person."""
    rate_hz = require_rate(rate_hz, where)

    def events() -> Iterator[Event]:
        for t in range(places.shape[1]):
            bodies = (
                make_person(
                    places[m, t],
                    None if scores is None else scores[m, t],
                    m,
                    shift=shift,
                    signs=signs,
                )
                for m in range(places.shape[0])
            )
            yield PersonFrame(t / rate_hz, tuple(bodies))

    return SkeletonRecording(layout, places.shape[3], rate_hz, places.shape[1] / rate_hz, events())
