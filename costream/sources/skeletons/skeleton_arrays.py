"""Reading of skeletons from arrays: pyskl pickles, .npy and .npz."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError, UsageError
from costream.core.layouts import Layout
from costream.sources.features.feature_arrays import NUMPY_MAGIC, ZIP_MAGIC, clip_count, load_arrays
from costream.sources.file import read_all, require_rate
from costream.sources.skeletons.axes_option import AxesOption
from costream.sources.skeletons.columns import AXES, Columns
from costream.sources.skeletons.person import make_person
from costream.sources.skeletons.skeleton_format import SkeletonInput, skeleton_format
from costream.sources.skeletons.skeleton_recording import (
    Event,
    PersonFrame,
    SkeletonRecording,
    TruncatedRecording,
)
from costream.sources.skeletons.table_schema import IMAGE_LAYOUTS, orientation

_SHAPES = "(N, C, T, V, M), (C, T, V, M), (M, T, V, C), (T, M, V, C), (T, V, C) or (T, V * C)"


def is_array_file(source: SkeletonInput) -> bool:
    """Return whether this is a .npy or .npz file."""
    return source.holds_arrays and source.head.startswith((NUMPY_MAGIC, ZIP_MAGIC))


def is_array(source: SkeletonInput) -> bool:
    """Return whether this is an array and the options name its joint layout."""
    return is_array_file(source) and source.options.layout is not None


def load_array(source: SkeletonInput) -> tuple[npt.NDArray[Any], list[Event]]:
    """Return the array of a .npy file, or the only one of an archive.

    Also returns the event at its end if the file is cut off, else none.
    """
    data = read_all(source.file) if source.path is None else None
    content, complete = load_arrays(source.path or source.where, data)
    if isinstance(content, dict):
        if len(content) != 1:
            names = ", ".join(list(content)[:4]) or "nothing"
            raise SourceError(f"it contains {names}, not one array", where=source.where)
        content = next(iter(content.values()))
    end = [] if complete else [TruncatedRecording("the file is cut off after this frame")]
    return content, [*end]


def _names(source: SkeletonInput) -> list[str]:
    if source.path is None or not source.head.startswith(NUMPY_MAGIC):
        return []
    return list(map(str, range(clip_count(source.path))))


@skeleton_format("array", sniff=is_array, order=1, names=_names)
def read_array(source: SkeletonInput) -> SkeletonRecording:
    """Open an array of one of the common shapes; the name of the recording is its index along N.

    The order of coordinates is x, y, z or x, y, or x, y, score for image layouts, unless
    --columns overrides it. Raises SourceError if the shape does not match the layout.
    """
    array, end = load_array(source)
    layout, where = source.layout, source.where
    if layout is None:
        raise UsageError("an array needs a joint layout", where=where, hint="give --layout NAME")
    if array.dtype.kind not in "iuf":
        raise SourceError("not an array of numbers", where=where)
    name = source.name
    clip = int(name) if name is not None and name.isdecimal() else 0
    people = _people(array, len(layout.joints), clip)
    if people is None:
        raise SourceError(
            f"an array of shape {array.shape} is not {_SHAPES} with the {len(layout.joints)} "
            f"joints of {layout.name}",
            where=where,
        )
    roles, signs = _roles(people.shape[3], layout, source.columns, where)
    axes = [roles.index(axis) for axis in AXES if axis in roles]
    score = roles.index("score") if "score" in roles else None
    scores = None if score is None else people[..., score]
    signs = signs * orientation(layout, len(axes))
    recording = array_recording(people[..., axes], scores, signs, layout, source.rate_hz, where)
    events = itertools.chain(recording.events, end)
    return replace(
        recording, events=events, option=AxesOption(more=() if score is None else ("score",))
    )


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
    # If both ends may be coordinates, the larger one is: persons are few.
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


def array_recording(
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
