"""Labelled recordings: the records ``Label`` and ``Recording``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SLIVER_S = 0.1  # shorter gaps between two labels are due to rounding of their times


@dataclass(frozen=True)
class Label:
    """A labelled stretch of a recording."""

    start_s: float
    end_s: float | None  # None: to the end of the recording
    label: str
    where: str  # file and line, for messages


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
