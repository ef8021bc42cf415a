"""Trainer of custom classes from sequences: the common part of video, audio and skeletons."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.core.errors import UsageError
from costream.evaluation.clips import sequence_scores, without
from costream.evaluation.metrics.sequence_metrics import fuse
from costream.labels.copies import join_copies
from costream.labels.examples import Example, split, to_examples
from costream.labels.reading import read_recordings
from costream.labels.recording import BACKGROUNDS, Recording
from costream.models.build import build, new_network
from costream.training.adaptation import CLASSIFIERS, Adaptation, with_facts
from costream.training.base import (
    EARLY_STOPPING_NOTE,
    TrainedModel,
    TrainingData,
    TrainSettings,
    TrainSetup,
    Workspace,
    background_first,
    base_rows,
    base_timeline,
    in_classes,
    untrainable_error,
    warn_of_unchecked,
)
from costream.training.card_text import card_text, sequence_table
from costream.training.feature_cache import example_key
from costream.training.open_examples import MIN_STEPS
from costream.training.report.sequence_report import SequenceReport, sequence_report
from costream.training.stream_calibration import StreamPredictions, at_temperature, calibrate
from costream.training.verdict import MAJORITY, Held, classification_verdict, group_text
from costream.weights_io.card import Card
from costream.weights_io.file import Weights

log = logging.getLogger("costream")

_CLASSIFIERS = tuple(f"network.{name}." for name in CLASSIFIERS)


@dataclass(frozen=True)
class TrainResult:
    """Results of a training, except the weights.

    ``predictions``: probabilities [T, K] of each validation example; ``streams``: predictions for
    streams of concatenated examples; ``baselines``: ``predictions`` of the baselines, by name.
    """

    predictions: list[npt.NDArray[Any]] = field(default_factory=list)
    streams: list[StreamPredictions] = field(default_factory=list)
    baselines: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)  # see ``EarlyStopping``
    adaptation: Adaptation | None = None
    setup: TrainSetup | None = None  # with another network; None: as before
    how: str = ""  # what was chosen, for the card
    reason: str = ""  # why the result is as it is, for the verdict
    split: str = ""  # how examples were held out in turn; empty: the validation examples were
    lines: tuple[str, ...] = ()  # printed before the metrics
    # Predictions for validation clips, each of which begins a stream.
    alone: list[StreamPredictions] = field(default_factory=list)


def labelled_recordings(settings: TrainSettings) -> list[Recording]:
    """Return the recordings of ``data`` with their ``labels``, then those of ``also``.

    ``group`` is a column of the tables among them; elsewhere each recording is a group. Raises
    UsageError and SourceError as ``read_recordings``.
    """
    parts = [(settings.data, settings.labels)]
    if settings.also is not None:
        parts.append((settings.also, None))
    folders = [(labels or data or Path()).is_dir() for data, labels in parts]
    found: list[Recording] = []
    for (data, labels), is_folder in zip(parts, folders, strict=True):
        group = None if is_folder and not all(folders) else settings.group
        found += read_recordings(data, labels, group, settings.columns)
    return found


class SequenceTrainer(ABC):
    """Trainer of classes of recordings, or of parts of them; see ``CustomClassTrainer``."""

    metric = ("top1", "top-1", "clips")
    command = "detect"
    backgrounds: ClassVar[tuple[str, ...]] = BACKGROUNDS  # names of classes that are not events
    arguments: ClassVar[
        Mapping[str, Any]
    ] = {}  # of the trained network, where they differ from its card

    def labels(self, found: set[str], card: Card) -> tuple[str, ...]:
        """Return the labels to learn, the background first. ``found``: labels of the examples.

        Classes named like the model's background or like one of ``backgrounds`` become one. If they
        are all those of the model, they have its order.
        """
        backgrounds = () if card.background is None else (card.background,)
        labels = background_first(found, (*backgrounds, *self.backgrounds))
        is_same = {*labels} == {*card.labels} and labels[0] == card.labels[0]
        return card.labels if is_same else labels

    @abstractmethod
    def fit(self, setup: TrainSetup, data: TrainingData, workspace: Workspace) -> TrainResult:
        """Train the network; return the results."""

    def remedy(self, card: Card, settings: TrainSettings) -> str:
        """Return what to do for a better result."""
        return "record more clips"

    def check(self, card: Card, settings: TrainSettings) -> TrainSettings:
        """Return the settings with defaults.

        Raises ModelError for a model that cannot be trained, UsageError for wrong options.
        """
        return replace(settings, fine_tune=bool(settings.fine_tune))

    def read(self, card: Card, settings: TrainSettings) -> TrainingData:
        """Return the examples, and warn of classes with too few.

        Background of fewer than ``MIN_STEPS`` steps is left out. UsageError for
        unusable data or fewer than two classes.
        """
        recordings = labelled_recordings(settings)
        labels = self.labels({x.label for r in recordings for x in r.labels}, card)
        examples = [
            e
            for e in in_classes(to_examples(recordings, labels[0]), labels)
            if e.label != labels[0]
            or e.end_s is None
            or (e.end_s - e.start_s) * card.rate_hz >= MIN_STEPS
        ]
        present = {e.label for e in examples}
        if len(present) < 2:
            raise UsageError(
                f"only one class ({present.pop()})" if present else "no examples are left",
                where=settings.labels or settings.data,
                hint="at least two classes are needed",
            )
        training, held_out = split(join_copies(examples), settings.validation, settings.seed)
        warn_of_unchecked(present - {e.label for e in held_out}, settings)
        log.info("%d examples to train on, %d to validate with", len(training), len(held_out))
        rows = [[e.source, e.label, e.start_s, e.end_s, e.group, example_key(e)] for e in examples]
        return TrainingData(labels, training, held_out, rows)

    def setup(self, base: Weights, labels: tuple[str, ...], settings: TrainSettings) -> TrainSetup:
        """Return the network to train for these labels, the first of which is the background.

        The network starts from the base weights, its classifier for the labels that the base has
        too; with ``scratch`` only the architecture is used. The frontend always has the base
        weights.
        """
        card = replace(
            base.card,
            name=settings.output.stem,
            labels=labels,
            arguments={**base.card.arguments, **self.arguments, "num_classes": len(labels)},
            background=labels[0],
            timeline=base_timeline(labels, base.card),
            temperature=1.0,
            familiarity=base.card.familiarity if labels == base.card.labels else None,
            metrics={},
            sample={},
            costs={},
            compression={},
        )
        network, frontend = build(card, fitting_tensors(card, base, settings))
        if frontend is None:
            raise untrainable_error(base.card)
        return TrainSetup(network, frontend, card, frontend)

    def describe(
        self, setup: TrainSetup, result: TrainResult, data: TrainingData, workspace: Workspace
    ) -> TrainedModel:
        """Return the card with training data and metrics, texts, and the verdict.

        Temperature and timeline are chosen on the validation streams.
        """
        card, settings, origin = setup.card, workspace.settings, workspace.origin
        training, checks = data.training, data.validation
        counts, checked = (Counter(e.label for e in side) for side in (training, checks))
        how, chosen = ([EARLY_STOPPING_NOTE] if checks and not result.split else []), None
        if result.how:
            how.append(result.how)
        if result.streams:
            rate_hz = card.rate_hz / int(getattr(setup.network, "stride", 1))
            streams = [result.streams, *([result.alone] if result.alone else [])]
            chosen = calibrate(streams, card.labels, rate_hz, card.timeline, examples=checked)
            card = replace(card, timeline=chosen.timeline, temperature=chosen.temperature)
            how.append(chosen.how)
        listed = ", ".join(f"{label} {counts[label]}" for label in card.labels if counts[label])
        groups = f"by the column {settings.group!r}" if settings.group else "by file or group"
        start = f"started from {origin}" if origin else "trained from scratch"
        if origin:
            rows = zip(card.labels, base_rows(card.labels, workspace.base.card), strict=True)
            known = [label for label, row in rows if row is not None]
            start += f" and its weights of {', '.join(known)}" if known else ""
        start += ", frontend fine-tuned" if settings.fine_tune else ""
        scores, verdict = _validation(card, result, data, settings, self.remedy(card, settings))
        verdict += f"; {result.reason}" if result.reason else ""
        card = replace(
            card,
            description=f"Custom classes: {', '.join(sorted(counts))}.",
            trained_on=f"{len(training)} user examples ({listed}), {start}; seed {settings.seed}.",
            split=(
                result.split
                or f"{len(training)} examples to train, {len(checks)} to validate, {groups}."
            )
            + "".join(f" {sentence}" for sentence in how),
            limits=f"Verdict: {verdict}. Fitted to the people, places and sensors of its examples.",
            **workspace.terms("examples"),
            metrics={"validation": scores} if checks else {},
        )
        adaptation = result.adaptation
        if adaptation is not None:
            card = with_facts(card, adaptation.facts, settings.compare)
        report = SequenceReport(
            *(card, workspace.file, counts, checked, result.history, result.streams, chosen),
            verdict=verdict,
            command=self.command,
        )
        text = card_text(card, sequence_table)
        adapter = None if adaptation is None else adaptation.adapter
        return TrainedModel(card, text, sequence_report(report), verdict, adapter, result.lines)


def fitting_tensors(card: Card, base: Weights, settings: TrainSettings) -> dict[str, Tensor]:
    """Return the base weights that fit the network of a card, and random ones for the rest.

    The frontend is that of the base. With ``scratch`` the network is random; otherwise its
    classifier is, for labels that the base does not have.
    """
    torch.manual_seed(settings.seed)
    merged = {k: v for k, v in base.tensors.items() if k.startswith("frontend.")}
    rows = [] if settings.scratch else base_rows(card.labels, base.card)
    for key, fresh in new_network(card).state_dict().items():
        name = f"network.{key}"
        stored = None if settings.scratch else base.tensors.get(name)
        if stored is not None and name.startswith(_CLASSIFIERS):
            stored = _with_rows(fresh, stored, rows, base.card)
        merged[name] = stored if stored is not None and stored.shape == fresh.shape else fresh
    return merged


def _with_rows(
    fresh: Tensor, stored: Tensor, rows: Sequence[int | None], base: Card
) -> Tensor | None:
    """Return weights of a classifier in which the known labels have their ``rows`` of the base.

    None if the layer does not have one for each label.
    """
    if len(stored) != len(base.labels) or stored.shape[1:] != fresh.shape[1:]:
        return None
    return torch.stack(
        [new if row is None else stored[row].to(new) for new, row in zip(fresh, rows, strict=True)]
    )


def _validation(
    card: Card, result: TrainResult, data: TrainingData, settings: TrainSettings, remedy: str
) -> tuple[dict[str, Any], str]:
    """Return the metrics of the network and the baselines, by name, and the verdict."""
    checks: Sequence[Example] = data.validation
    groups = [e.group for e in checks]
    held = Held(len(checks), "clip", group_text(groups, settings.group), remedy)
    if not checks:
        return {}, classification_verdict(np.zeros(0, bool), {}, held)
    labels = np.array([card.labels.index(e.label) for e in checks])
    calibrated = [at_temperature(p, card.temperature) for p in result.predictions]
    answers = {card.name: calibrated, **result.baselines}
    if 0 not in labels:  # no example of the background
        answers = {name: [without(p, 0) for p in rows] for name, rows in answers.items()}
    right = {name: fuse(rows).argmax(1) == labels for name, rows in answers.items()}
    guess = card.labels.index(Counter(e.label for e in data.training).most_common(1)[0][0])
    right[MAJORITY] = labels == guess
    scores: dict[str, Any] = {
        name: {"sequences": len(checks), **sequence_scores(rows, labels, groups, card.labels)}
        for name, rows in answers.items()
    }
    scores[MAJORITY] = {"top1": float(right[MAJORITY].mean())}
    return scores, classification_verdict(right.pop(card.name), right, held)
