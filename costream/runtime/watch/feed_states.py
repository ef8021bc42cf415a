"""One network and its states for all feeds of a watch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costream.core.places import Place
from costream.core.records import Data
from costream.models.base import GatedModel, Model, StepResult
from costream.models.gated import Choice
from costream.models.persons import PersonsModel, looks_of
from costream.runtime.budget import Controller, LookController, TokenController
from costream.runtime.persons import PersonRows


class FeedStates:
    """One network and its state for ``count`` feeds.

    Any subset of feeds can step together; the states of the others do not change. A model whose
    streams must step in sync has a separate state for each feed, and steps them one after the
    other. A model for one person has rows for the persons of each feed.
    """

    def __init__(
        self,
        model: Model,
        count: int,
        tokens: int | str | None = None,
        throttles: Sequence[Controller] | None = None,
        masks: Sequence[frozenset[Place]] = (),
        persons: Sequence[PersonRows] | None = None,
        choice: Choice | None = None,
    ) -> None:
        """``tokens``: what is computed of a frame, see ``Options``, where the model has a choice.

        ``choice``: ``policy`` of the options.
        For each row: ``throttles``: the controller of its budget. ``masks``: its masks.
        ``persons``: the rows of its persons, if they are followed.
        """
        self._model, self._count = model, count
        self._throttles = throttles
        decided = any(throttle.decides for throttle in throttles or ())  # how, for each feed
        self._apart = model.info.in_time or decided  # a state for each feed
        self._persons = persons
        self._states: list[Any] = (
            [model.init_state(1) for _ in range(count)]
            if self._apart
            else [model.init_state(count)]
        )
        for rows, throttle in zip(persons or (), throttles or (), strict=False):
            if isinstance(throttle, LookController):
                rows.govern(throttle.may)
        for row, state in enumerate(self._states):
            if isinstance(model, GatedModel) or model.info.by_place:
                state.tokens = tokens
            if isinstance(model, GatedModel):
                state.masks = masks[row] if masks else frozenset()
                state.choice = choice

    def step(self, rows: Sequence[int], items: Sequence[Data]) -> list[StepResult]:
        """Step these rows, in ascending order, with one item each; return their results."""
        if self._persons is not None or self._apart:
            return [self._step_one(row, item) for row, item in zip(rows, items, strict=True)]
        state = self._states[0]
        for row in rows:
            self._before(row, state)
        if len(rows) == self._count:
            result = self._model.step(items, state)
        else:
            part = state.take(rows)
            result = self._model.step(items, part)
            state.put(rows, part)
        results = [result.row(k) for k in range(len(rows))]
        return [self._after(row, result) for row, result in zip(rows, results, strict=True)]

    def step_budget(self, row: int) -> dict[str, float]:
        """Return the maximum cost of the newest step of this row, by field of Compute."""
        return {} if self._throttles is None else self._throttles[row].step_budget

    def begin(self, row: int, newest: int) -> None:
        """Continue numbering the persons of a feed after ``newest``."""
        if self._persons is not None:
            self._persons[row].begin(newest)

    def reset(self, row: int) -> None:
        """Reset the state of this feed."""
        if self._persons is not None:
            self._persons[row].reset()
        state, rows = self._at(row)
        state.reset(rows)

    def take(self, row: int) -> Any:
        """Return a copy of the network's state for this feed, as the state of one stream.

        Where persons are followed it is an initial state: they get new numbers after a restart.
        """
        state, rows = self._at(row)
        return state.take(rows)

    def put(self, row: int, saved: Any) -> None:
        """Set the network's state for a feed to one that ``take`` returned."""
        state, rows = self._at(row)
        state.put(rows, saved)

    def _step_one(self, row: int, item: Data) -> StepResult:
        persons, (state, _) = self._persons, self._at(row)
        throttle = self._before(row, state)
        if persons is not None and not isinstance(self._model, PersonsModel):
            return self._after(row, persons[row].step(item))
        result = self._model.step([item], state)
        if isinstance(throttle, TokenController):  # its budget is that of the detector
            throttle.after(result)
        if persons is not None:
            result = persons[row].step(item, result, looks_of(self._model, state))
        return self._after(row, result)

    def _before(self, row: int, state: Any) -> Controller | None:
        """Prepare a step for its budget; return the controller of this feed."""
        if self._throttles is None:
            return None
        self._throttles[row].before(state)
        return self._throttles[row]

    def _after(self, row: int, result: StepResult) -> StepResult:
        """Take the cost of a step of all networks of a feed, and return its result."""
        throttle = None if self._throttles is None else self._throttles[row]
        if isinstance(throttle, LookController):
            throttle.after(result)
        return result

    def _at(self, row: int) -> tuple[Any, list[int]]:
        return (self._states[row], [0]) if self._apart else (self._states[0], [row])
