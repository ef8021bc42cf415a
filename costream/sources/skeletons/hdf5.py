"""Reading of HDF5 files: analyses of SLEAP, and DeepLabCut's tables. Needs the ``h5`` extra."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from costream.core import pickles
from costream.core.errors import SourceError
from costream.sources.file import first_of, require_rate
from costream.sources.skeletons.deeplabcut import columns_take
from costream.sources.skeletons.skeleton_format import SkeletonInput, skeleton_format
from costream.sources.skeletons.take import Numbers, Take, frame_times, frames_of

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_MOST = 1 << 31  # bytes of an array
_DEEPLABCUT = 3, 4  # levels of a column: scorer, individual if there are several, part, coordinate


@skeleton_format("hdf5", sniff=lambda source: source.head.startswith(HDF5_MAGIC), order=1)
def read_hdf5(source: SkeletonInput) -> Take:
    """Return the take of an HDF5 file.

    Raises SourceError without h5py, or for a file of another kind, quoting its content.
    """
    where = source.where
    try:
        import h5py
    except ImportError:
        raise SourceError(
            "this is an HDF5 file, which needs h5py", where=where, hint="pip install 'costream[h5]'"
        ) from None
    try:
        with h5py.File(source.seekable(), "r") as content:
            if "tracks" in content and "node_names" in content:
                return _sleap(content, require_rate(source.rate_hz, where), where)
            tables = list(_tables(content))
            if tables:
                return _deeplabcut(tables[0], require_rate(source.rate_hz, where), where)
            raise SourceError(
                f"this HDF5 file ({first_of(content)}) is neither an analysis of SLEAP, which has "
                "tracks and node_names, nor a table of DeepLabCut",
                where=where,
                hint="in SLEAP: Export Analysis HDF5",
            )
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError) as error:
        raise SourceError(f"this HDF5 file is damaged ({error})", where=where) from None


def _sleap(content: Any, rate_hz: float, where: str) -> Take:
    """Read SLEAP's ``tracks`` (tracks, axes, nodes, frames) and ``point_scores``, without axes.

    Other exports have the axes in reverse order (frames, nodes, axes, tracks).
    """
    nodes = tuple(_text(name) for name in np.ravel(content["node_names"][()]))
    tracks = _numbers(content["tracks"])
    if tracks.ndim != 4 or len(nodes) not in tracks.shape[1:3]:
        raise SourceError(
            f"tracks has the shape {tracks.shape}, which does not fit {len(nodes)} nodes",
            where=where,
        )
    if tracks.shape[2] != len(nodes) or tracks.shape[1] not in (2, 3):
        tracks = tracks.T
    places = tracks.transpose(3, 0, 2, 1)
    scores = None
    if "point_scores" in content:
        scored = _numbers(content["point_scores"])
        scored = scored if scored.shape == (*tracks.shape[:1], *tracks.shape[2:]) else scored.T
        if scored.shape == (*tracks.shape[:1], *tracks.shape[2:]):
            scored = scored.transpose(2, 0, 1)
            # Persons who were labelled by hand have no scores.
            scores = np.where((scored > 0).any(2, keepdims=True), scored, 1.0)
    if places.shape[3] not in (2, 3) or not places.shape[0]:
        raise SourceError(f"tracks has the shape {tracks.shape}", where=where)
    names = (
        [_text(n) for n in np.ravel(content["track_names"][()])] if "track_names" in content else []
    )
    keys = names if len(set(names)) == places.shape[1] else None
    events = frames_of(places, frame_times(rate_hz), scores, keys)
    return Take(nodes, places.shape[3], events, rate_hz, tilted=True)


def _tables(group: Any) -> Iterator[Any]:
    """Yield the groups that pandas wrote as a table: a dataset ``table`` and the columns' names."""
    for member in group.values():
        if hasattr(member, "values") and "table" in member and "non_index_axes" in member.attrs:
            yield member


def _deeplabcut(group: Any, rate_hz: float, where: str) -> Take:
    """Read a table of pandas: its rows contain the frame and one block of values.

    The names of the columns are a pickle, which is read without executing anything.
    """
    try:
        axes = pickles.load(io.BytesIO(_bytes(group.attrs["non_index_axes"])))
        columns = [tuple(map(str, column)) for column in axes[0][1]]
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise SourceError(
            f"the names of its columns cannot be read ({error})", where=where
        ) from None
    table = group["table"]
    if table.size * table.dtype.itemsize > _MOST:
        raise ValueError(f"a table of {table.size} rows")
    rows = table[()]
    blocks = [name for name in rows.dtype.names if name.startswith("values_block")]
    if len(blocks) != 1 or {len(column) for column in columns} not in ({3}, {4}):
        raise SourceError(
            f"its columns ({first_of(map('/'.join, columns), 3)}) are not DeepLabCut's: scorer, "
            "bodypart, coordinate",
            where=where,
        )
    values = np.asarray(rows[blocks[0]], np.float64)
    index = rows["index"]
    frames = index if index.dtype.kind in "iu" else np.arange(len(values))
    return columns_take(columns, values, (frames / rate_hz).tolist(), rate_hz, 0, where)


def _numbers(dataset: Any) -> Numbers:
    if dataset.dtype.kind not in "iuf" or dataset.size * 8 > _MOST:
        raise ValueError(f"an array {dataset.shape} of {dataset.dtype}")
    return np.asarray(dataset[()], np.float64)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _bytes(value: Any) -> bytes:
    return bytes(value) if isinstance(value, bytes) else str(value).encode("latin-1")
