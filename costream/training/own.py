"""``costream train``: a model of the user's own classes, from a few labelled skeletons."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from costream.checkpoints.weights_file import read_weights
from costream.errors import ExitCode, ModelError, UsageError
from costream.evaluation.evaluate import sequence_scores, without
from costream.evaluation.examples import Example, read_examples, split
from costream.evaluation.motions import Motion, batch
from costream.frontends.joints import JointStreams
from costream.models.build import build, save_model
from costream.models.card import Card
from costream.models.registry import find_weights
from costream.runtime.logs import logging_to
from costream.runtime.machine import prepare_torch
from costream.runtime.stop import Stop
from costream.sources.base import SourceOptions
from costream.training.loop import Schedule
from costream.training.recordings import read_motions
from costream.training.report import card_text
from costream.training.skeleton_augment import Augmenter, Variety
from costream.training.skeleton_loop import Supply, train_network
from costream.training.skeleton_report import skeleton_table
from costream.training.skeleton_streams import StreamMaker

log = logging.getLogger("costream")

BACKGROUND = "background"
STREAM_STEPS = 64
STREAMS = 12  # in a batch
STEPS = 400  # of fine-tuning; from scratch it takes three times as many
# Own examples come from one place and few people: other headings and sides are not noise then.
VARIETY = Variety(mirror=0.0)


@dataclass(frozen=True)
class TrainSettings:
    """Everything ``costream train`` was told, checked."""

    model: str
    weights: str | None
    data: Path
    group: str | None
    output: Path
    validation: float  # share of each class's examples
    steps: int | None
    scratch: bool
    seed: int
    rate_hz: float | None  # frames a second of recordings without times
    layout: str | None
    columns: str | None
    threads: int
    overwrite: bool
    verbosity: int


def train(settings: TrainSettings) -> ExitCode:
    """Train, write weights and card, and print where they are.

    Nothing is written before the end. Raises UsageError, SourceError, ModelError, OutputError.
    """
    with Stop(), logging_to(settings.verbosity, "auto", None):
        paths = (settings.output, settings.output.with_suffix(".md"))
        for path in paths:
            if path.exists() and not settings.overwrite:
                raise UsageError("is there already", where=path, hint="--overwrite replaces it")
        examples = read_examples(settings.data, settings.group)
        training, held_out = parts(examples, settings)
        log.info("%d examples to train on, %d to validate with", len(training), len(held_out))
        prepare_torch(settings.threads)
        base = read_weights(find_weights(settings.model, settings.weights))
        network, frontend, card = student(base.card, base.tensors, examples, settings)
        options = SourceOptions(
            layout=settings.layout, columns=settings.columns, frame_rate_hz=settings.rate_hz
        )
        motions = read_motions(training, card, frontend, options)
        checks = read_motions(held_out, card, frontend, options)
        teach(network, frontend, card, motions, settings)
        origin = None if settings.scratch else f"{base.card.name} ({base.card.licence})"
        card = describe(card, network, frontend, (motions, checks), settings, origin)
        save_model(paths[0], card, network, frontend)
        paths[1].write_text(card_text(card, skeleton_table), encoding="utf-8")
        _tell(card, paths[0], len(checks))
        return ExitCode.OK


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
    card: Card,
    tensors: dict[str, torch.Tensor],
    examples: Sequence[Example],
    settings: TrainSettings,
) -> tuple[nn.Module, JointStreams, Card]:
    """Give network, frontend and card for the examples' labels.

    The network has the body of the given weights, or with ``scratch`` only their shape. ModelError
    when they are not of a network that gives an output for every step of skeletons.
    """
    if card.frontend != "joints" or card.arguments.get("padding") != "causal":
        raise ModelError(
            f"{card.name} cannot be taught",
            hint="costgcn can: skeletons, and an output from the first step on",
        )
    labels = tuple(dict.fromkeys([BACKGROUND, *sorted({e.label for e in examples})]))
    arguments = {**card.arguments, "num_classes": len(labels)}
    own = replace(
        card,
        name=settings.output.stem,
        labels=labels,
        arguments=arguments,
        background=BACKGROUND,
        metrics={},
    )
    kept = {} if settings.scratch else tensors
    torch.manual_seed(settings.seed)
    fresh = _fresh(own)
    merged = {
        name: kept[name] if name in kept and kept[name].shape == value.shape else value
        for name, value in fresh.items()
    }
    network, frontend = build(own, merged)
    if not isinstance(frontend, JointStreams):
        raise ModelError(f"{card.name} has no skeleton frontend")
    return network, frontend, own


def _fresh(card: Card) -> dict[str, torch.Tensor]:
    from costream.models.skeleton import SkeletonNet

    state = SkeletonNet(**card.arguments).state_dict()
    return {f"network.{k}": v for k, v in state.items()}


def teach(
    network: nn.Module,
    frontend: JointStreams,
    card: Card,
    motions: Sequence[Motion],
    settings: TrainSettings,
) -> None:
    """Train the network on streams made of the motions, with pauses as background."""
    mirrored: dict[str, str | None] = {}
    augmenter = Augmenter(frontend.layout, frontend.axes, VARIETY, mirrored)
    maker = StreamMaker(motions, card.labels, augmenter, BACKGROUND)
    steps = settings.steps or (3 * STEPS if settings.scratch else STEPS)
    schedule = Schedule(steps, STREAMS, rate=1e-2 if settings.scratch else 1e-3, smoothing=0.1)
    train_network(
        network,
        frontend,
        [Supply(maker, STREAMS)],
        schedule,
        STREAM_STEPS,
        settings.seed,
        "training",
        fixed_statistics=not settings.scratch,
    )


def describe(
    card: Card,
    network: nn.Module,
    frontend: JointStreams,
    motions: tuple[Sequence[Motion], Sequence[Motion]],
    settings: TrainSettings,
    origin: str | None,
) -> Card:
    """Give the card with what it was trained on and how it does on the validation examples."""
    training, checks = motions
    counts = Counter(m.label for m in training)
    listed = ", ".join(f"{label} {counts[label]}" for label in card.labels if counts[label])
    groups = f"by the column {settings.group!r}" if settings.group else "by file or group"
    metrics: dict[str, Any] = {}
    if checks:
        told = [without(p, 0) for p in predict(network, frontend, checks)]
        if any(m.label == BACKGROUND for m in checks):
            told = predict(network, frontend, checks)
        labels = np.array([card.labels.index(m.label) for m in checks])
        scores = sequence_scores(told, labels, [m.group for m in checks], card.labels)
        guess = card.labels.index(counts.most_common(1)[0][0])
        metrics = {
            "validation": {
                card.name: {"sequences": len(checks), **scores},
                "majority": {"top1": float((labels == guess).mean())},
            }
        }
    start = f"started from {origin}" if origin else "started from nothing"
    return replace(
        card,
        description=f"Own classes: {', '.join(sorted(counts))}.",
        trained_on=f"{len(training)} own examples ({listed}), {start}; seed {settings.seed}.",
        split=f"{len(training)} examples to train, {len(checks)} to validate, {groups}.",
        limits="Knows the people, places and sensors of its examples; validated on few examples.",
        licence="That of the examples" + (f" and of {origin}" if origin else ""),
        metrics=metrics,
    )


@torch.inference_mode()
def predict(
    network: nn.Module, frontend: JointStreams, motions: Sequence[Motion]
) -> list[np.ndarray[Any, Any]]:
    """Give the probabilities [T, K] of every motion as a stream would get them."""
    out = []
    for begin in range(0, len(motions), 32):
        some = motions[begin : begin + 32]
        rows = network(frontend(batch([m.joints for m in some]))).softmax(-1).numpy()
        stride = int(getattr(network, "stride", 1))
        out += [p[: -(-len(m.joints) // stride)] for p, m in zip(rows, some, strict=True)]
    return out


def _tell(card: Card, path: Path, checks: int) -> None:
    print(f"{path}: {', '.join(card.labels)}")
    if checks:
        scores = card.metrics["validation"][card.name]
        print(f"validation: top-1 {scores['top1']:.3f} over {checks} examples")
