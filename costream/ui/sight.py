"""What is seen while a run goes on: the objects, when there were such, and what they cost."""

from __future__ import annotations

from collections import Counter, deque

from costream.records import Box, Compute, Objects, Picture
from costream.sinks.cost import share_of_dense
from costream.ui.strip import Strip
from costream.ui.text import clean

_STEPS = 128  # whose costs are kept: more than a line has cells


class Sight:
    """Follows the objects of one run, in constant memory.

    ``length_s``: of the run, where that is known. ``step_s``: seconds from step to step.
    """

    def __init__(self, length_s: float | None, step_s: float) -> None:
        self.boxes: tuple[Box, ...] = ()  # of the newest step, the surest first
        self.most_boxes = 0  # that a step had
        self.tracked = False  # whether objects have ids
        self.seen: Counter[str] = Counter()  # boxes so far, by label
        self.strip: Strip | None = None  # counts steps as None, boxes by their label
        self.compute: Compute | None = None  # of the newest step
        self.most_tokens: int | None = None  # those of a frame
        self.tokens: deque[float] = deque(maxlen=_STEPS)  # updated, of the newest steps
        self.shares: deque[float] = deque(maxlen=_STEPS)  # of the dense cost
        self._length_s, self._step_s = length_s, step_s

    def see(self, record: Objects) -> None:
        """Take the objects of a step."""
        self.boxes = record.boxes
        self.most_boxes = max(self.most_boxes, len(record.boxes))
        self.tracked = self.tracked or any(box.id is not None for box in record.boxes)
        if self.strip is None:
            self.strip = Strip(record.time_s, self._length_s, self._step_s)
        self.strip.add(record.time_s, None)
        for box in record.boxes:
            self.seen[box.label] += 1
            self.strip.add(record.time_s, box.label)

    def spend(self, record: Compute) -> None:
        """Take what a step cost."""
        self.compute = record
        self.shares.append(share_of_dense(record))
        if record.tokens is not None:
            self.tokens.append(record.tokens)

    def look(self, picture: Picture) -> None:
        """Take how many tokens a frame has."""
        if picture.updated is not None:
            self.most_tokens = picture.updated.size

    def interrupt(self) -> None:
        """Note that what comes next does not go on from what was."""
        self.boxes = ()

    @property
    def words(self) -> str:
        """What is seen now: ``2 car, 1 person``, the most first."""
        counts = Counter(box.label for box in self.boxes).most_common()
        return ", ".join(f"{count} {clean(label)}" for label, count in counts)
