"""Forms of a network side by side, here and in other runtimes: ``costream bench compress``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from costream.bench.runtimes import ForeignStep, difference, foreign_steps
from costream.bench.timing import quiet_torch, state_size, timing_cells
from costream.core.errors import UsageError
from costream.core.tables import Table
from costream.evaluation.int8_compression import scores
from costream.models.build import build, model_class
from costream.models.catalogue import read_model
from costream.models.int8 import to_int8
from costream.models.verify import random_items
from costream.nn.fast import compile_blocks
from costream.weights_io.file import Weights

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
    chunk: int = 1  # items that a step takes together


def compression_table(names: Sequence[str], rounds: int, threads: int) -> Table:
    """Compare models, their int8 forms and, where they are installed, other runtimes.

    ``names``: as for ``find_weights``; the first is what the others are compared with. Raises
    ModelError, and UsageError for models of other labels than the first.
    """
    with quiet_torch(threads):
        short = [Path(name).name for name in names]
        shown = short if len({*short}) == len({*names}) else names
        forms = [
            form for name, called in zip(names, shown, strict=True) for form in _forms(name, called)
        ]
        if hops := any(form.model.info.sound for form in forms):
            compile_blocks()  # as a stream of many does by itself
        labels = forms[0].stored.card.labels
        if other := [f.name for f in forms if f.stored.card.labels != labels]:
            raise UsageError(f"{other[0]} has other labels than {forms[0].name}")
        others = {
            form.name: foreign_steps(form.stored, threads)
            for form in forms
            if "int8" not in form.stored.card.compression and form.chunk == 1
        }
        times = _measure(forms, others, rounds)
        sample, expected = scores(forms[0].stored)
        medians = {form.chunk: float(np.median(times[form.name])) for form in reversed(forms)}
        rows, median = [], medians[1]
        for form in forms:
            state, item = form.model.init_state(), random_items(form.model, 1)[0]
            macs = form.model.step([item], state).macs
            found = scores(form.stored)[1]
            off = float(np.abs(found - expected).max()) if found.shape == expected.shape else None
            cells = timing_cells(times[form.name], medians[form.chunk])
            size = state_size(state.tensors().values())
            rows.append((form.name, form.size / 1e6, macs / 1e6, *cells, size / 1e3, off))
            for step in others.get(form.name, ()):
                name = f"{form.name}, {step.name}"
                own = macs if step.whole else form.model.network_macs
                size = sum(array.nbytes for array in step.state.values())
                cells = timing_cells(times[name], median)
                off = difference(form.stored, step)
                rows.append((name, step.size / 1e6, own / 1e6, *cells, size / 1e3, off))
    notes = [f"scores: of {sample}; a step is one of the model with its frontend, {_STEPS} a round"]
    if hops:
        notes.append("steps of sound: the temporal model is compiled, as after 8,192 hops")
    if len(medians) > 1:
        notes.append(
            f"in files: {max(medians)} steps together, compared with the first model's in files"
        )
    notes.append("int8: all matrices, also those that 'models compress' leaves float16")
    if any(others.values()):
        notes.append("other runtimes: scores compared with the same weights here, on noise")
    return Table(f"compression, {rounds} rounds in turns", _COLUMNS, tuple(rows), tuple(notes))


def _forms(name: str, shown: str) -> list[_Form]:
    stored = read_model(name)
    forms = [stored]
    if "int8" not in stored.card.compression:
        card = replace(stored.card, compression={**stored.card.compression, "int8": {}})
        forms.append(Weights(card, "", to_int8(stored.tensors)))
    found = []
    for form in forms:
        own = shown if form is stored else f"{shown}, int8"
        model = model_class(form.card)(form.card, *build(form.card, form.tensors))
        found.append(_Form(own, form, model, state_size(form.tensors.values())))
        if model.info.chunk > 1:
            found.append(replace(found[-1], name=f"{own}, in files", chunk=model.info.chunk))
    return found


def _measure(
    forms: Sequence[_Form], others: Mapping[str, Sequence[ForeignStep]], rounds: int
) -> dict[str, list[float]]:
    """Return microseconds per step of each form, one number per round.

    ``others``: of some forms in other runtimes; named FORM, RUNTIME.
    """
    turns: dict[str, tuple[Callable[[Any], object], Sequence[Any], int]] = {}
    for form in forms:
        state, count = form.model.init_state(), max(_STEPS, form.chunk)
        noise = random_items(form.model, count)
        parts = [noise[k : k + form.chunk] for k in range(0, count, form.chunk)]
        turns[form.name] = partial(_step, form.model, state), parts, count
        for step in others.get(form.name, ()):
            given = list(step.inputs[:_STEPS])
            turns[f"{form.name}, {step.name}"] = step.step, given, len(given)
    times: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name, (step_once, items, steps) in turns.items():
            step_once(items[0])  # refill the caches
            began = time.perf_counter()
            for item in items:
                step_once(item)
            times[name].append((time.perf_counter() - began) / steps * 1e6)
    return times


def _step(model: Any, state: Any, items: Sequence[Any]) -> object:
    return model.steps(items, state) if len(items) > 1 else model.step(items, state)
