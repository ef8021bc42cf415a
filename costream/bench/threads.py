"""Benchmark of threads: what a step of one stream costs with one, two and four."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from costream.core.errors import UsageError
from costream.core.tables import Cell, Table
from costream.models.catalogue import load_model
from costream.runtime.threads import step_times

# One of each family whose weights are shipped.
MODELS = ("cooadtr", "cooadtr-b2", "oadtr", "cosounds", "costgcn", "eventful-vitdet")
THREADS = (1, 2, 4)
_BLOCK_S = 0.03  # of steps in a turn, at most


def threads_table(
    models: Sequence[str] = MODELS, counts: Sequence[int] = THREADS, rounds: int = 10
) -> Table:
    """Return the milliseconds of a step of each model by number of threads, in turns.

    Medians of ``rounds``, of wall time: what threads save is there. "best": the number of the
    fastest. UsageError for a model of several inputs.
    """
    rows: list[tuple[Cell, ...]] = []
    before = torch.get_num_threads()
    try:
        for name in models:
            times = step_times(load_model(name, device="cpu"), counts, rounds, _BLOCK_S)
            if not times:
                raise UsageError(f"{name} takes no noise: it has more than one input", where="-m")
            medians = {count: 1e3 * step_s for count, step_s in times.items()}
            first = medians[counts[0]]
            ratios = (round(medians[count] / first, 2) for count in counts[1:])
            best = min(counts, key=medians.__getitem__)
            rows.append((name, *(round(medians[count], 3) for count in counts), *ratios, best))
    finally:
        torch.set_num_threads(before)
    columns = (
        "model",
        *(f"{count} thread{'s' * (count > 1)}, ms" for count in counts),
        *(f"{count} to {counts[0]}" for count in counts[1:]),
        "best",
    )
    notes = (f"One stream, {rounds} rounds in turns, noise as input, frontend included.",)
    return Table("threads", columns, tuple(rows), notes, decimals=2)
