"""``costream bench latency``: labels step by step, and of a sliding window."""

from __future__ import annotations

import math
import statistics
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from costream.bench.timing import quiet_torch
from costream.core.clock import Tick, resample, tick_per_item
from costream.core.errors import SourceError, UsageError
from costream.core.processor import processor
from costream.core.records import VideoFrame
from costream.core.tables import Cell, Table
from costream.labels.reading import read_recordings
from costream.labels.recording import Label, Recording, frame_labels
from costream.models.base import Model, StepResult
from costream.models.catalogue import load_model
from costream.options.options import Options
from costream.runtime.options import source_options
from costream.sources.uris import open_source

COLUMNS = (
    *("way", "acts", "labelled", "median s to label", "p90 s to label"),
    *("right at the time", "CPU s a minute"),
)


class TimedLabel(NamedTuple):
    """The best label of a step: the time that it is of, and when it was known, seconds."""

    about_s: float
    known_s: float
    label: str


Timed: TypeAlias = tuple[list[TimedLabel], float]  # and the processor time that they took, seconds


class Film(NamedTuple):
    """The steps of a labelled recording, in memory."""

    recording: Recording
    ticks: list[Tick]
    acts: list[Label]


def latency_table(
    data: Path,
    labels: Path | None,
    name: str,
    strides: Sequence[float],
    window_s: float = 16.0,
    rounds: int = 3,
) -> Table:
    """Label recordings step by step, and by a window of ``window_s``; return delays and costs.

    At each multiple of a stride, the network is run from its initial state over the last
    ``window_s`` of the recording; its steps are labelled when it has finished. The first window is
    as long as the stride, and what follows the last one has no label, as in hosted services. Both
    ways have the same network, frames and step rate; decoding is not counted.

    An act is labelled when the best label of a step within it is right; the time to it is counted
    from the act's start and includes the computation. Right at the time: share of the steps at
    which the newest label that is known is the true one. All rounds count, in turns.

    Raises UsageError for labels without acts of the model, SourceError for recordings that cannot
    be read, ModelError for weights that are missing.
    """
    model = load_model(name, device="cpu")
    card = model.info.card
    if card.finds_objects or model.info.follows:
        raise UsageError(f"{card.name} does not label a recording as a whole", where="-m")
    films = [_film(recording, model) for recording in read_recordings(data, labels)]
    if not any(film.acts for film in films):
        raise UsageError(f"no label is one of {card.name}", where=labels or data)
    ways = ["step by step", *(f"window of {window_s:g} s every {s:g} s" for s in strides)]
    found: list[list[tuple[Film, Timed]]] = [[] for _ in ways]
    with quiet_torch(1):
        for film in films:
            for _ in range(rounds):
                found[0].append((film, _step_by_step(model, film)))
                for k, stride_s in enumerate(strides, 1):
                    found[k].append((film, _windows(model, film, stride_s, window_s)))
    rows = tuple(_row(way, model, runs) for way, runs in zip(ways, found, strict=True))
    minutes = sum(film.ticks[-1].time_s - film.ticks[0].time_s for film in films) / 60
    note = (
        f"{card.name}, {len(films)} recordings of {minutes:.1f} minutes, {card.rate_hz:g} steps a"
        f" second; {processor()}, one thread, {rounds} rounds in turns."
    )
    return Table(f"latency: {data}", COLUMNS, rows, (note,))


def _film(recording: Recording, model: Model) -> Film:
    """Return the steps of a recording, decoded. SourceError if there are fewer than two."""
    card = model.info.card
    source = open_source(recording.source, source_options(Options(), model))
    try:
        info = source.open()
        model.check(info)
        items: Any = source.items()
        events = (
            tick_per_item(items)
            if info.kind == "audio"
            else resample(items, card.rate_hz, card.gap_tolerance_s, model.info.frames)
        )
        ticks = []
        for tick in events:
            if isinstance(tick, Tick):
                if isinstance(tick.item, VideoFrame):
                    _ = tick.item.rgb  # decoded and resized now
                ticks.append(tick)
    finally:
        source.close()
    if len(ticks) < 2:
        raise SourceError("too short to measure", where=recording.source)
    kept = tuple(label for label in recording.labels if label.label in card.labels)
    whole = recording.whole and len(kept) == len(recording.labels)
    acts = [label for label in kept if label.label != card.background]
    return Film(replace(recording, labels=kept, whole=whole), ticks, acts)


def _best(model: Model, tick: Tick, result: StepResult, known_s: float) -> list[TimedLabel]:
    """Return the best label of a step, or nothing at steps without an output."""
    if result.probabilities is None:
        return []
    card = model.info.card
    label = card.labels[int(result.probabilities[0].argmax())]
    return [TimedLabel(tick.time_s - card.delay_s, known_s, label)]


def _step_by_step(model: Model, film: Film) -> Timed:
    state, answers, total_s = model.init_state(1), list[TimedLabel](), 0.0
    for tick in film.ticks:
        began = time.process_time()
        result = model.step([tick.item], state)
        spent_s = time.process_time() - began
        answers += _best(model, tick, result, tick.time_s + spent_s)
        total_s += spent_s
    return answers, total_s


def _windows(model: Model, film: Film, stride_s: float, window_s: float) -> Timed:
    answers, total_s, start_s = list[TimedLabel](), 0.0, film.ticks[0].time_s
    step_s = 1 / model.info.card.rate_hz
    times = [tick.time_s - start_s + step_s for tick in film.ticks]  # when each has been seen
    for number in range(1, int(times[-1] / stride_s + 1e-9) + 1):
        end_s = number * stride_s
        first, last = (bisect_right(times, at + 1e-6) for at in (end_s - window_s, end_s))
        ticks = film.ticks[first:last]
        if not ticks:
            continue
        began = time.process_time()
        results = model.steps([tick.item for tick in ticks], model.init_state(1))
        spent_s = time.process_time() - began
        for tick, result in zip(ticks, results, strict=True):
            answers += _best(model, tick, result, start_s + end_s - step_s + spent_s)
        total_s += spent_s
    return answers, total_s


def _row(way: str, model: Model, runs: Sequence[tuple[Film, Timed]]) -> tuple[Cell, ...]:
    """Return name, acts, the share that is labelled, times to the label, and the cost."""
    delays: list[float | None] = []
    right: list[bool] = []
    total_s = length_s = 0.0
    for film, (answers, spent_s) in runs:
        delays += [_delay(act, answers) for act in film.acts]
        right += _right_at_the_time(film, answers, model)
        total_s += spent_s
        length_s += film.ticks[-1].time_s - film.ticks[0].time_s
    times = sorted(delay for delay in delays if delay is not None)
    return (
        way,
        len(delays),
        len(times) / len(delays),
        statistics.median(times) if times else None,
        times[math.ceil(0.9 * len(times)) - 1] if times else None,
        statistics.fmean(right) if right else None,
        60 * total_s / length_s,
    )


def _delay(act: Label, answers: Sequence[TimedLabel]) -> float | None:
    """Return the seconds from the start of an act to its first right label; None: there is none."""
    end_s = math.inf if act.end_s is None else act.end_s
    known = (
        answer.known_s
        for answer in answers
        if answer.label == act.label and act.start_s <= answer.about_s < end_s
    )
    return min((known_s - act.start_s for known_s in known), default=None)


def _right_at_the_time(film: Film, answers: Sequence[TimedLabel], model: Model) -> list[bool]:
    """Return for each step with a true label whether the newest label that is known is right.

    Before the first label, nothing is known, which is wrong.
    """
    card = model.info.card
    times = [tick.time_s for tick in film.ticks]
    true = frame_labels(film.recording, times, card.labels, card.background)
    newest = sorted(answers, key=lambda answer: (answer.known_s, answer.about_s))
    known = [answer.known_s for answer in newest]
    step_s, out = 1 / card.rate_hz, []
    for time_s, label in zip(times, np.asarray(true).tolist(), strict=True):
        if label >= 0:
            k = bisect_right(known, time_s + step_s)  # up to the next step
            out.append(k > 0 and newest[k - 1].label == card.labels[label])
    return out
