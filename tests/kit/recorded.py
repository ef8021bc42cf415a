"""Recordings with labels, and what a made-up model says of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costream.evaluation.predictions import ModelPredictions
from costream.labels.recording import Label, Recording
from costream.records import Segment

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
