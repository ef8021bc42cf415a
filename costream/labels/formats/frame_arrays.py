"""Frame-wise labels in arrays, as used by training code for online action detection.

An array is [T] of class numbers (below 0: unknown), or [T, K] with a 1 for each true class. An .npz
file is complete: ``labels``, ``rate_hz`` (rows per second) and ``names`` (of the classes). For .npy
files and pickles the last two are in ``frames.json`` in the same folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError, UsageError
from costream.core.label_sets import THUMOS14, TVSERIES
from costream.labels.collector import LabelCollector, LabelTrack, NoLabelsError, read_text
from costream.labels.recording import Label
from costream.sources.features.feature_arrays import load_arrays
from costream.sources.features.feature_pickles import load_pickle

SETTINGS_FILE = "frames.json"  # {"rate_hz": ..., "names": [...]}
_SETS = {len(labels.names): labels for labels in (THUMOS14, TVSERIES)}


def read_arrays(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the timeline of each video in the file.

    Without names, 22 classes are taken for THUMOS14, 31 for TVSeries; THUMOS14 has 4 rows
    per second. Raises NoLabelsError for arrays of other data, UsageError when the rate or the names
    are unknown, or there are fewer names than classes.
    """
    entry: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    try:
        if path.suffix.lower() in (".npy", ".npz"):
            found, _ = load_arrays(str(path))
            if isinstance(found, dict):
                entry = found
                arrays = {"": found["labels"]} if "labels" in found else {}
            else:
                arrays = {"": found}
        else:
            arrays = _of_videos(load_pickle(str(path)))
    except SourceError as error:
        raise UsageError(str(error)) from error
    if not arrays or not all(_is_labels(array) for array in arrays.values()):
        raise NoLabelsError("no frame labels", where=path)
    for video, array in arrays.items():
        names, rate_hz = _about(path, entry, array)
        labels: list[Label] = []
        try:
            for start_s, end_s, name, row in stretches(array, names, rate_hz):
                spot = f"{video}, row {row}" if video else f"row {row}"
                labels += collector.label(path, spot, start_s, end_s, name)
        except ValueError as error:
            raise UsageError(str(error), where=path) from error
        duration_s = len(array) / rate_hz
        yield LabelTrack(
            path, (video,) if video else (), tuple(labels), duration_s, single=not video
        )


def stretches(
    values: npt.ArrayLike, names: Sequence[str], rate_hz: float
) -> Iterator[tuple[float, float, str, int]]:
    """Yield start, end, name and first row of every stretch of a class, in order of the classes.

    ``values`` as in the module docstring, ``rate_hz`` rows per second. Raises ValueError for other
    values and for a class without a name.
    """
    array = np.asarray(values)
    if array.size and not _is_labels(array):
        raise ValueError("neither class numbers nor rows of 0 and 1")
    if not 0 < rate_hz < math.inf:
        raise ValueError(f"{rate_hz:g} rows per second")
    classes = int(array.max(initial=-1)) + 1 if array.ndim == 1 else array.shape[1]
    if classes > len(names):
        raise ValueError(f"{classes} classes, but only {len(names)} names")
    for k in range(classes):
        held = array == k if array.ndim == 1 else array[:, k] > 0
        edges = np.flatnonzero(np.diff(np.concatenate(([False], held, [False]))))
        for first, end in edges.reshape(-1, 2).tolist():
            yield first / rate_hz, end / rate_hz, names[k], first


def _of_videos(content: Any) -> dict[str, Any]:
    """Return the array of each video from {video: {"anno": array, ...}} or {video: array}."""
    if not isinstance(content, dict):
        return {}
    return {
        str(video): entry.get("anno") if isinstance(entry, dict) else entry
        for video, entry in content.items()
    }


def _is_labels(array: Any) -> bool:
    if not isinstance(array, np.ndarray) or array.ndim not in (1, 2):
        return False
    is_integer = np.issubdtype(array.dtype, np.integer) or array.dtype == np.bool_
    if array.ndim == 1:
        return is_integer
    # Feature arrays may be large; usually the first row suffices to reject them.
    return all(bool(np.isin(rows, (0, 1)).all()) for rows in (array[:1], array))


def _about(path: Path, entry: dict[str, Any], array: npt.NDArray[Any]) -> tuple[list[str], float]:
    """Return the class names and the rows per second."""
    settings = path.with_name(SETTINGS_FILE)
    if not {"names", "rate_hz"} <= set(entry) and settings.is_file():
        try:
            entry = {**json.loads(read_text(settings)), **entry}
        except (ValueError, TypeError) as error:
            raise UsageError(f"cannot be read as JSON ({error})", where=settings) from error
    label_set = _SETS.get(array.shape[1]) if array.ndim == 2 else None
    names = entry.get("names", None if label_set is None else label_set.names)
    rate = entry.get("rate_hz", None if label_set is None else label_set.rate_hz)
    hint = f'write {SETTINGS_FILE} into its folder: {{"rate_hz": 4, "names": ["...", ...]}}'
    if not isinstance(names, (list, tuple, np.ndarray)):
        raise UsageError("the class names are unknown", where=path, hint=hint)
    try:
        rate_hz = float(np.asarray(rate))
    except (TypeError, ValueError):
        rate_hz = 0.0
    if not 0 < rate_hz < math.inf:
        raise UsageError("the rows per second are unknown", where=path, hint=hint)
    return [str(name) for name in names], rate_hz
