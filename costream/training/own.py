"""``costream train``: a model of the user's own classes, from a few labelled recordings.

What is the same for whatever the model takes is here; how a network learns from skeletons is in
``own_skeleton``, how one learns from sound in ``own_sound``.
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

from costream.checkpoints.weights_file import Weights, read_weights
from costream.errors import ExitCode, UsageError
from costream.evaluation.clips import sequence_scores, without
from costream.frontends.registry import frontend_class
from costream.labels.examples import Example, split, to_examples
from costream.labels.reading import read_recordings
from costream.models.build import build, new_network, save_model
from costream.models.card import Card
from costream.models.fitting import takes
from costream.models.registry import find_weights
from costream.runtime.logs import logging_to
from costream.runtime.machine import prepare_torch
from costream.runtime.stop import Stop
from costream.training import own_skeleton, own_sound
from costream.training.family import Family, Taught, TrainSettings, cannot_be_taught
from costream.training.report import card_text
from costream.training.sequence_report import sequence_table

log = logging.getLogger("costream")

_CLASSIFIERS = ("network.head.", "network.fc.")  # of networks for sound, for skeletons


def train(settings: TrainSettings) -> ExitCode:
    """Train, write weights and card, and print where they are.

    Nothing is written before the end. Raises UsageError, SourceError, ModelError, OutputError.
    """
    with Stop(), logging_to(settings.verbosity, "auto", None):
        paths = (settings.output, settings.output.with_suffix(".md"))
        for path in paths:
            if path.exists() and not settings.overwrite:
                raise UsageError("is there already", where=path, hint="--overwrite replaces it")
        examples = to_examples(read_recordings(settings.data, None, settings.group), None)
        divided = parts(examples, settings)
        log.info("%d examples to train on, %d to validate with", *map(len, divided))
        prepare_torch(settings.threads)
        base = read_weights(find_weights(settings.model, settings.weights))
        family = family_of(base.card)
        family.check(base.card, settings)
        labels = family.labels({e.label for e in examples}, base.card)
        network, frontend, card = student(base, labels, settings)
        taught = family.teach(network, frontend, card, divided, settings)
        origin = None if settings.scratch else f"{base.card.name} ({base.card.licence})"
        card = describe(card, taught, divided, settings, origin)
        save_model(paths[0], card, network, frontend)
        paths[1].write_text(card_text(card, sequence_table), encoding="utf-8")
        _tell(card, paths[0], len(divided[1]))
        return ExitCode.OK


def family_of(card: Card) -> Family:
    """Give how a model learns. ModelError for one that takes neither skeletons nor sound."""
    kind = takes(None if card.frontend is None else frontend_class(card.frontend))
    if kind == "skeleton":
        return own_skeleton
    if kind == "audio":
        return own_sound
    raise cannot_be_taught(card)


def parts(
    examples: Sequence[Example], settings: TrainSettings
) -> tuple[list[Example], list[Example]]:
    """Give the examples to train on and to validate with, and warn of classes with too few.

    UsageError for fewer than two classes.
    """
    labels = {e.label for e in examples}
    if len(labels) < 2:
        raise UsageError(
            f"one class only ({labels.pop()})", where=settings.data, hint="two are the fewest"
        )
    training, held_out = split(examples, settings.validation, settings.seed)
    unchecked = sorted(labels - {e.label for e in held_out})
    if unchecked and settings.validation > 0:
        log.warning("no validation examples of %s: too few files (or groups)", ", ".join(unchecked))
    return training, held_out


def student(
    base: Weights, labels: tuple[str, ...], settings: TrainSettings
) -> tuple[nn.Module, nn.Module, Card]:
    """Give network, frontend and card for these labels, the first of which is the background.

    The network has the body of the given weights, or with ``scratch`` only their shape; the
    frontend is always theirs.
    """
    card = replace(
        base.card,
        name=settings.output.stem,
        labels=labels,
        arguments={**base.card.arguments, "num_classes": len(labels)},
        background=labels[0],
        metrics={},
    )
    torch.manual_seed(settings.seed)
    merged = {k: v for k, v in base.tensors.items() if k.startswith("frontend.")}
    for key, fresh in new_network(card).state_dict().items():
        name = f"network.{key}"
        stored = None if settings.scratch else base.tensors.get(name)
        # A classifier can only be gone on with for its own labels.
        kept = labels == base.card.labels or not name.startswith(_CLASSIFIERS)
        fits = stored is not None and kept and stored.shape == fresh.shape
        merged[name] = stored if stored is not None and fits else fresh
    network, frontend = build(card, merged)
    if frontend is None:
        raise cannot_be_taught(base.card)
    return network, frontend, card


def describe(
    card: Card,
    taught: Taught,
    examples: tuple[Sequence[Example], Sequence[Example]],
    settings: TrainSettings,
    origin: str | None,
) -> Card:
    """Give the card with what it was trained on and how it does on the validation examples."""
    training, checks = examples
    counts = Counter(e.label for e in training)
    listed = ", ".join(f"{label} {counts[label]}" for label in card.labels if counts[label])
    groups = f"by the column {settings.group!r}" if settings.group else "by file or group"
    start = f"started from {origin}" if origin else "started from nothing"
    return replace(
        card,
        description=f"Own classes: {', '.join(sorted(counts))}.",
        trained_on=f"{len(training)} own examples ({listed}), {start}; seed {settings.seed}.",
        split=f"{len(training)} examples to train, {len(checks)} to validate, {groups}."
        + (f" {taught.how}" if taught.how else ""),
        limits="Knows the people, places and sensors of its examples; validated on few examples.",
        licence="That of the examples" + (f" and of {origin}" if origin else ""),
        timeline=taught.timeline,
        metrics={"validation": _validation(card, taught, examples)} if checks else {},
    )


def _validation(
    card: Card, taught: Taught, examples: tuple[Sequence[Example], Sequence[Example]]
) -> dict[str, Any]:
    training, checks = examples
    labels = np.array([card.labels.index(e.label) for e in checks])
    groups = [e.group for e in checks]

    def scores(told: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
        if 0 not in labels:  # no example is of nothing happening
            told = [without(p, 0) for p in told]
        return {"sequences": len(checks), **sequence_scores(told, labels, groups, card.labels)}

    guess = card.labels.index(Counter(e.label for e in training).most_common(1)[0][0])
    return {
        card.name: scores(taught.told),
        **{name: scores(told) for name, told in taught.baselines.items()},
        "majority": {"top1": float((labels == guess).mean())},
    }


def _tell(card: Card, path: Path, checks: int) -> None:
    print(f"{path}: {', '.join(card.labels)}")
    if checks:
        scores = card.metrics["validation"]
        others = [f"{name} {s['top1']:.3f}" for name, s in scores.items() if name != card.name]
        top1 = scores[card.name]["top1"]
        print(f"validation: top-1 {top1:.3f} over {checks} examples ({', '.join(others)})")
