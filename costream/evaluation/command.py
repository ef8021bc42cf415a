"""``costream evaluate``: metrics of a model, or of results written earlier."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from costream.core.errors import ExitCode, OutputError, printable
from costream.core.records import plain
from costream.evaluation.clips import clip_scores
from costream.evaluation.evaluate_settings import EvaluateSettings, card_of
from costream.evaluation.metric_charts import draw
from costream.evaluation.metric_tables import to_text
from costream.evaluation.object_metrics import object_scores
from costream.evaluation.recordings import watch_scores
from costream.evaluation.stored_results import result_scores
from costream.evaluation.text_windows import window_scores
from costream.runtime.logs import logging_to
from costream.runtime.stop import StopHandler


@dataclass(frozen=True)
class Evaluation:
    """What ``evaluate --json`` prints for every task; the metrics of the task follow."""

    data: str  # recordings or results
    model: str
    weights_sha256: str | None = None  # absent for results
    failed: int = 0  # recordings that could not be read


def evaluate(settings: EvaluateSettings) -> ExitCode:
    """Print metrics to stdout, and write them as PNG if requested.

    Return PARTIAL if some recordings could not be read. Raises UsageError for unusable data or
    options, ModelError, SourceError, OutputError.
    """
    settings.check()
    with StopHandler() as stop, logging_to(settings.verbosity, "auto", None):
        result = _scores(settings, stop)
        if stop.exit_code is not None:
            return stop.exit_code
        result = {"data": str(settings.results or settings.data), **result}
        text = json.dumps(plain(result), indent=2) if settings.as_json else to_text(result)
        print(printable(text))
        if settings.png is not None:
            try:
                settings.png.write_bytes(draw(result))
            except OSError as error:
                raise OutputError(error.strerror or str(error), where=settings.png) from error
        return ExitCode.PARTIAL if result.get("failed") else ExitCode.OK


def _scores(settings: EvaluateSettings, stop: StopHandler) -> dict[str, Any]:
    objects = settings.results is None and card_of(settings).finds_objects
    settings.check_task(finds_objects=objects)
    if settings.results is not None:
        return result_scores(settings)
    if objects:
        return object_scores(settings, stop)
    if settings.labels is not None:
        return watch_scores(settings, stop)
    return window_scores(settings, stop) if settings.protocol else clip_scores(settings, stop)
