"""The network's state for all feeds, one row per feed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costream.models.base import GatedModel, Model, StepResult
from costream.records import Data
from costream.runtime.budget.controller import TokenController


class FeedStates:
    """One network and its state for ``count`` feeds.

    Any subset of feeds can step together; the state of the others is not touched. A model whose
    streams must step in sync has a separate state per feed, and steps them one after the other.
    """

    def __init__(
        self,
        model: Model,
        count: int,
        tokens: int | None = None,
        throttles: Sequence[TokenController] | None = None,
    ) -> None:
        """``tokens``: for a token-gated model, most tokens computed per frame; None: all.

        ``throttles``: the controller of that number, for each row.
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
        """Step these rows, in ascending order, with one item each; return their results."""
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
        """Return the maximum cost of the newest step of this row; None: no budget."""
        return None if self._throttles is None else self._throttles[row].target

    def reset(self, row: int) -> None:
        """Reset the state of this feed."""
        self._model.reset(*self._at(row))

    def take(self, row: int) -> Any:
        """Return a copy of the network's state for this feed, as the state of one stream."""
        state, rows = self._at(row)
        return state.take(rows)

    def put(self, row: int, known: Any) -> None:
        """Set the network's state for a feed to one that ``take`` returned."""
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
