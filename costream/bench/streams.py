"""Benchmark of many streams: what a step of one of them costs when they step together."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import cycle, islice

from costream.bench.timing import state_size
from costream.core.errors import UsageError
from costream.core.records import Data
from costream.core.tables import Cell, Table
from costream.models.base import Model
from costream.models.streaming import StreamingModel
from costream.models.verify import random_items

COLUMNS = (
    *("streams", "ms a step", "us a stream", "x one alone", "frontend, us", "network, us"),
    *("in real time", "KB a stream"),
)
STREAMS = (1, 16, 64, 256)
_ITEMS = 8  # of noise, which the streams take in turn
_FILLED = 4  # steps before the clock runs


def streams_table(model: Model, counts: Sequence[int] = STREAMS, rounds: int = 10) -> Table:
    """Return the times of a step of 1 to 256 streams together, by turns; medians of ``rounds``.

    "In real time": how many streams one process steps at the model's rate, so many together;
    decoding is left out. UsageError for a model that steps one stream at a time.
    """
    if not isinstance(model, StreamingModel):
        raise UsageError(f"{model.info.card.name} has no streams that step together", where="-m")
    items = random_items(model, _ITEMS)
    groups = {count: _Group(model, items, count) for count in counts}
    times: dict[int, list[tuple[float, float, float]]] = {count: [] for count in counts}
    for _ in range(rounds):
        for count, group in groups.items():
            times[count].append(group.step())
    medians = {
        count: [statistics.median(part) for part in zip(*some, strict=True)]
        for count, some in times.items()
    }
    rate_hz = model.info.card.rate_hz
    first = next(iter(counts))
    alone = medians[first][0] / first
    rows: list[tuple[Cell, ...]] = []
    for count, (step_s, frontend_s, network_s) in medians.items():
        each_s = step_s / count
        parts = (round(1e6 * frontend_s / count, 1), round(1e6 * network_s / count, 1))
        numbers = (round(1e3 * step_s, 3), round(1e6 * each_s, 1), round(each_s / alone, 2), *parts)
        real = int(1 / (each_s * rate_hz))
        rows.append((count, *numbers, real, round(groups[count].state_bytes / count / 1e3, 1)))
    notes = (
        f"{rate_hz:g} steps a second, {rounds} rounds in turns, noise as input.",
        "In real time: streams that one process steps at that rate; without decoding.",
    )
    return Table(f"streams: {model.info.card.name}", COLUMNS, tuple(rows), notes)


class _Group:
    """So many streams of a model that step together."""

    def __init__(self, model: StreamingModel, items: Sequence[Data], count: int) -> None:
        self._model, self._state = model, model.init_state(count)
        turns = cycle(items)
        self._items = [list(islice(turns, count)) for _ in items]
        self._next = 0
        for _ in range(_FILLED):
            self.step()

    @property
    def state_bytes(self) -> int:
        return state_size(self._state.tensors().values())

    def step(self) -> tuple[float, float, float]:
        """Return the seconds of a step, of its frontend and of its network."""
        items = self._items[self._next % len(self._items)]
        self._next += 1
        began = time.perf_counter()
        result = self._model.step(items, self._state)
        return time.perf_counter() - began, result.frontend_s, result.network_s
