"""Persons of a stream as rows of one batch: a network for one person follows each of them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from costream.models.base import Model, PersonFinder, PersonModel, StepResult
from costream.records import Data, SkeletonFrame, VideoFrame

if TYPE_CHECKING:
    from torch import Tensor

    from costream.nn.state import State

# Scores of a step [C], by number of the person; None: of a stream as a whole.
PersonScores: TypeAlias = Mapping["int | None", npt.NDArray[np.floating]]
MOST = 8  # persons at one time
GONE_S = 2.0  # a person who was not seen for this long has left


def follows(model: Model) -> bool:
    """Return whether a model is for one person, so that it can follow each of several."""
    return model.info.persons == 1


class PersonRows:
    """The state of a model for one person, with a row for each person who is there.

    ``numbers``: of the persons, row by row; never none once there was a step. ``state``: of these
    rows; None before the first step. Without anybody the
    first row goes on, so that each step has a result. Who comes between two outputs of a network
    with strides joins with the next.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._finder: PersonFinder | None = None  # of persons in frames
        self._newest = 1  # number of the person who came last
        self._anybody_s = -math.inf  # when somebody was seen last
        self.reset()

    def reset(self) -> None:
        """Forget everybody, as at a gap."""
        if self._finder is not None:
            self._finder.close()
        self.numbers: list[int] = []
        self._seen_s: list[float] = []
        self.state: State | None = None
        self._steps = 0  # of the rows

    @property
    def position(self) -> dict[str, Any]:
        """Everything but ``state``, as JSON values, for ``resume``."""
        return {
            "numbers": self.numbers,
            "seen_s": self._seen_s,
            "steps": self._steps,
            "newest": self._newest,
            "anybody_s": None if math.isinf(self._anybody_s) else self._anybody_s,
        }

    def resume(self, position: Mapping[str, Any], tensors: dict[str, Tensor]) -> None:
        """Go on from a position and the tensors of the state. Raises KeyError or ValueError."""
        self.numbers, self._seen_s = list(position["numbers"]), list(position["seen_s"])
        self._steps, self._newest = position["steps"], position["newest"]
        anybody_s = position["anybody_s"]
        self._anybody_s = -math.inf if anybody_s is None else anybody_s
        self.state = self._model.init_state(len(self.numbers))
        self.state.load_tensors(tensors)

    def step(self, item: Data) -> StepResult:
        """Return the results of a step, a row for each person; ``item``: skeletons or a frame."""
        began = time.perf_counter()
        frame = self._found(item)
        found_s = time.perf_counter() - began
        numbers = frame.persons or range(1, len(frame.joints) + 1)
        slots = dict(zip(numbers, range(len(frame.joints)), strict=True))
        present = {n: k for n, k in slots.items() if n and frame.scores[k].any()}
        self._change(present, slots, frame.time_s)
        rows = [_only(frame, slots.get(number)) for number in self.numbers]
        result = self._model.step(rows, self.state)
        self._steps += 1
        return replace(
            result,
            skeletons=(frame,),
            frontend_s=result.frontend_s + found_s,
            persons=tuple(self.numbers),
            nobody=frame.time_s - self._anybody_s > GONE_S,
        )

    def _found(self, item: Data) -> SkeletonFrame:
        """Return the persons in a frame."""
        if isinstance(item, VideoFrame):
            if self._finder is None:
                self._finder = cast(PersonModel, self._model).person_finder(MOST)
            return self._finder.find(item)
        assert isinstance(item, SkeletonFrame)
        return item

    def _change(self, present: dict[int, int], slots: dict[int, int], time_s: float) -> None:
        """Let persons join and leave."""
        for row, number in enumerate(self.numbers):
            if number in present:
                self._seen_s[row] = time_s
        if present:
            self._newest, self._anybody_s = max(self._newest, *present), time_s
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
            new = [] if stay else [self._newest]
        if len(stay) < len(self.numbers) and self.state is not None:
            self.state = self.state.take(stay) if stay else None
            self._steps *= bool(stay)
        fresh = [self._model.init_state(1) for _ in new]
        if fresh:
            states = fresh if self.state is None else [self.state, *fresh]
            self.state = type(states[0]).cat(states)
        self.numbers = [*(self.numbers[row] for row in stay), *new]
        self._seen_s = [*(self._seen_s[row] for row in stay), *(time_s for _ in new)]


def _only(frame: SkeletonFrame, slot: int | None) -> SkeletonFrame:
    """Return the frame with the person in this slot alone; None: with nobody."""
    if slot is None:
        joints, scores = np.zeros_like(frame.joints[:1]), np.zeros_like(frame.scores[:1])
    else:
        joints, scores = frame.joints[slot : slot + 1], frame.scores[slot : slot + 1]
    return SkeletonFrame(frame.i, frame.time_s, joints, scores, frame.layout)
