"""From settings and a model card to what a source and a run are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costream.models.base import Model
from costream.runtime.pipeline import RunOptions
from costream.settings import DetectSettings
from costream.sinks.registry import drawing_box
from costream.sources.base import SourceOptions


def source_options(settings: DetectSettings, model: Model, formats: Sequence[str]) -> SourceOptions:
    """Give what a source is asked for, so that it fits the model and the formats."""
    return SourceOptions(
        start_s=settings.start_s,
        end_s=settings.end_s,
        box=model.box,
        drawing=drawing_box(formats),
        rate_hz=settings.rate_hz or model.card.rate_hz,
        frame_rate_hz=settings.rate_hz,
        layout=settings.layout,
        columns=settings.columns,
    )


def run_options(settings: DetectSettings, model: Model) -> RunOptions:
    """Give how a run differs from what the model card says."""
    timeline = model.card.timeline
    if settings.threshold is not None:
        # The card's lower bound belongs to the card's threshold.
        timeline = replace(timeline, threshold=settings.threshold, low=None)
    if settings.min_length_s is not None:
        timeline = replace(timeline, min_length_s=settings.min_length_s)
    if settings.min_gap_s is not None:
        timeline = replace(timeline, min_gap_s=settings.min_gap_s)
    return RunOptions(
        rate_hz=settings.rate_hz,
        timeline=timeline,
        top_k=settings.top_k,
        scores=settings.scores,
        wait=settings.wait,
        start_s=settings.start_s,
        end_s=settings.end_s,
        recorded={"dtype": settings.dtype},
    )
