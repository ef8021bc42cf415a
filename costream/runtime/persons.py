"""Persons of a recording as rows of one batch: a network for one person follows each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from costream.models.base import Model, StepResult
from costream.records import SkeletonFrame

if TYPE_CHECKING:
    from costream.nn.state import State

MOST = 8  # persons at one time
GONE_S = 2.0  # a person who was not seen for this long has left


class PersonRows:
    """The state of a model for one person, with a row for each person who is there.

    ``numbers``: of the persons, row by row; never none once there was a step. Without anybody the
    first row goes on, so that each step has a result. Who comes between two outputs of a network
    with strides joins with the next.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.reset()

    def reset(self) -> None:
        """Forget everybody, as at a gap."""
        self.numbers: list[int] = []
        self._seen_s: list[float] = []
        self._state: State | None = None
        self._steps = 0  # of the rows

    def step(self, frame: SkeletonFrame) -> tuple[StepResult, tuple[int, ...]]:
        """Return the results of a step, a row for each person, and the persons' numbers."""
        slots = dict(zip(frame.persons or (), range(len(frame.joints)), strict=False))
        present = {n: k for n, k in slots.items() if n and frame.scores[k].any()}
        self._change(present, slots, frame.time_s)
        rows = [_only(frame, slots.get(number)) for number in self.numbers]
        result = self._model.step(rows, self._state)
        self._steps += 1
        return result, tuple(self.numbers)

    def _change(self, present: dict[int, int], slots: dict[int, int], time_s: float) -> None:
        """Let persons join and leave."""
        for row, number in enumerate(self.numbers):
            if number in present:
                self._seen_s[row] = time_s
        # A row that begins at another step of a stride would not be that of a fresh stream.
        may_join = self._steps % self._model.info.stride == 0
        new = [n for n in sorted(present) if n not in self.numbers and may_join]
        stay = [
            row
            for row, number in enumerate(self.numbers)
            if number in slots and time_s - self._seen_s[row] <= GONE_S
        ]
        if not stay and not new:
            # Nobody is there: one row goes on, that of the one who left last.
            stay = sorted(range(len(self.numbers)), key=lambda row: self._seen_s[row])[-1:]
            new = [] if stay else [1]
        if len(stay) < len(self.numbers) and self._state is not None:
            self._state = self._state.take(stay) if stay else None
            self._steps *= bool(stay)
        fresh = [self._model.init_state(1) for _ in new]
        if fresh:
            states = fresh if self._state is None else [self._state, *fresh]
            self._state = type(states[0]).cat(states)
        self.numbers = [*(self.numbers[row] for row in stay), *new]
        self._seen_s = [*(self._seen_s[row] for row in stay), *(time_s for _ in new)]


def _only(frame: SkeletonFrame, slot: int | None) -> SkeletonFrame:
    """Return the frame with the person in this slot alone; None: with nobody."""
    if slot is None:
        joints, scores = np.zeros_like(frame.joints[:1]), np.zeros_like(frame.scores[:1])
    else:
        joints, scores = frame.joints[slot : slot + 1], frame.scores[slot : slot + 1]
    return SkeletonFrame(frame.i, frame.time_s, joints, scores, frame.layout)
