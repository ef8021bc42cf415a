"""Frame-wise labels of a recording."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from costream.clock import TOLERANCE_S
from costream.labels.recording import Recording

UNKNOWN = -1


def frame_labels(
    recording: Recording,
    times: npt.ArrayLike,
    names: Sequence[str],
    background: str | None,
) -> npt.NDArray[np.int64]:
    """Return the index into ``names`` of the label at each of the times [T], seconds.

    If labels overlap, it is the one that began last. Without a label it is ``background`` in a
    completely labelled recording, otherwise, and if ``background`` is None, UNKNOWN. Starts and
    ends of labels have a tolerance for rounding (TOLERANCE_S). Raises KeyError for a label that is
    not among the names; see ``respelled``.
    """
    index = {name: k for k, name in enumerate(names)}
    out = np.full(len(np.asarray(times)), UNKNOWN, np.int64)
    if recording.whole and background is not None:
        out[:] = index[background]
    for label, rows in _rows(recording, times):
        out[rows] = index[label]
    return out


def frame_targets(
    recording: Recording, times: npt.ArrayLike, names: Sequence[str], background: str | None
) -> npt.NDArray[np.bool_]:
    """Return [T, K]: which of the names are true at each time, including overlapping labels.

    A row is all False where nothing is known; see ``frame_labels``.
    """
    index = {name: k for k, name in enumerate(names)}
    out = np.zeros((len(np.asarray(times)), len(names)), np.bool_)
    for label, rows in _rows(recording, times):
        out[rows, index[label]] = True
    if recording.whole and background is not None:
        out[~out.any(1), index[background]] = True
    return out


def _rows(
    recording: Recording, times: npt.ArrayLike
) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Yield each label and a mask [T] of the times at which it is true."""
    at = np.asarray(times, np.float64) + TOLERANCE_S
    for label in recording.labels:
        end_s = np.inf if label.end_s is None else label.end_s
        yield label.label, (at >= label.start_s) & (at < end_s)
