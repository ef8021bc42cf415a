"""Source and run options, derived from the settings and the model card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from costream.checkpoints.card import Card, Timeline
from costream.errors import UsageError
from costream.models.base import Model
from costream.runtime.budget.budget import Budget, BudgetFile, parse_budget
from costream.settings import DetectSettings
from costream.sinks.registry import drawing_size, object_formats
from costream.sources.base import SourceOptions


@dataclass(frozen=True)
class RunOptions:
    """Options of a run that override the model card (None: as in the card)."""

    rate_hz: float | None = None  # steps per second
    threshold: float | None = None  # timeline: for all labels, as the next two
    min_length_s: float | None = None
    min_gap_s: float | None = None
    top_k: int = 3
    scores: bool = False  # every class probability in each prediction
    wait: bool = False  # no predictions before the model's window is full
    tokens: int | None = None  # token-gated models: most tokens computed per frame; None: all
    budget: Budget | BudgetFile | None = None  # token-gated models: per step
    track: bool = False  # assign ids to objects across frames
    start_s: float = 0.0
    end_s: float | None = None
    recorded: dict[str, Any] = field(default_factory=dict)  # more options for the header

    def timeline(self, card: Card) -> Timeline:
        """Return the card's timeline with this run's overrides."""
        timeline = card.timeline
        if self.threshold is not None:
            # The card's lower bound belongs to the card's threshold.
            timeline = replace(timeline, threshold=self.threshold, low=None, thresholds={})
        if self.min_length_s is not None:
            timeline = replace(timeline, min_length_s=self.min_length_s)
        if self.min_gap_s is not None:
            timeline = replace(timeline, min_gap_s=self.min_gap_s)
        return timeline


def source_options(settings: DetectSettings, model: Model, formats: Sequence[str]) -> SourceOptions:
    """Return the source options that the model and the output formats require."""
    return SourceOptions(
        start_s=settings.start_s,
        end_s=settings.end_s,
        box=model.box,
        sound=model.sound,
        beside=model.beside,
        channel=settings.channel,
        raw=settings.raw,
        drawing=drawing_size(formats),
        rate_hz=settings.rate_hz or model.card.rate_hz,
        frame_rate_hz=settings.rate_hz,
        layout=settings.layout,
        columns=settings.columns,
    )


def check_options(settings: DetectSettings, *, found: bool, gated: bool) -> None:
    """Raise UsageError for an option that does not apply to the model.

    ``found``: whether the model detects objects. ``gated``: whether it is token-gated.
    """
    every, none = "is not token-gated", "does not detect objects"
    options = (
        ("--tokens", settings.tokens, gated, every),
        ("--budget", settings.budget, gated, every),
        ("--track", settings.track or None, found, none),
        *((f"--format {name}", name, found, none) for name in object_formats(settings.formats)),
    )
    for name, told, fits, why in options:
        if told is not None and not fits:
            raise UsageError(
                f"{settings.model} {why}",
                where=name,
                hint="leave it out, or use another model, such as eventful-vitdet",
            )


def run_options(settings: DetectSettings, model: Model) -> RunOptions:
    """Return the run options that override the model card."""
    recorded: dict[str, Any] = {"dtype": settings.dtype}
    if settings.channel is not None:
        recorded["channel"] = settings.channel
    if settings.tokens is not None:
        recorded["tokens"] = settings.tokens
    if settings.budget is not None:
        recorded["budget"] = settings.budget
    if settings.track:
        recorded["track"] = True
    return RunOptions(
        rate_hz=settings.rate_hz,
        threshold=settings.threshold,
        min_length_s=settings.min_length_s,
        min_gap_s=settings.min_gap_s,
        top_k=settings.top_k,
        scores=settings.scores,
        wait=settings.wait,
        tokens=settings.tokens,
        budget=None if settings.budget is None else parse_budget(settings.budget),
        track=settings.track,
        start_s=settings.start_s,
        end_s=settings.end_s,
        recorded=recorded,
    )
