"""From settings and a model card to what a source and a run are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from costream.errors import UsageError
from costream.models.base import Model
from costream.models.card import Card, Timeline
from costream.runtime.budget import Budget
from costream.runtime.budgetfile import BudgetFile, parse_budget
from costream.settings import DetectSettings
from costream.sinks.registry import drawing_box, for_objects_only
from costream.sources.base import SourceOptions


@dataclass(frozen=True)
class RunOptions:
    """How a run differs from what the model card says (None: as the card says)."""

    rate_hz: float | None = None  # steps a second
    threshold: float | None = None  # of every label; of the timeline, and so are the next two
    min_length_s: float | None = None
    min_gap_s: float | None = None
    top_k: int = 3
    scores: bool = False  # every class probability in each prediction
    wait: bool = False  # no predictions before the model's window is full
    tokens: int | None = None  # token-gated models: to be computed of a frame, at most; None: all
    budget: Budget | BudgetFile | None = None  # token-gated models: of a step
    track: bool = False  # give objects ids through the frames
    start_s: float = 0.0
    end_s: float | None = None
    recorded: dict[str, Any] = field(default_factory=dict)  # more options for the header

    def timeline(self, card: Card) -> Timeline:
        """Give how the probabilities of this card's labels become segments."""
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
    """Give what a source is asked for, so that it fits the model and the formats."""
    return SourceOptions(
        start_s=settings.start_s,
        end_s=settings.end_s,
        box=model.box,
        sound=model.sound,
        beside=model.beside,
        channel=settings.channel,
        raw=settings.raw,
        drawing=drawing_box(formats),
        rate_hz=settings.rate_hz or model.card.rate_hz,
        frame_rate_hz=settings.rate_hz,
        layout=settings.layout,
        columns=settings.columns,
    )


def check_options(settings: DetectSettings, *, found: bool, gated: bool) -> None:
    """Raise UsageError for an option that is not for the model.

    ``found``: whether it finds objects. ``gated``: whether it computes as many tokens as it is
    told.
    """
    every, none = "computes every token", "finds no objects"
    options = (
        ("--tokens", settings.tokens, gated, every),
        ("--budget", settings.budget, gated, every),
        ("--track", settings.track or None, found, none),
        *((f"--format {name}", name, found, none) for name in for_objects_only(settings.formats)),
    )
    for name, told, fits, why in options:
        if told is not None and not fits:
            raise UsageError(
                f"{settings.model} {why}",
                where=name,
                hint="leave it out, or use another model, such as eventful-vitdet",
            )


def run_options(settings: DetectSettings, model: Model) -> RunOptions:
    """Give how a run differs from what the model card says."""
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
