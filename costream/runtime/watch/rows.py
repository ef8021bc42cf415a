"""The network's memory of all feeds: a row each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costream.models.base import GatedModel, Model, StepResult
from costream.records import Data
from costream.runtime.throttle import Throttle


class Rows:
    """One network and what it has seen of ``count`` feeds.

    Any feeds take a step together; those that have nothing now are not touched. A model whose
    streams have to step in time has a state for each feed, and steps one after the other.
    """

    def __init__(
        self,
        model: Model,
        count: int,
        tokens: int | None = None,
        throttles: Sequence[Throttle] | None = None,
    ) -> None:
        """``tokens``: of a token-gated model, how many of a frame are computed; None: all.

        ``throttles``: who changes that, for each row.
        """
        self._model, self._count = model, count
        self._throttles = throttles
        alone = model.in_time
        self._states: list[Any] = (
            [model.init_state(1) for _ in range(count)] if alone else [model.init_state(count)]
        )
        if isinstance(model, GatedModel):
            for state in self._states:
                model.set_tokens(state, tokens)

    def step(self, rows: Sequence[int], items: Sequence[Data]) -> list[StepResult]:
        """Step these rows, in rising order, with an item each; give what each has got."""
        if self._model.in_time:
            return [self._alone(row, item) for row, item in zip(rows, items, strict=True)]
        state = self._states[0]
        if len(rows) == self._count:
            result = self._model.step(items, state)
        else:
            part = state.take(rows)
            result = self._model.step(items, part)
            state.put(rows, part)
        return [result.row(k) for k in range(len(rows))]

    def target(self, row: int) -> float | None:
        """Give what the newest step of this row was allowed to cost; None: whatever it does."""
        return None if self._throttles is None else self._throttles[row].target

    def reset(self, row: int) -> None:
        """Forget what this feed has shown."""
        self._model.reset(*self._at(row))

    def take(self, row: int) -> Any:
        """Give a copy of what the network knows of this feed, as the state of one stream."""
        state, rows = self._at(row)
        return state.take(rows)

    def put(self, row: int, known: Any) -> None:
        """Let the network know this of a feed, as ``take`` gave it."""
        state, rows = self._at(row)
        state.put(rows, known)

    def _alone(self, row: int, item: Data) -> StepResult:
        state = self._states[row]
        if self._throttles is None:
            return self._model.step([item], state)
        self._throttles[row].before(state)
        result = self._model.step([item], state)
        self._throttles[row].after(result)
        return result

    def _at(self, row: int) -> tuple[Any, list[int]]:
        return (self._states[row], [0]) if self._model.in_time else (self._states[0], [row])
