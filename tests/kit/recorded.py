"""Recordings with labels, and what a made-up model says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from costream.core.records import Record, Segment, to_json
from costream.evaluation.evaluate_settings import EvaluateSettings
from costream.evaluation.predictions import ModelPredictions
from costream.evaluation.recordings import RecordingEvaluator
from costream.labels.recording import Label, Recording

NAMES = ("background", "walk", "sit")
RATE_HZ = 4.0


def recording(
    source: str,
    *labels: tuple[float, float | None, str],
    whole: bool = True,
    group: str | None = None,
) -> Recording:
    marks = tuple(Label(start, end, label, f"{source}, label") for start, end, label in labels)
    return Recording(source, marks, group or source, whole, None)


def told(
    scores: np.ndarray,
    segments: Sequence[tuple[float, float, str, float]] = (),
    *,
    delay_s: float = 0.0,
    first: int = 0,
) -> ModelPredictions:
    """Scores [T, K] of the rows from ``first`` on, and a timeline."""
    steps = np.arange(first, first + len(scores))
    return ModelPredictions(
        steps / RATE_HZ,
        scores,
        steps,
        tuple(Segment(*segment) for segment in segments),
        1 / RATE_HZ,
        delay_s,
        first + len(scores),
    )


def scored(
    pairs: Sequence[tuple[Recording, ModelPredictions]],
    names: Sequence[str] = NAMES,
    background: str | None = NAMES[0],
    **options: Any,
) -> dict[str, Any]:
    """Return the metrics of recordings and predictions; ``options``: of the settings."""
    settings = EvaluateSettings(model="m", weights=None, data=None, **options)
    evaluator = RecordingEvaluator(settings, names, background, "m")
    fitted = evaluator.fit([truth for truth, _ in pairs])
    return evaluator.scores([(r, found) for r, (_, found) in zip(fitted, pairs, strict=True)])


def alike(ones: Sequence[Record], others: Sequence[Record]) -> None:
    """Check that records are equal but for the last digits of their numbers.

    Frames that go through a frontend together are added up in another order.
    """
    assert [type(one) for one in ones] == [type(other) for other in others]
    for one, other in zip(ones, others, strict=True):
        (text, numbers), (same, there) = _split(to_json(one)), _split(to_json(other))
        assert text == same
        assert numbers == pytest.approx(there, abs=1e-5)


def _split(value: Any) -> tuple[Any, list[float]]:
    """Return a value without its fractional numbers, and these."""
    if isinstance(value, float):
        return None, [value]
    if isinstance(value, dict):
        value = list(value.items())
    if not isinstance(value, (list, tuple)):
        return value, []
    parts = [_split(part) for part in value]
    return [text for text, _ in parts], [x for _, numbers in parts for x in numbers]
