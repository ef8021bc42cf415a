"""Common parts of the custom-class trainers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from costream.core.errors import ModelError, UsageError
from costream.core.version import __version__
from costream.labels.examples import Example, name_matcher, normalise_label
from costream.labels.recording import Label
from costream.runtime.stop import Stopped
from costream.training.checkpoint import TrainingCheckpoint
from costream.training.feature_cache import FeatureCache
from costream.weights_io.card import Card, LicenceClass, Timeline
from costream.weights_io.file import Weights
from costream.weights_io.licences import AllowedLicence, narrowest

log = logging.getLogger("costream")

EARLY_STOPPING_NOTE = (
    "Early stopping used the validation examples: their metrics are slightly optimistic."
)
Labelled = TypeVar("Labelled", Example, Label)
CHECKPOINT_SUFFIXES = (".partial", ".frontend.partial")  # of the network, and of the stage after it


@dataclass(frozen=True)
class TrainSettings:
    """Validated options of ``costream train``."""

    model: str
    weights: str | None
    data: Path | None  # media, or a folder or table of examples
    labels: Path | None  # timelines or arrays of labels
    group: str | None
    output: Path
    validation: float  # share of each class's examples
    steps: int | None
    scratch: bool
    fine_tune: bool | None  # None: the trainer's default
    adapter: str  # "none", "lora" or "splora"
    rank: int
    density: float  # share of the weights that is left; 1: all
    compare: Path | None  # weights of the same training without a density
    seed: int
    rate_hz: float | None  # frames per second of recordings without times
    layout: str | None
    columns: str | None
    threads: int
    cache: Path | None  # folder of cached features; None: no cache
    overwrite: bool
    verbosity: int
    device: str = "cpu"
    compact: bool = False  # files in float16 or int8, as MODEL's
    licence: AllowedLicence | None = None  # of the base weights; None: any
    data_licence: LicenceClass | None = None  # of the examples; None: unknown
    # Of trainings on features; None: as published.
    epochs: int | None = None
    learning_rate: float | None = None
    stepwise: bool = False
    also: Path | None = None  # further examples: a folder of classes or a table
    suggest: Path | None = None  # unlabelled recordings
    frontend: str | None = None  # of ``auto``; None: the one that suits the examples

    @property
    def of_features(self) -> dict[str, Any]:
        """The options that apply to features only, where they are given."""
        given = {"--epochs": self.epochs, "--learning-rate": self.learning_rate}
        return {k: v for k, v in {**given, "--stepwise": self.stepwise}.items() if v}


@dataclass(frozen=True)
class TrainingData:
    """Labels to learn, and training and validation examples of a class that the trainer defines."""

    labels: tuple[str, ...]
    training: Sequence[Any]
    validation: Sequence[Any]
    identity: list[Any]  # of all examples, as JSON values


class TrainSetup(NamedTuple):
    """A network before its training, its frontend and its card."""

    network: Any
    frontend: Any
    card: Card
    encoder: nn.Module  # its output is cached


@dataclass(frozen=True)
class Workspace:
    """Settings, base weights, feature cache and checkpoints of a training."""

    settings: TrainSettings
    base: Weights
    cache: FeatureCache
    checkpoint: TrainingCheckpoint
    frontend_checkpoint: TrainingCheckpoint  # of the fine-tuning after it

    @property
    def file(self) -> str:
        """Name of the written weights."""
        return self.settings.output.with_suffix(".safetensors").name

    @property
    def origin(self) -> str:
        """Name of the base weights, whose licence ``terms`` has; empty from scratch."""
        return "" if self.settings.scratch else self.base.card.name

    def terms(self, examples: str) -> dict[str, Any]:
        """Return ``licence`` and ``licence_class`` of what is trained on these ``examples``.

        A frontend keeps the base weights, and so their terms, even from scratch.
        """
        base, settings = self.base.card, self.settings
        keeps = not settings.scratch or any(k.startswith("frontend.") for k in self.base.tensors)
        of_base = f" and of {base.name} ({base.licence})" if keeps and base.licence else ""
        parts = (base.licence_class, settings.data_licence) if keeps else (settings.data_licence,)
        return {
            "licence": f"Licence of the {examples}{of_base}",
            "licence_class": narrowest(parts),
        }


class TrainedModel(NamedTuple):
    """The card of trained weights, the card as text, the report as HTML, the verdict in words."""

    card: Card
    text: str
    report: str
    verdict: str
    adapter: tuple[dict[str, Tensor], str] | None = None  # see ``nn.adapters``
    lines: tuple[str, ...] = ()  # printed before the metrics


class CustomClassTrainer(Protocol):
    """Trainer of custom classes for one kind of example."""

    metric: tuple[str, str, str]  # printed: key in the card, name, unit counted
    command: str  # that runs the trained model

    def check(self, card: Card, settings: TrainSettings) -> TrainSettings:
        """Return the settings with this trainer's defaults.

        Raises ModelError for a model that cannot be trained, UsageError for wrong options.
        """

    def read(self, card: Card, settings: TrainSettings) -> TrainingData:
        """Return the examples. Raises UsageError, SourceError."""

    def setup(self, base: Weights, labels: tuple[str, ...], settings: TrainSettings) -> TrainSetup:
        """Return the network to train for these labels, with the base weights.

        With ``scratch`` only their architecture is used.
        """

    def fit(self, setup: TrainSetup, data: TrainingData, workspace: Workspace) -> Any:
        """Train the network and return the results, of a class that the trainer defines."""

    def describe(
        self, setup: TrainSetup, result: Any, data: TrainingData, workspace: Workspace
    ) -> TrainedModel:
        """Return the card with training data and metrics, texts, and the verdict."""


def training_checkpoint(
    settings: TrainSettings, base: Weights, examples: Sequence[Any], end: str
) -> TrainingCheckpoint:
    """Return the checkpoint of this training, OUTPUT with the suffix ``end``.

    The checkpoint cannot be resumed after a change of an option that affects the result, of the
    initial weights, or of one of the ``examples`` (JSON values).
    """
    names: tuple[str, ...] = ("validation", "steps", "scratch", "seed", "fine_tune", "rate_hz")
    names += ("layout", "columns")
    if (settings.adapter, settings.density) != ("none", 1):
        names += ("adapter", "rank", "density")
    if settings.device != "cpu":
        names += ("device",)
    if settings.of_features:
        names += ("epochs", "learning_rate", "stepwise")
    identity = {
        "version": [__version__, torch.__version__, base.sha256],
        "options": [getattr(settings, name) for name in (*names, "threads")],
        "examples": list(examples),
    }
    path = settings.output.with_name(settings.output.name + end)
    return TrainingCheckpoint(path, identity, settings.overwrite)


def warn_of_unchecked(labels: Iterable[str], settings: TrainSettings) -> None:
    """Warn of labels without validation examples, if validation was requested."""
    names = ", ".join(sorted(labels))
    if names and settings.validation > 0:
        log.warning("no validation examples of %s: too few files (or groups)", names)


@contextmanager
def log_resume_hint(partials: Sequence[TrainingCheckpoint]) -> Iterator[None]:
    """Log how to resume when the enclosed block is stopped."""
    try:
        yield
    except Stopped:
        existing = [str(p.path) for p in partials if p.path.exists()]
        outcome = f"resumes from {' and '.join(existing)}" if existing else "starts over"
        log.error("stopped; the same command %s", outcome)
        raise


def background_first(found: set[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return labels, the background first: all of ``names`` that are found, as one label.

    It has the first of these names; if none is found, it is added. Raises UsageError for other
    labels that differ only in case or word separators.
    """
    normalised = list(dict.fromkeys(map(normalise_label, names)))
    same = [label for label in sorted(found) if normalise_label(label) in normalised]
    same.sort(key=lambda label: normalised.index(normalise_label(label)))
    if same:
        level = logging.INFO if len(same) == 1 else logging.WARNING
        log.log(level, "background, which makes no segments: %s", ", ".join(map(repr, same)))
    events = sorted(found - {*same})
    counts = Counter(map(normalise_label, events))
    if duplicates := [repr(label) for label in events if counts[normalise_label(label)] > 1]:
        raise UsageError(
            f"classes that differ only in case or word separators: {', '.join(duplicates)}",
            hint="rename one of them",
        )
    return ((same or names)[0], *events)


def base_rows(labels: Sequence[str], base: Card) -> list[int | None]:
    """Return which of the base model's labels each label is, None for new ones.

    All are new if only the background is not.
    """
    match = name_matcher(base.labels)
    names = [match(label) for label in labels]
    if not any(name for name in names if name != base.background):
        return [None] * len(labels)
    return [None if name is None else base.labels.index(name) for name in names]


def is_plain(settings: TrainSettings) -> bool:
    """Return whether the network may be replaced: neither it nor the frontend was asked for."""
    return not (
        settings.fine_tune or settings.scratch or settings.adapter != "none" or settings.density < 1
    )


def knows_all(labels: Sequence[str], workspace: Workspace) -> bool:
    """Return whether the base's weights for all these labels may be better than trained ones."""
    return is_plain(workspace.settings) and None not in base_rows(labels, workspace.base.card)


def base_timeline(labels: Sequence[str], base: Card) -> Timeline:
    """Return the base model's timeline for labels that it has.

    Without some of them, thresholds mean something else: it is the usual one.
    """
    rows = dict(zip(labels, base_rows(labels, base), strict=True))
    own = base.timeline.thresholds
    names = {label: base.labels[row] for label, row in rows.items() if row is not None}
    if len(names) < len(rows):
        return Timeline()
    kept = {label: own[name] for label, name in names.items() if name in own}
    return replace(base.timeline, thresholds=kept)


def in_classes(items: Iterable[Labelled], labels: Sequence[str]) -> list[Labelled]:
    """Return the items, with the background, the first label, for labels not in ``labels``."""
    return [x if x.label in labels else replace(x, label=labels[0]) for x in items]


def untrainable_error(card: Card) -> ModelError:
    """Return the error for a model that no trainer supports."""
    return ModelError(
        f"{card.name} cannot be trained on custom classes",
        hint="cooadtr (video), costgcn (skeletons), cotrans (sound), nanodet and eventful-vitdet"
        " (objects) can",
    )


def refuse_fine_tuning(card: Card, settings: TrainSettings, why: str) -> None:
    """Raise UsageError for ``--fine-tune`` on a model whose frontend cannot be trained."""
    if settings.fine_tune:
        raise UsageError(f"{card.name} has no frontend to train: {why}", where="--fine-tune")
