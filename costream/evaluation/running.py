"""Runs of a model over labelled examples, exactly as by ``detect``, collecting the scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costream.errors import SourceError
from costream.evaluation.joined import ConcatenatedSource
from costream.evaluation.predictions import ModelPredictions, PredictionCollector
from costream.labels.examples import Example, located
from costream.models.base import Model
from costream.runtime.options import RunOptions
from costream.runtime.pipeline import run
from costream.runtime.stop import StopHandler
from costream.sources.base import Source, SourceOptions
from costream.sources.registry import open_source


def run_alone(
    model: Model, example: Example, options: SourceOptions, rate_hz: float | None, stop: StopHandler
) -> ModelPredictions:
    """Return the predictions for one example as a stream of its own.

    SourceError, naming the example, if it cannot be read or ends before the first output.
    """
    listener = PredictionCollector()
    try:
        run_into(listener, model, _open(example, options), rate_hz, stop)
    except SourceError as error:
        raise located(error, example) from error
    return listener.told()


def run_into(
    listener: PredictionCollector,
    model: Model,
    source: Source,
    rate_hz: float | None,
    stop: StopHandler,
) -> None:
    """Run the model over a source as ``detect`` does.

    SourceError if it cannot be read or ends before the first output.
    """
    run(source, model, [listener], options=RunOptions(rate_hz=rate_hz, scores=True), stop=stop)
    if listener.silent and not stop.requested:
        uri = None if listener.header is None else listener.header.source
        raise SourceError("ends before the first output of the model", where=uri)


def run_joined(
    model: Model,
    examples: Sequence[Example],
    options: SourceOptions,
    rate_hz: float | None,
    stop: StopHandler,
) -> tuple[ModelPredictions, list[str]]:
    """Return the predictions for consecutive examples as one stream, and the label of each row."""
    parts = [_open(example, options) for example in examples]
    joined = ConcatenatedSource(parts, 1 / (rate_hz or model.card.rate_hz))
    listener = PredictionCollector()
    try:
        run_into(listener, model, joined, rate_hz, stop)
    except SourceError as error:
        raise located(error, examples[0]) from error
    told = listener.told()
    places = np.searchsorted(joined.starts, told.times + 1e-9, side="right") - 1
    return told, [examples[k].label for k in places]


def _open(example: Example, options: SourceOptions) -> Source:
    own = replace(options, start_s=example.start_s, end_s=example.end_s)
    return open_source(example.source, own)
