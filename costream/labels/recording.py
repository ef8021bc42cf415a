"""Labelled recordings: the records ``Label`` and ``Recording``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costream.core.clock import TOLERANCE_S

UNSCORED = -1  # index of a frame whose label is unknown
BACKGROUND, SILENCE = "background", "silence"
BACKGROUNDS = (BACKGROUND, "none", "nothing")  # names of no event; of sounds SILENCE too
SLIVER_S = 0.1  # shorter gaps between two labels are due to rounding of their times


@dataclass(frozen=True)
class Label:
    """A labelled stretch of a recording."""

    start_s: float
    end_s: float | None  # None: to the end of the recording
    label: str
    where: str  # file and line, for messages
    person: int | None = None  # number of the person it applies to; None: unknown


@dataclass(frozen=True)
class Recording:
    """A recording and its labels."""

    source: str  # as on the command line; without media its name in the labels
    labels: tuple[Label, ...]  # in order of their starts; they may overlap
    group: str  # unit that a split keeps together; default: the source
    whole: bool  # time without a label is background; False: it is unknown
    duration_s: float | None  # None: unknown

    def unlabelled(self) -> Iterator[tuple[float, float]]:
        """Yield start and end of each unlabelled stretch of at least SLIVER_S.

        The time after the last label is left out if the duration of the recording is unknown.
        """
        at = 0.0
        for label in self.labels:
            if label.start_s - at >= SLIVER_S:
                yield at, label.start_s
            if label.end_s is None:
                return
            at = max(at, label.end_s)
        if self.duration_s is not None and self.duration_s - at >= SLIVER_S:
            yield at, self.duration_s


def frame_labels(
    recording: Recording, times: npt.ArrayLike, names: Sequence[str], background: str | None
) -> npt.NDArray[np.int64]:
    """Return the index into ``names`` of the label at each of the times [T], seconds.

    If labels overlap, it is the one that began last. Without a label it is ``background`` in a
    completely labelled recording, otherwise, and if ``background`` is None, UNSCORED. Starts and
    ends of labels have a tolerance for rounding (TOLERANCE_S). Raises KeyError for a label that is
    not among the names.
    """
    index = {name: k for k, name in enumerate(names)}
    out = np.full(len(np.asarray(times)), UNSCORED, np.int64)
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
