"""The card of a detector that a user has taught, and what was chosen on validation pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from costream.checkpoints.weights_file import Weights
from costream.evaluation.detection import Found, Truth, precision_interval
from costream.models.card import Card, Timeline
from costream.training.family import EARLY, TrainSettings
from costream.training.objects_report import rounded_scores
from costream.training.objects_threshold import best_threshold
from costream.training.own_stills import Still, count_boxes

ENOUGH = 10  # validation objects to choose a threshold by


@dataclass(frozen=True)
class Told:
    """What is found on the validation pictures, by name, and what is there.

    ``history``: what was seen on the way, see ``Watch``.
    """

    found: dict[str, list[Found]]  # of the network first
    truth: list[Truth]
    groups: list[int]  # of which group each picture is
    history: list[dict[str, float]]


def describe(
    card: Card,
    told: Told,
    divided: Sequence[Sequence[Still]],
    base: Weights,
    settings: TrainSettings,
) -> Card:
    """Give the card with what it was trained on and how it does on the validation pictures."""
    training, checks = divided
    counts = count_boxes(training)
    listed = ", ".join(f"{label} {counts[label]}" for label in card.labels)
    origin = None if settings.scratch else f"{base.card.name} ({base.card.licence})"
    start = f"started from {origin}" if origin else "started from nothing"
    start += ", backbone as it was" if origin and not settings.fine_tune else ""
    timeline = chosen(card, told) if checks else card.timeline
    how = [EARLY] if checks else []
    how += ["So were thresholds."] if timeline != card.timeline else []
    return replace(
        card,
        timeline=timeline,
        description=f"Own objects: {', '.join(card.labels)}.",
        trained_on=f"{len(training)} own pictures with {counts.total()} boxes ({listed}), {start};"
        f" seed {settings.seed}.",
        split=f"{len(training)} pictures to train, {len(checks)} to validate, by file or group."
        + "".join(f" {sentence}" for sentence in how),
        limits="Knows the places and cameras of its pictures; validated on few of them.",
        licence="That of the pictures" + (f" and of {origin}" if origin else ""),
        metrics={"validation": _metrics(card, told)} if checks else {},
    )


def chosen(card: Card, told: Told) -> Timeline:
    """Give the timeline with the scores from which on F1 is best on the validation pictures.

    Where there are ``ENOUGH`` objects; and of a label, where there are so many of its own.
    """
    own = told.found[card.name]
    objects = sum(len(one.labels) for one in told.truth)
    if objects < ENOUGH or not any(len(one.scores) for one in own):
        return card.timeline
    thresholds = {}
    for number, label in enumerate(card.labels):
        found = [Found(*(part[one.labels == number] for part in one)) for one in own]
        truth = [Truth(*(part[one.labels == number] for part in one)) for one in told.truth]
        enough = sum(len(one.labels) for one in truth) >= ENOUGH
        if enough and any(len(one.scores) for one in found):
            thresholds[label] = round(best_threshold(found, truth), 2)
    threshold = round(best_threshold(own, told.truth), 2)
    return replace(card.timeline, threshold=threshold, low=None, thresholds=thresholds)


def _metrics(card: Card, told: Told) -> dict[str, Any]:
    rows = {}
    for name, found in told.found.items():
        rows[name] = rounded_scores(found, told.truth, card.labels)
        limits = precision_interval(found, told.truth, told.groups, card.labels)
        if limits is not None:
            rows[name]["AP50_95"] = [round(limit, 4) for limit in limits]
    return rows
