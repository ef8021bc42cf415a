"""The model card of an imported network: labels, rate, and where its settings come from."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from costream.core.errors import ModelError
from costream.core.label_sets import KNOWN, Labels, custom_labels, read_labels
from costream.core.records import (
    AUDIO_TAGGING,
    IMAGE_CLASSIFICATION,
    OBJECT_DETECTION,
    POSE_ESTIMATION,
)
from costream.nn.video3d.sizes import TASK
from costream.weights_io.card import Card
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.tensor_rules import ImportedNetwork

log = logging.getLogger("costream")
# The data set that a checkpoint without class names was trained on, by task and number of classes.
_DATA_SETS = {
    ("online action detection", 22): "thumos14",
    ("online action detection", 31): "tvseries",
    ("online action detection", 107): "fineaction",
    ("sound classification", 10): "gtzan",
    (OBJECT_DETECTION, 80): "coco",
    (OBJECT_DETECTION, 30): "imagenet-vid",
    (AUDIO_TAGGING, 521): "audioset-521",
    (AUDIO_TAGGING, 527): "audioset-527",
    (TASK, 400): "kinetics-400",
    (TASK, 600): "kinetics-600",
    (TASK, 97): "epic-verbs",
    (IMAGE_CLASSIFICATION, 1000): "imagenet-1k",
    ("skeleton action recognition", 60): "ntu-60",
    ("skeleton action recognition", 120): "ntu-120",
    ("skeleton action recognition", 400): "kinetics-400",
}


def imported_card(
    name: str, imported: ImportedNetwork, settings: ImportSettings, summary: str
) -> Card:
    """Return the card of an imported network called ``name``.

    ``summary``: what the checkpoint is, from its importer. Settings that do not fit the network
    are collected in ``settings``. Raises ModelError for labels of an encoder.
    """
    common: dict[str, Any] = {
        "name": name,
        "architecture": imported.architecture,
        "arguments": imported.arguments,
        "description": f"Imported from a checkpoint of: {summary}.",
        "paper": imported.paper,
        "limits": imported.limits,
        **settings.terms,
    }
    if imported.num_classes is None:
        for key in ("labels", "background"):
            if settings.get(key) is not None:
                raise ModelError(f"--config {key}: not applicable, this encoder has no classifier")
        # An encoder is used from Python; a rate of 0 means unknown.
        task = POSE_ESTIMATION if imported.task == POSE_ESTIMATION else "encoder"
        return Card(task=task, labels=(), rate_hz=settings.get("rate_hz") or 0.0, **common)
    labels = _labels(imported, settings)
    background = settings.get("background") or labels.background
    if background is not None and background not in labels.names:
        settings.reject(f"background={background} is not one of the labels")
    rate_hz = _rate_hz(imported, labels, settings)
    return Card(
        task=imported.task,
        labels=labels.names,
        background=background,
        rate_hz=rate_hz,
        delay_s=imported.delay_steps / rate_hz,
        frontend=imported.frontend,
        frontend_arguments=imported.frontend_arguments,
        timeline=imported.timeline,
        **common,
    )


def with_notes(card: Card, *settings: ImportSettings) -> Card:
    """Return a card whose limits name the settings that neither user nor checkpoint gave.

    They are logged, and so are classes without names.
    """
    if card.labels and card.labels == _numbered(len(card.labels)):
        log.warning(
            "the classes have no names and are called %s to %s; name them with --config"
            " labels=FILE.txt, one name per line",
            *(card.labels[0], card.labels[-1]),
        )
    notes = []
    for origin, pairs in {k: v for each in settings for k, v in each.taken.items()}.items():
        log.info("took %s from %s; override with --config KEY=VALUE", pairs, origin)
        notes.append(f"Not in the checkpoint, taken from {origin}: {pairs}.")
    return replace(card, limits=" ".join(filter(None, (card.limits, *notes))))


def _rate_hz(imported: ImportedNetwork, labels: Labels, settings: ImportSettings) -> float:
    """Return the steps per second: as set, of the data set of the labels, or of the network."""
    same = settings.get("rate_hz") == labels.rate_hz
    if same and settings.suggested("rate_hz") and not settings.suggested("labels"):
        settings.forget("rate_hz")  # it follows from the labels, and needs no note
    usual = labels.rate_hz or imported.rate_hz
    rate_hz: float = settings.get("rate_hz") or usual or settings.require("rate_hz")
    return rate_hz


def _labels(imported: ImportedNetwork, settings: ImportSettings) -> Labels:
    """Return the labels: of the settings, the checkpoint or its data set, or numbered classes."""
    chosen: str | None = settings.get("labels")
    if chosen is None and imported.labels is not None:
        labels = custom_labels(imported.labels, "class_index of the checkpoint")
        return next((known for known in KNOWN.values() if known.names == labels.names), labels)
    classes = imported.num_classes or 0
    data_set = _DATA_SETS.get((imported.task, classes))
    if data_set is not None:
        settings.suggest({"labels": data_set})
        chosen = settings.get("labels")
    if chosen is None:
        return Labels(_numbered(classes), None, None)
    labels = read_labels(chosen)
    if len(labels.names) != classes:
        settings.reject(
            f"labels={chosen} has {len(labels.names)} names, the checkpoint {classes} classes"
        )
    return labels


def _numbered(classes: int) -> tuple[str, ...]:
    return tuple(f"class {k}" for k in range(classes))
