"""``costream train``: train a model of custom classes from a few labelled examples.

This module holds the steps that all trainings share; a trainer of each kind of example does the
rest.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from costream.core.errors import ExitCode, UsageError, printable, say
from costream.core.formatting import counted
from costream.core.settings import AUTO
from costream.models.build import model_tensors
from costream.models.catalogue import check_licence, find_weights, read_whole
from costream.models.compact import compact, compact_adapter, is_compact
from costream.models.compatibility import card_kind
from costream.models.devices import find_device
from costream.models.spec import is_gated
from costream.runtime.logs import logging_to
from costream.runtime.stop import StopHandler
from costream.runtime.torch_setup import prepare_torch
from costream.training.adaptation import adapter_card, check_adapter
from costream.training.audio.audio_trainer import AudioTrainer
from costream.training.auto.auto_trainer import start_auto
from costream.training.base import (
    CHECKPOINT_SUFFIXES,
    CustomClassTrainer,
    TrainedModel,
    TrainSettings,
    TrainSetup,
    Workspace,
    base_rows,
    log_resume_hint,
    training_checkpoint,
    untrainable_error,
)
from costream.training.card_text import compression_lines
from costream.training.feature_cache import FeatureCache
from costream.training.features.feature_trainer import FeatureTrainer, feature_base
from costream.training.objects.nanodet_trainer import NanoDetTrainer
from costream.training.objects.object_trainer import ObjectTrainer
from costream.training.sequence_trainer import SequenceTrainer
from costream.training.skeleton.skeleton_trainer import SkeletonTrainer
from costream.training.suggestions import suggest
from costream.training.text_trainer import TextTrainer
from costream.training.verdict import COUNTED, share_text
from costream.training.video.video_trainer import VideoTrainer, with_new_head
from costream.weights_io.card import Card
from costream.weights_io.file import SUFFIX, Weights, write_weights

_DETECTORS = {"vitdet": ObjectTrainer, "nanodet": NanoDetTrainer}  # by architecture


def train(settings: TrainSettings) -> ExitCode:
    """Train a model, write its weights, card and report, and print their paths and a verdict.

    Until then only ``OUTPUT.partial`` exists, from which the same command resumes after an
    interruption. Raises UsageError, SourceError, ModelError, OutputError.
    """
    with StopHandler() as stop, logging_to(settings.verbosity, "auto", None):
        paths = [settings.output.with_suffix(end) for end in (".safetensors", ".md", ".html")]
        adapters = [adapter_path(paths[0])] if settings.adapter != "none" else []
        for path in (*paths, *adapters):
            if path.exists() and not settings.overwrite:
                raise UsageError("already exists", where=path, hint="--overwrite replaces it")
        prepare_torch(settings.threads)
        device = find_device(settings.device)
        start = _begin(replace(settings, device=str(device)))
        base, trainer, settings = start.base, start.trainer, start.settings
        data = trainer.read(base.card, settings)
        setup = trainer.setup(base, data.labels, settings)
        _say_start(start, data.labels)
        partials = [
            training_checkpoint(settings, base, data.identity, end) for end in CHECKPOINT_SUFFIXES
        ]
        with log_resume_hint(partials):
            cache = FeatureCache(settings.cache, setup.card, setup.encoder, settings.device)
            parts = [part for part in (setup.network, setup.frontend) if part is not None]
            for part in parts:
                part.to(device)
            workspace = Workspace(settings, base, cache, *partials)
            result = trainer.fit(setup, data, workspace)
            cache.prune()
            setup = getattr(result, "setup", None) or setup
            for part in filter(None, (setup.network, setup.frontend)):
                part.cpu()
        trained = trainer.describe(setup, result, data, workspace)
        _write(paths, trained, setup, start)
        for partial in partials:
            partial.remove()
        _print_summary(trained, paths[0], len(data.validation), trainer)
        if settings.suggest is not None:
            sources = [_source_of(one) for one in (*data.training, *data.validation)]
            for line in suggest(paths[0], settings.suggest, sources, settings, stop):
                print(printable(line))
        _print_sizes(paths[0], adapters if trained.adapter is not None else [], start.file)
        return ExitCode.OK


class _Start(NamedTuple):
    """What a training begins with; ``file``: of the base weights, None for a new network."""

    base: Weights
    trainer: CustomClassTrainer
    settings: TrainSettings  # with defaults
    file: Path | None


def _begin(settings: TrainSettings) -> _Start:
    """Return base weights and trainer. Raises ModelError, and UsageError for wrong options."""
    if settings.model == AUTO:
        first, auto = start_auto(settings)
        return _Start(first, auto, auto.check(first.card, replace(settings, compact=True)), None)
    if settings.frontend is not None:
        raise UsageError("applies to auto", where="--frontend", hint="costream train auto")
    base = feature_base(settings)
    trainer: CustomClassTrainer = FeatureTrainer()
    if base is None:
        check_licence(settings.model, settings.weights, settings.licence)
        base = with_new_head(read_whole(settings.model, settings.weights))
        trainer = trainer_of(base.card)
        for name in settings.of_features:
            raise UsageError("applies to trainings on features only", where=name)
    file = find_weights(settings.model, settings.weights) if base.sha256 else None
    # Untrained base weights mean training from scratch, whatever was requested.
    scratch = settings.scratch or base.card.untrained
    settings = replace(settings, compact=file is not None and is_compact(file), scratch=scratch)
    settings = trainer.check(base.card, settings)
    if settings.suggest is not None and isinstance(trainer, (ObjectTrainer, TextTrainer)):
        raise UsageError("applies to actions and sounds", where="--suggest")
    if settings.also is not None and isinstance(
        trainer, (ObjectTrainer, TextTrainer, FeatureTrainer)
    ):
        raise UsageError("applies to clips and timelines", where="--also")
    check_adapter(settings, base.card.finds_objects)
    return _Start(base, trainer, settings, file)


def _say_start(start: _Start, labels: Sequence[str]) -> None:
    """Say how many labels start from the weights that the base has of them; nothing if none."""
    base, is_sequence = start.base, isinstance(start.trainer, (SequenceTrainer, FeatureTrainer))
    if start.file is None or start.settings.scratch or not is_sequence:
        return
    known = sum(row is not None for row in base_rows(labels, base.card))
    if known and any(key.startswith("network.") for key in base.tensors):
        say(f"{known} of {len(labels)} labels start from {base.card.name}'s")


def _write(paths: Sequence[Path], trained: TrainedModel, setup: TrainSetup, start: _Start) -> None:
    """Write weights, card and report, and the adapter. Raises OutputError."""
    is_small, card = start.settings.compact, trained.card
    tensors = model_tensors(setup.network, setup.frontend)
    if is_small:
        card, tensors = compact(card, tensors)
    write_weights(paths[0], card, tensors)
    if trained.adapter is not None:
        tensors, sha256 = trained.adapter
        tensors = compact_adapter(tensors) if is_small else tensors
        card = adapter_card(trained.card, start.base.sha256, sha256)
        write_weights(adapter_path(paths[0]), card, tensors)
    paths[1].write_text(trained.text, encoding="utf-8")
    paths[2].write_text(trained.report, encoding="utf-8")


def _source_of(example: Any) -> str:
    """Return the source of an example, or of a recording of features."""
    return str(getattr(example, "recording", example).source)


def _print_sizes(path: Path, adapters: Sequence[Path], origin: Path | None) -> None:
    """Print the sizes of the written files, and that of the base weights."""
    sizes = [f"{path.stat().st_size / 1e6:.2f} MB"]
    sizes += [f"adapter {adapter.stat().st_size / 1e6:.2f} MB" for adapter in adapters]
    if origin is not None:
        sizes.append(f"{origin.name.removesuffix(SUFFIX)} {origin.stat().st_size / 1e6:.2f} MB")
    print(printable(f"size: {', '.join(sizes)}"))


def trainer_of(card: Card) -> CustomClassTrainer:
    """Return the trainer of a model. ModelError if it takes features or has token gates.

    Of the detectors only ViTDet and NanoDet can be trained.
    """
    if card.finds_objects:
        if card.architecture not in _DETECTORS:
            raise untrainable_error(card)
        return _DETECTORS[card.architecture]()
    kind = card_kind(card)
    if kind == "skeleton":
        return SkeletonTrainer()
    if kind == "audio":
        return AudioTrainer()
    if kind == "text":
        return TextTrainer()
    if kind == "video" and not is_gated(card.architecture):
        return VideoTrainer()
    raise untrainable_error(card)


def adapter_path(path: Path) -> Path:
    """Return the path of the adapter file of trained weights."""
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}-adapter{SUFFIX}")


def _print_summary(
    trained: TrainedModel, path: Path, checks: int, trainer: CustomClassTrainer
) -> None:
    card, (key, title, unit) = trained.card, trainer.metric
    for line in trained.lines:
        print(printable(line))
    print(printable(f"{path}: {', '.join(card.labels)}"))
    scores = card.metrics.get("validation", {})
    values = {
        name: _score(s[key], checks if key == "top1" else None)
        for name, s in scores.items()
        if s[key] is not None
    }
    if card.name in values:
        others = [f"{name} {value}" for name, value in values.items() if name != card.name]
        compared = f" ({', '.join(others)})" if others else ""
        counts = key == "top1" and checks < COUNTED
        over = f" {unit}" if counts else f" over {counted(checks, unit[:-1])}"
        print(f"validation: {title} {values[card.name]}{over}{compared}")
    if shown := scores.get(card.name, {}).get("shown"):
        right, found, false = (shown[key] for key in ("precision", "recall", "false"))
        print(
            f"shown from a score of {shown['threshold']:g} on: {right:.2f} of the boxes are right,"
            f" {false:.2f} false ones an image; {found:.2f} of the objects are found"
        )
    for line in compression_lines(card):
        print(line)
    if trained.adapter is not None:
        print(printable(f"adapter: {adapter_path(path)}"))
    print(printable(f"verdict: {trained.verdict}"))
    print(printable(f"report: {path.with_suffix('.html')}"))
    print(printable(f"next: costream {trainer.command} FILE -m {shlex.quote(str(path))}"))


def _score(value: float, count: int | None) -> str:
    """Return a score with three decimals, or the share of a small ``count`` in numbers."""
    if count is None or count >= COUNTED:
        return f"{value:.3f}"
    return share_text(round(value * count), count)
