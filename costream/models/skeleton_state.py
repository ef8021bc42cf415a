"""What skeleton networks keep of each stream and person."""

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
class BlockState(State):
    """What a block keeps."""

    temporal: State
    residual: DelayState | None


@dataclass
class PersonState(State):
    """What the blocks keep of one person of every stream."""

    blocks: tuple[BlockState, ...]


@dataclass
class SkeletonState(ClockedState):
    """What a network keeps of each stream.

    A person who has been absent for long sleeps: what is kept of it is out of date, and written
    anew when it wakes.
    """

    steps: Tensor  # int64 [B], frames since the stream began
    empty: Tensor  # int64 [B, M], frames in a row up to the newest without this person
    asleep: Tensor  # int64 [B, M], 0 or 1
    persons: tuple[PersonState, ...]
    mean: MeanState
    statistics: MeanState | None  # of a network with statistics

    def __post_init__(self) -> None:
        """Lay the persons side by side, so that one matrix product may serve several."""
        super().__post_init__()
        # The counters' memory as NumPy arrays, which are read and written in a tenth of the time.
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
        """Give what is kept of persons ``low`` to ``high - 1``, rows (person, stream)."""
        if (low, high) not in self._views:
            rows = slice(low * self.batch_size, high * self.batch_size)
            self._views[low, high] = self._joined._map([self._joined], lambda t: t[0][rows])
        return self._views[low, high]
