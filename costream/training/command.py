"""``costream train``: train a model of custom classes from a few labelled recordings.

This module holds the steps common to all inputs; the ``trainer`` modules of
``skeleton``, ``audio`` and ``video`` hold the rest.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from costream.checkpoints.card import Card, Timeline
from costream.checkpoints.file import Weights, read_weights
from costream.errors import ExitCode, UsageError
from costream.evaluation.clips import sequence_scores, without
from costream.frontends.base import frontend_class
from costream.labels.examples import Example, split, to_examples
from costream.labels.reading import read_recordings
from costream.models.build import build, new_network, save_model
from costream.models.fitting import source_kind
from costream.models.registry import find_weights
from costream.models.spec import is_gated
from costream.records import OBJECT_DETECTION
from costream.runtime.setup import logging_to, prepare_torch
from costream.runtime.stop import StopHandler
from costream.training.audio import trainer as audio_trainer
from costream.training.base import (
    CHECKPOINT_SUFFIXES,
    EARLY_STOPPING_NOTE,
    CustomClassTrainer,
    TrainResult,
    TrainSettings,
    Workspace,
    log_resume_hint,
    training_checkpoint,
    untrainable_error,
    warn_of_unchecked,
)
from costream.training.calibration import Calibration, at_temperature, calibrate
from costream.training.card_text import card_text, sequence_table
from costream.training.feature_cache import FeatureCache, example_key
from costream.training.objects.trainer import train_objects
from costream.training.report.classes import SequenceReport, own_report
from costream.training.skeleton import trainer as skeleton_trainer
from costream.training.skeleton.examples import MIN_STEPS
from costream.training.video import trainer as video_trainer

log = logging.getLogger("costream")

# Classifier layers of token and skeleton networks.
_CLASSIFIERS = ("network.head.", "network.anticipation_head.", "network.fc.", "network.reading.")


def train(settings: TrainSettings) -> ExitCode:
    """Train a model, write its weights, card and report, and print their paths.

    Until then only ``OUTPUT.partial`` exists, from which the same command resumes after an
    interruption. Raises UsageError, SourceError, ModelError, OutputError.
    """
    with StopHandler(), logging_to(settings.verbosity, "auto", None):
        paths = [settings.output.with_suffix(end) for end in (".safetensors", ".md", ".html")]
        for path in paths:
            if path.exists() and not settings.overwrite:
                raise UsageError("already exists", where=path, hint="--overwrite replaces it")
        prepare_torch(settings.threads)
        base = read_weights(find_weights(settings.model, settings.weights))
        # Untrained base weights mean training from scratch, whatever was requested.
        settings = replace(settings, scratch=settings.scratch or base.card.untrained)
        if base.card.task == OBJECT_DETECTION:
            return train_objects(settings, base, paths)
        settings = replace(settings, fine_tune=bool(settings.fine_tune))
        trainer = trainer_of(base.card)
        trainer.check(base.card, settings)
        recordings = read_recordings(settings.data, settings.labels, settings.group)
        labels = trainer.labels({x.label for r in recordings for x in r.labels}, base.card)
        examples = long_enough(to_examples(recordings, labels[0]), labels[0], base.card)
        split_examples = parts(examples, settings)
        log.info("%d examples to train on, %d to validate with", *map(len, split_examples))
        network, frontend, card = student(base, labels, settings)
        cache = FeatureCache(settings.cache, card, frontend)
        rows = [[e.source, e.label, e.start_s, e.end_s, e.group, example_key(e)] for e in examples]
        partials = [training_checkpoint(settings, base, rows, end) for end in CHECKPOINT_SUFFIXES]
        workspace = Workspace(cache, *partials)
        with log_resume_hint(partials):
            result = trainer.fit(network, frontend, card, split_examples, settings, workspace)
        cache.prune()
        calibration = calibrated(result, network, card, split_examples[1])
        origin = None if settings.scratch else f"{base.card.name} ({base.card.licence})"
        card = describe(card, result, calibration, split_examples, settings, origin)
        save_model(paths[0], card, network, frontend)
        paths[1].write_text(card_text(card, sequence_table), encoding="utf-8")
        paths[2].write_text(
            report_page(card, result, calibration, split_examples, paths[0]), encoding="utf-8"
        )
        for partial in partials:
            partial.remove()
        _print_summary(card, paths[0], len(split_examples[1]))
        return ExitCode.OK


def long_enough(examples: Sequence[Example], background: str, card: Card) -> list[Example]:
    """Return the examples without background stretches of fewer than ``MIN_STEPS`` steps."""
    return [
        e
        for e in examples
        if e.label != background
        or e.end_s is None
        or (e.end_s - e.start_s) * card.rate_hz >= MIN_STEPS
    ]


def trainer_of(card: Card) -> CustomClassTrainer:
    """Return the trainer of a model. ModelError if it takes features or has token gates."""
    kind = source_kind(None if card.frontend is None else frontend_class(card.frontend))
    if kind == "skeleton":
        return skeleton_trainer
    if kind == "audio":
        return audio_trainer
    if kind == "video" and not is_gated(card.architecture):
        return video_trainer
    raise untrainable_error(card)


def parts(
    examples: Sequence[Example], settings: TrainSettings
) -> tuple[list[Example], list[Example]]:
    """Return the training and validation examples, and warn of classes with too few.

    UsageError for fewer than two classes.
    """
    labels = {e.label for e in examples}
    if len(labels) < 2:
        raise UsageError(
            f"only one class ({labels.pop()})",
            where=settings.labels or settings.data,
            hint="at least two classes are needed",
        )
    training, held_out = split(examples, settings.validation, settings.seed)
    warn_of_unchecked(labels - {e.label for e in held_out}, settings)
    return training, held_out


def student(
    base: Weights, labels: tuple[str, ...], settings: TrainSettings
) -> tuple[nn.Module, nn.Module, Card]:
    """Return network, frontend and card for these labels, the first of which is the background.

    The network takes all but the classifier from the given weights, or with ``scratch`` only the
    architecture; the frontend is always that of the given weights.
    """
    card = replace(
        base.card,
        name=settings.output.stem,
        labels=labels,
        arguments={
            **base.card.arguments,
            **trainer_of(base.card).ARGUMENTS,
            "num_classes": len(labels),
        },
        background=labels[0],
        # Settings chosen for other labels do not apply to these.
        timeline=base.card.timeline if labels == base.card.labels else Timeline(),
        temperature=1.0,
        metrics={},
        sample={},
        costs={},
    )
    torch.manual_seed(settings.seed)
    merged = {k: v for k, v in base.tensors.items() if k.startswith("frontend.")}
    for key, fresh in new_network(card).state_dict().items():
        name = f"network.{key}"
        stored = None if settings.scratch else base.tensors.get(name)
        # A stored classifier fits only its own labels.
        kept = labels == base.card.labels or not name.startswith(_CLASSIFIERS)
        fits = stored is not None and kept and stored.shape == fresh.shape
        merged[name] = stored if stored is not None and fits else fresh
    network, frontend = build(card, merged)
    if frontend is None:
        raise untrainable_error(base.card)
    return network, frontend, card


def calibrated(
    result: TrainResult, network: nn.Module, card: Card, checks: Sequence[Example]
) -> Calibration | None:
    """Return the temperature and timeline chosen on validation streams; None without streams."""
    if not result.streams:
        return None
    rate_hz = card.rate_hz / int(getattr(network, "stride", 1))
    counts = Counter(e.label for e in checks)
    return calibrate([result.streams], card.labels, rate_hz, card.timeline, examples=counts)


def report_page(
    card: Card,
    result: TrainResult,
    calibration: Calibration | None,
    examples: tuple[Sequence[Example], Sequence[Example]],
    path: Path,
) -> str:
    """Return the training report as HTML."""
    trained, checked = (Counter(e.label for e in some) for some in examples)
    report = SequenceReport(
        card, path.name, trained, checked, result.history, result.streams, calibration
    )
    return own_report(report)


def describe(
    card: Card,
    result: TrainResult,
    calibration: Calibration | None,
    examples: tuple[Sequence[Example], Sequence[Example]],
    settings: TrainSettings,
    origin: str | None,
) -> Card:
    """Return the card with its training data and validation metrics."""
    training, checks = examples
    if calibration is not None:
        card = replace(card, timeline=calibration.timeline, temperature=calibration.temperature)
    how = [EARLY_STOPPING_NOTE] if checks else []
    how += [] if calibration is None else [calibration.how]
    counts = Counter(e.label for e in training)
    listed = ", ".join(f"{label} {counts[label]}" for label in card.labels if counts[label])
    groups = f"by the column {settings.group!r}" if settings.group else "by file or group"
    start = f"started from {origin}" if origin else "trained from scratch"
    start += ", frontend fine-tuned" if settings.fine_tune else ""
    return replace(
        card,
        description=f"Custom classes: {', '.join(sorted(counts))}.",
        trained_on=f"{len(training)} user examples ({listed}), {start}; seed {settings.seed}.",
        split=f"{len(training)} examples to train, {len(checks)} to validate, {groups}."
        + "".join(f" {sentence}" for sentence in how),
        limits="Fitted to the people, places and sensors of its examples; validated on few.",
        licence="Licence of the examples" + (f" and of {origin}" if origin else ""),
        metrics={"validation": _validation(card, result, examples)} if checks else {},
    )


def _validation(
    card: Card, result: TrainResult, examples: tuple[Sequence[Example], Sequence[Example]]
) -> dict[str, Any]:
    training, checks = examples
    labels = np.array([card.labels.index(e.label) for e in checks])
    groups = [e.group for e in checks]

    def scores(probabilities: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
        if 0 not in labels:  # no example of the background
            probabilities = [without(p, 0) for p in probabilities]
        return {
            "sequences": len(checks),
            **sequence_scores(probabilities, labels, groups, card.labels),
        }

    guess = card.labels.index(Counter(e.label for e in training).most_common(1)[0][0])
    own = [at_temperature(p, card.temperature) for p in result.predictions]
    return {
        card.name: scores(own),
        **{name: scores(p) for name, p in result.baselines.items()},
        "majority": {"top1": float((labels == guess).mean())},
    }


def _print_summary(card: Card, path: Path, checks: int) -> None:
    print(f"{path}: {', '.join(card.labels)}")
    if checks:
        scores = card.metrics["validation"]
        others = [f"{name} {s['top1']:.3f}" for name, s in scores.items() if name != card.name]
        top1 = scores[card.name]["top1"]
        print(f"validation: top-1 {top1:.3f} over {checks} examples ({', '.join(others)})")
    print(f"report: {path.with_suffix('.html')}")
