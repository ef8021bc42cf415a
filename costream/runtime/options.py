"""From settings and a model card to what a source and a run are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
        sound=model.sound,
        channel=settings.channel,
        raw=settings.raw,
        drawing=drawing_box(formats),
        rate_hz=settings.rate_hz or model.card.rate_hz,
        frame_rate_hz=settings.rate_hz,
        layout=settings.layout,
        columns=settings.columns,
    )


def run_options(settings: DetectSettings, model: Model) -> RunOptions:
    """Give how a run differs from what the model card says."""
    recorded: dict[str, Any] = {"dtype": settings.dtype}
    if settings.channel is not None:
        recorded["channel"] = settings.channel
    return RunOptions(
        rate_hz=settings.rate_hz,
        threshold=settings.threshold,
        min_length_s=settings.min_length_s,
        min_gap_s=settings.min_gap_s,
        top_k=settings.top_k,
        scores=settings.scores,
        wait=settings.wait,
        start_s=settings.start_s,
        end_s=settings.end_s,
        recorded=recorded,
    )
