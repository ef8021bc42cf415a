"""Loading of feature arrays from .npy, .npz and pickle files."""

from __future__ import annotations

import difflib
import io
import math
import os
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError, display_name
from costream.sources.features.feature_pickles import load_pickle
from costream.sources.media.input_file import check_file, read_head

# Parts of a row, in this order: appearance, motion, sound.
PARTS = ("rgb", "flow", "audio")
# Parts of one video may differ by this many rows (at the end) without a warning.
ROWS_APART = 2

NUMPY_MAGIC = b"\x93NUMPY"
ZIP_MAGIC = b"PK\x03\x04"
# Exceptions of numpy for damaged headers, archives and compressed data.
DAMAGED = (
    *(ValueError, OSError, EOFError, KeyError, TypeError, OverflowError, SyntaxError),
    *(MemoryError, RuntimeError, TokenError, zipfile.BadZipFile, zlib.error),
)
LARGE_BYTES = 1 << 30  # an unpacked array above this size may be an archive made to exhaust memory
MOST_PACKED = 100  # such an array is refused if it is packed by more than this factor
_PICKLE_SUFFIXES = (".pickle", ".pkl", ".p")


@dataclass(frozen=True)
class FeatureArrays:
    """Feature rows of one video; each row is the concatenation of its parts."""

    parts: tuple[npt.NDArray[Any], ...]  # each numeric [T, C_k], memory-mapped if possible
    note: str | None = None  # description of a problem
    cut_off: bool = False  # the file ends before its last row
    times: npt.NDArray[np.float64] | None = None  # seconds of each row, ascending, if stored
    rate_hz: float | None = None  # rows per second, if stored

    @property
    def rows(self) -> int:
        """Number of rows that every part has."""
        return min(len(part) for part in self.parts)

    @property
    def width(self) -> int:
        """Values per row."""
        return sum(part.shape[1] for part in self.parts)

    def row(self, i: int) -> npt.NDArray[np.float32]:
        """Return row i, float32 [C]; values too large for float32 become infinite."""
        with np.errstate(over="ignore"):
            return np.concatenate(
                [part[i] for part in self.parts], dtype=np.float32, casting="unsafe"
            )


def is_pickle(head: bytes, path: str) -> bool:
    """Return whether a file that begins with ``head`` is a pickle."""
    # Protocols 2 to 5 begin with PROTO; 0 and 1 can be recognised only by the file name.
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return True
    return bool(head) and path.lower().endswith(_PICKLE_SUFFIXES)


def has_arrays(head: bytes, path: str | None) -> bool:
    """Return whether data that begin with ``head`` are arrays; ``path``: None for a pipe."""
    if path is None:
        return head.startswith((NUMPY_MAGIC, ZIP_MAGIC))
    if head.startswith(ZIP_MAGIC):
        try:
            with zipfile.ZipFile(path) as archive:
                return any(name.endswith(".npy") for name in archive.namelist())
        except DAMAGED:
            return path.lower().endswith(".npz")
    return head.startswith(NUMPY_MAGIC) or is_pickle(head, path)


def load_features(uri: str, data: bytes | None = None) -> FeatureArrays:
    """Load FILE.npy, FILE.npz, FILE.pickle or FILE.pickle#VIDEO; ``data`` is the file's content.

    With VIDEO_rgb.npy, VIDEO_flow.npy and VIDEO_audio.npy of the same folder are loaded too.
    Raises SourceError if the file contains no numeric rows.
    """
    path, video = split_video(uri)
    head = read_head(path, 8) if data is None else data[:8]
    if head.startswith(NUMPY_MAGIC):
        return _npy(path, data)
    if head.startswith(ZIP_MAGIC):
        content = _read(path if data is None else io.BytesIO(data), path)
        return _pick(content, path, None)
    if data is None:
        return _pick(load_pickle(path), path, video)
    raise SourceError("this is not an .npy or .npz feature file", where=display_name(path))


def load_arrays(
    path: str, data: bytes | None = None
) -> tuple[npt.NDArray[Any] | dict[str, npt.NDArray[Any]], bool]:
    """Load FILE.npy (memory-mapped if possible) or FILE.npz; ``data`` is the file's content.

    Also returns whether the file is complete. Raises SourceError if it cannot be read.
    """
    if data is not None:
        return _read(io.BytesIO(data), path), True
    is_npy = read_head(path, 8).startswith(NUMPY_MAGIC)
    return _map(path) if is_npy else (_read(path, path), True)


def split_video(uri: str) -> tuple[str, str | None]:
    """Split FILE#VIDEO, both of which may contain "#". An existing file is not split."""
    at = -1
    while not os.path.exists(uri) and (at := uri.find("#", at + 1)) >= 0:
        if os.path.isfile(uri[:at]):
            return uri[:at], uri[at + 1 :]
    return uri, None


def video_names(path: str) -> list[str]:
    """Return the names of the videos in a pickle; empty for a single unnamed video."""
    content = load_pickle(path)
    if not isinstance(content, dict) or any(part in content for part in PARTS):
        return []
    return list(content)


def clip_count(path: str) -> int:
    """Return the number of clips in an .npy of shape (N, C, T, V, M); 1 for other shapes."""
    array, _ = _map(path)
    return len(array) if array.ndim == 5 else 1


def _npy(path: str, data: bytes | None) -> FeatureArrays:
    if data is not None:
        return _features([_read(io.BytesIO(data), path)], path)
    files = [path]
    if path.endswith("_rgb.npy"):
        others = (f"{path.removesuffix('rgb.npy')}{part}.npy" for part in PARTS[1:])
        files += filter(os.path.exists, others)
    arrays, cut_off = [], False
    for file in files:
        check_file(file)
        array, complete = _map(file)
        arrays.append(array)
        cut_off = cut_off or not complete
    features = _features(arrays, path)
    if cut_off:
        return FeatureArrays(features.parts, "the file is cut off after this row", cut_off=True)
    return features


def _load(source: Any, **options: Any) -> Any:
    """Call ``np.load`` without its warning about headers written by Python 2."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return np.load(source, allow_pickle=False, **options)


def _map(path: str) -> tuple[npt.NDArray[Any], bool]:
    """Memory-map an array; return it and whether the file is complete."""
    try:
        return _load(path, mmap_mode="r"), True
    except DAMAGED as error:
        rows = _rows_left(path)
        if rows is None:
            raise SourceError(
                f"this .npy cannot be read ({error})", where=display_name(path)
            ) from error
        return rows, False


def _rows_left(path: str) -> npt.NDArray[Any] | None:
    """Return the complete rows of a truncated file; None if the file has another problem."""
    with open(path, "rb") as file:
        try:
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[np.lib.format.read_magic(file)]
            shape, fortran, dtype = read(file)
        except DAMAGED:
            return None
        offset = file.tell()
        size = os.fstat(file.fileno()).st_size
    width = math.prod(shape[1:])
    if fortran or dtype.hasobject or len(shape) not in (2, 3) or width == 0:
        return None
    rows = (size - offset) // (dtype.itemsize * width)
    if min(shape) < 0 or not 0 < rows < shape[0]:
        return None
    return np.memmap(path, dtype, "r", offset, (rows, *shape[1:]))


def _read(source: str | io.BytesIO, path: str) -> Any:
    try:
        _check_size(source)
        loaded = _load(source)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except DAMAGED as error:
        raise SourceError(
            f"these features cannot be read ({error})", where=display_name(path)
        ) from error


def _check_size(source: str | io.BytesIO) -> None:
    """Raise ValueError for an archive that is small but expands to a very large size."""
    size = packed = 0
    if zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            size = sum(member.file_size for member in archive.infolist())
            packed = sum(member.compress_size for member in archive.infolist())
    if isinstance(source, io.BytesIO):
        source.seek(0)
    if size > max(LARGE_BYTES, MOST_PACKED * packed):
        raise ValueError(f"it expands from {packed / 1e6:.1f} to {size / 1e6:.0f} MB")


def _pick(content: Any, path: str, video: str | None) -> FeatureArrays:
    """Return the features of one video from the content of a file."""
    if isinstance(content, Mapping) and video is not None:
        if video not in content:
            close = difflib.get_close_matches(video, content, 1)
            hint = f"did you mean {close[0]}?" if close else None
            raise SourceError(
                f"there is no video {video!r} in it", where=display_name(path), hint=hint
            )
        content = content[video]
    elif isinstance(content, Mapping) and len(content) == 1:
        content = next(iter(content.values()))
    if not isinstance(content, Mapping):
        return _features([content], path)
    parts = [part for part in PARTS if part in content] or ["features"]
    if parts[0] in content:
        return _timed(_features([content[part] for part in parts], path), content, path)
    names = ", ".join(list(content)[:4]) or "nothing"
    raise SourceError(
        f"no features found (it contains {names}{', ...' if len(content) > 4 else ''})",
        where=display_name(path),
        hint="an .npz needs rgb, flow, audio or features; FILE.pickle#VIDEO selects a video",
    )


def _timed(features: FeatureArrays, content: Mapping[str, Any], path: str) -> FeatureArrays:
    """Return features with the times and the rate of the same file, if it has any."""
    rate = np.asarray(content.get("rate_hz", 0))
    if rate.shape == () and rate.dtype.kind in "iuf" and 0 < float(rate) < math.inf:
        features = replace(features, rate_hz=float(rate))
    if "times" not in content:
        return features
    times = np.asarray(content["times"])
    fits = times.dtype.kind in "iuf" and times.shape == (features.rows,)
    if not fits or not np.isfinite(times).all() or not (np.diff(times) > 0).all():
        what = f"times are not {features.rows} ascending numbers, one for each row"
        raise SourceError(what, where=display_name(path))
    return replace(features, times=times.astype(np.float64))


def _features(arrays: list[Any], path: str) -> FeatureArrays:
    for array in arrays:
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise SourceError("not an array of numbers", where=display_name(path))
        if array.ndim != 2 or 0 in array.shape:
            raise SourceError(
                f"an array of shape {array.shape} is not a table of rows x values",
                where=display_name(path),
                hint="for skeletons give --layout NAME" if array.ndim > 2 else None,
            )
    counts = [len(array) for array in arrays]
    if max(counts) - min(counts) <= ROWS_APART:
        return FeatureArrays(tuple(arrays))
    rows = ", ".join(map(str, counts))
    note = f"the parts differ in length ({rows} rows); the shortest is used"
    return FeatureArrays(tuple(arrays), note)
