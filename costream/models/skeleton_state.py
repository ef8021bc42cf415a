"""State of skeleton networks for streams and persons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from costream.nn.delay import DelayState
from costream.nn.pooling import MeanState
from costream.nn.state import State
from costream.nn.timing import ClockedState

if TYPE_CHECKING:
    from costream.models.skeleton_plan import StepPlan


@dataclass
class SkeletonBlockState(State):
    """State of a block."""

    temporal: State
    residual: DelayState | None


@dataclass
class PersonState(State):
    """State of all blocks for one person of every stream."""

    blocks: tuple[SkeletonBlockState, ...]


@dataclass
class SkeletonState(ClockedState):
    """State of a network for each stream.

    A person who has been absent for long is asleep: its state is out of date, and rebuilt on
    waking.
    """

    steps: Tensor  # int64 [B], frames since the stream began
    empty: Tensor  # int64 [B, M], newest consecutive frames without this person
    asleep: Tensor  # int64 [B, M], 0 or 1
    persons: tuple[PersonState, ...]
    mean: MeanState
    statistics: MeanState | None  # of a network with statistics

    def __post_init__(self) -> None:
        """Store all persons in one tensor, so that one matrix product can process several."""
        super().__post_init__()
        # The counters' memory as NumPy arrays, with a tenth of the access time.
        self.counters: tuple[Any, ...] = (
            self.steps.numpy(),
            self.empty.numpy(),
            self.asleep.numpy(),
        )
        self.plans: dict[tuple[int, int], StepPlan] = {}  # of steps for persons low to high - 1
        self._views: dict[tuple[int, int], PersonState] = {}
        self._joined = PersonState.cat(self.persons)
        self.persons = tuple(self.bodies(m, m + 1) for m in range(len(self.persons)))

    def bodies(self, low: int, high: int) -> PersonState:
        """Return the state of persons ``low`` to ``high - 1``, rows (person, stream)."""
        if (low, high) not in self._views:
            rows = slice(low * self.batch_size, high * self.batch_size)
            self._views[low, high] = self._joined._map([self._joined], lambda t: t[0][rows])
        return self._views[low, high]
