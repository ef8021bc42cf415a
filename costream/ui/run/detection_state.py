"""Objects and costs of a run in progress."""

from __future__ import annotations

from collections import Counter, deque

from costream.core.formatting import clean, share_of_dense
from costream.core.records import Box, Compute, Objects, Picture
from costream.ui.run.tracks import Strip

_STEPS = 128  # steps whose costs are kept: more than a line has cells


class DetectionState:
    """Objects and costs of one run so far, in constant memory.

    ``length_s``: length of the run, if known. ``step_s``: seconds per step.
    """

    def __init__(self, length_s: float | None, step_s: float) -> None:
        self.boxes: tuple[Box, ...] = ()  # of the newest step, by descending score
        self.tracked = False  # whether objects have ids
        self.seen: Counter[str] = Counter()  # boxes so far, by label
        self.strip: Strip | None = None  # counts steps as None, boxes by their label
        self.compute: Compute | None = None  # of the newest step
        self.most_tokens: int | None = None  # tokens of a frame
        self.tokens: deque[float] = deque(maxlen=_STEPS)  # updated, of the newest steps
        self.shares: deque[float] = deque(maxlen=_STEPS)  # of the dense cost
        self._length_s, self._step_s = length_s, step_s

    def add_objects(self, record: Objects) -> None:
        """Add the objects of a step."""
        self.boxes = record.boxes
        self.tracked = self.tracked or any(box.id is not None for box in record.boxes)
        if self.strip is None:
            self.strip = Strip(record.time_s, self._length_s, self._step_s)
        self.strip.add(record.time_s, None)
        for box in record.boxes:
            self.seen[box.label] += 1
            self.strip.add(record.time_s, box.label)

    def spend(self, record: Compute) -> None:
        """Add the cost of a step."""
        self.compute = record
        self.shares.append(share_of_dense(record))
        if record.tokens is not None:
            self.tokens.append(record.tokens)

    def add_input(self, picture: Picture) -> None:
        """Store the number of tokens of a frame."""
        if picture.updated is not None:
            self.most_tokens = picture.updated.size

    def interrupt(self) -> None:
        """Discard the current objects, at a gap."""
        self.boxes = ()

    @property
    def counts(self) -> list[tuple[str, int]]:
        """Number of current objects by label, the most frequent first."""
        return Counter(box.label for box in self.boxes).most_common()

    @property
    def words(self) -> str:
        """Current objects as text: ``car x2, person``."""
        several = ((label, f" x{count}" if count > 1 else "") for label, count in self.counts)
        return ", ".join(f"{clean(label)}{times}" for label, times in several)
