"""What is known of a recording: which stretches of it show, or sound like, what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SLIVER_S = 0.1  # what is shorter between two labels comes of how their times were rounded


@dataclass(frozen=True)
class Label:
    """A stretch of a recording."""

    start_s: float
    end_s: float | None  # None: to the end of the recording
    label: str
    where: str  # file and line, for messages


@dataclass(frozen=True)
class Recording:
    """A recording and its labels."""

    source: str  # as on the command line; without media what the labels call it
    labels: tuple[Label, ...]  # in order of their starts; they may overlap
    group: str  # what may never be on both sides of a split; default: the source
    whole: bool  # time without a label is background; False: nothing is known of it
    duration_s: float | None  # None: not known

    def unlabelled(self) -> Iterator[tuple[float, float]]:
        """Yield start and end of each stretch without a label that is no sliver.

        The time after the last label is left out where the length of the recording is not known.
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
