"""``costream bench zoo``: accuracy and cost of every network that fits an input."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from costream.bench.timing import state_size
from costream.core.clock import Tick, resample, tick_per_item
from costream.core.errors import ModelError, SourceError, UsageError
from costream.core.tables import Cell, Table
from costream.evaluation.evaluate_settings import EvaluateSettings
from costream.evaluation.predictions import PredictionCollector
from costream.evaluation.recordings import RecordingEvaluator
from costream.labels.reading import read_recordings
from costream.labels.recording import Recording
from costream.models.base import Model
from costream.models.catalogue import list_models, load_model
from costream.options.options import Options
from costream.runtime.options import source_options
from costream.runtime.pipeline import run
from costream.runtime.stop import StopHandler
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from costream.weights_io.card import Card

COLUMNS = (
    *("network", "weights", "mAP", "accuracy", "steps a second", "MMAC a step"),
    *("MMAC a second", "ms a step", "state kB", "delay s"),
)


@dataclass(frozen=True)
class ZooSettings:
    """The options of ``costream bench zoo``."""

    uri: str
    labels: Path | None
    weights: tuple[str, ...]  # files in addition to the available weights
    end_s: float | None
    device: str


def zoo_table(settings: ZooSettings, stop: StopHandler) -> Table:
    """Run every network over the input as ``detect`` does; sort the table by cost per second.

    The networks are the shipped ones, those in the user's cache, and ``weights``. mAP and accuracy
    are frame metrics (see ``frames.frame_scores``), for networks that have the labels; object
    detectors have none. Costs include the frontend, milliseconds are medians, a second is one
    of the recording. The state is the memory of a stream after its first step.
    Raises SourceError if the input cannot be read or fits no network, UsageError for unusable
    labels, ModelError for unusable ``weights``.
    """
    truth = None
    if settings.labels is not None:
        truth = read_recordings(Path(settings.uri), settings.labels)
    rows: list[tuple[Cell, ...]] = []
    left_out: list[str] = []
    for origin, name in _candidates(settings.weights):
        if stop.requested:
            break
        try:
            model = load_model(name, device=settings.device)
            rows.append(_row(model, origin, settings, truth, stop))
        except (ModelError, SourceError) as error:
            if origin == "given":
                raise
            left_out.append(f"left out: {Path(name).stem} ({error})")
    if not rows:
        raise SourceError("no available network fits this input", where=settings.uri)
    rows.sort(key=lambda row: float(row[COLUMNS.index("MMAC a second")] or 0))
    notes = (
        "MAC: multiply-accumulates of frontend and network. ms: median of both, on one thread.",
        "State: memory of a stream. mAP and accuracy: over frames, if the network has the labels.",
        *left_out,
    )
    return Table(f"zoo: {settings.uri}", COLUMNS, tuple(rows), notes, decimals=3)


def _candidates(weights: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the origin and the file of each network's weights."""
    for entry in list_models():
        if entry.path is not None:
            yield str(entry.origin), str(entry.path)
    for name in weights:
        yield "given", name


def _row(
    model: Model,
    origin: str,
    settings: ZooSettings,
    truth: Sequence[Recording] | None,
    stop: StopHandler,
) -> tuple[Cell, ...]:
    card = model.info.card
    options = source_options(Options(end_s=settings.end_s), model)
    kilobytes = _state_bytes(model, settings.uri, options) / 1e3
    listener = PredictionCollector()
    source = open_source(settings.uri, options)
    run(source, model, [listener], options=Options(scores=True, end_s=settings.end_s), stop=stop)
    precision, accuracy = _accuracy(card, listener, settings, truth)
    macs = statistics.fmean(listener.macs) / 1e6
    return (
        card.name,
        f"{origin}, random" if card.untrained else origin,
        precision,
        accuracy,
        card.rate_hz,
        macs,
        macs * card.rate_hz,
        statistics.median(listener.ms),
        kilobytes,
        card.delay_s,
    )


def _state_bytes(model: Model, uri: str, options: SourceOptions) -> int:
    """Return the bytes of a stream's state after its first step. SourceError if it does not fit."""
    source = open_source(uri, options)
    try:
        info = source.open()
        model.check(info)
        items = source.items()
        events: Iterable[Any] = tick_per_item(items)
        if info.kind != "audio":
            card = model.info.card
            events = resample(items, card.rate_hz, card.gap_tolerance_s, model.info.frames)
        state = model.init_state(1)
        for tick in islice((e for e in events if isinstance(e, Tick)), 1):
            model.step([tick.item], state)
        return state_size(state.tensors().values())
    finally:
        source.close()


def _accuracy(
    card: Card,
    listener: PredictionCollector,
    settings: ZooSettings,
    truth: Sequence[Recording] | None,
) -> tuple[float | None, float | None]:
    """Return mAP and accuracy of frames; None for a network that lacks the labels."""
    if truth is None or listener.silent or card.untrained:
        return None, None
    asked = EvaluateSettings(card.name, None, Path(settings.uri), settings.labels)
    judging = RecordingEvaluator(asked, card.labels, card.background, card.name)
    try:
        fitted = judging.fit(truth)
    except UsageError:
        return None, None
    frames = judging.scores([(recording, listener.predictions()) for recording in fitted])["frames"]
    if frames is None:
        return None, None
    precision, accuracy = frames["mAP"], frames["accuracy"]
    return (
        None if math.isnan(precision) else precision,  # all ground truth is background
        None if math.isnan(accuracy) else accuracy,
    )
