"""Base, pruned and int8 forms of a network side by side: ``costream bench compress``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from costream.bench.timing import quiet_torch, state_size, timing_cells
from costream.checkpoints.file import Weights
from costream.errors import UsageError
from costream.evaluation.compression import scores
from costream.models.build import build, model_class
from costream.models.int8 import to_int8
from costream.models.registry import read_model
from costream.models.verify import random_items
from costream.tables import Table

_STEPS = 12  # of a round
_COLUMNS = (
    *("form", "weights MB", "step MMAC", "us a step", "first decile", "of the first"),
    *("state KB", "score difference"),
)


@dataclass(frozen=True)
class _Form:
    name: str
    stored: Weights
    model: Any
    size: int  # bytes of its tensors


def compression_table(names: Sequence[str], rounds: int, threads: int) -> Table:
    """Compare models and their int8 forms: size, cost and time of a step, scores.

    ``names``: as for ``find_weights``; the first is what the others are compared with. Raises
    ModelError, and UsageError for models of other labels than the first.
    """
    with quiet_torch(threads):
        forms = [form for name in names for form in _forms(name)]
        labels = forms[0].stored.card.labels
        if other := [f.name for f in forms if f.stored.card.labels != labels]:
            raise UsageError(f"{other[0]} has other labels than {forms[0].name}")
        times = _measure(forms, rounds)
        sample, expected = scores(forms[0].stored)
        rows = []
        for form in forms:
            state, item = form.model.init_state(), random_items(form.model, 1)[0]
            macs = form.model.step([item], state).macs
            found = scores(form.stored)[1]
            alike = found.shape == expected.shape
            difference = float(np.abs(found - expected).max()) if alike else None
            median = float(np.median(times[forms[0].name]))
            cells = timing_cells(times[form.name], median)
            size = state_size(state.tensors().values())
            rows.append((form.name, form.size / 1e6, macs / 1e6, *cells, size / 1e3, difference))
    note = f"scores: of {sample}; a step is that of the whole model, of {_STEPS} a round"
    return Table(f"compression, {rounds} rounds in turns", _COLUMNS, tuple(rows), (note,))


def _forms(name: str) -> list[_Form]:
    stored = read_model(name)
    shown = Path(name).name
    forms = [stored]
    if "int8" not in stored.card.compression:
        card = replace(stored.card, compression={**stored.card.compression, "int8": {}})
        forms.append(Weights(card, "", to_int8(stored.tensors)))
    return [
        _Form(
            shown if form is stored else f"{shown}, int8",
            form,
            model_class(form.card)(form.card, *build(form.card, form.tensors)),
            state_size(form.tensors.values()),
        )
        for form in forms
    ]


def _measure(forms: Sequence[_Form], rounds: int) -> dict[str, list[float]]:
    """Return microseconds per step of each form, one number per round."""
    times: dict[str, list[float]] = {form.name: [] for form in forms}
    runs = [(form, form.model.init_state(), random_items(form.model, _STEPS)) for form in forms]
    for _ in range(rounds):
        for form, state, items in runs:
            form.model.step(items[:1], state)  # refill the caches
            began = time.perf_counter()
            for item in items:
                form.model.step([item], state)
            times[form.name].append((time.perf_counter() - began) / len(items) * 1e6)
    return times
