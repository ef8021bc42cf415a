"""Output of one head during a run: scores, current label and timeline so far."""

from __future__ import annotations

from dataclasses import dataclass

from costream.records import Head, Prediction, Scored
from costream.ui.strip import Strip

# A label stays active while its score is above this share of its opening threshold: the default
# hysteresis of the timeline, so that the display is close to the segments that are written.
_LOW = 0.6


@dataclass
class ActiveLabel:
    """The label that is active now."""

    label: str
    since_s: float
    score: float


class HeadState:
    """Output of one head so far.

    ``length_s``: length of the run, if known. ``step_s``: seconds per step.
    """

    def __init__(self, head: Head, length_s: float | None, step_s: float) -> None:
        self.head = head
        self.top: tuple[Scored, ...] = ()
        self.current: ActiveLabel | None = None
        self.seen: dict[str, None] = {}  # labels of the strip, in order of appearance
        self.strip: Strip | None = None
        self._length_s, self._step_s = length_s, step_s
        self._marked_s: float | None = None  # the strip is marked up to here

    @property
    def events(self) -> list[str]:
        """The labels without the background."""
        return [label for label in self.head.labels if label != self.head.background]

    def predict(self, record: Prediction, start_s: float) -> None:
        """Add the prediction of a step of a run that began at ``start_s``."""
        self.top = record.top
        self._follow(record, start_s)
        if self.current is not None:
            self.seen.setdefault(self.current.label)
        self._mark(record.time_s)

    def pass_(self, time_s: float) -> None:
        """Mark a step as over; without a prediction of its own, the current label continues."""
        if self.top and time_s != self._marked_s:
            self._mark(time_s)

    def interrupt(self) -> None:
        """Discard the current label, at a gap."""
        self.current = None

    def _mark(self, time_s: float) -> None:
        """Add the current label to the strip."""
        if self.strip is None:
            self.strip = Strip(time_s, self._length_s, self._step_s)
        self.strip.add(time_s, self.current.label if self.current else None)
        self._marked_s = time_s

    def _follow(self, record: Prediction, start_s: float) -> None:
        """Keep, change or drop the current label."""
        events = [pair for pair in record.top if pair[0] != self.head.background]
        least = self.head.threshold_of
        best, score = next((pair for pair in events if pair[1] >= least(pair[0])), ("", 0.0))
        current = self.current
        if current is not None:
            current.score = dict(events).get(current.label, 0.0)
        if best and (current is None or score > current.score):
            since_s = max(record.time_s - self.head.delay_s, start_s)
            self.current = ActiveLabel(best, since_s, score)
        elif current is not None and current.score < _LOW * least(current.label):
            self.current = None
