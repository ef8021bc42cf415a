"""Trainer of custom skeleton classes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import nn

from costream.labels.formats.label_headings import split_columns
from costream.models.skeleton.joints import JointStreams
from costream.models.skeleton.network import SkeletonNet
from costream.sources.base import SourceOptions
from costream.training.adaptation import Adaptation
from costream.training.base import (
    TrainingData,
    TrainSettings,
    TrainSetup,
    Workspace,
    knows_all,
    refuse_fine_tuning,
    untrainable_error,
)
from costream.training.baselines import CENTROID, nearest_centroid
from costream.training.early_stopping import LOSS, is_best_untrained, kept_reason
from costream.training.open_examples import check_examples
from costream.training.optim import Schedule, device_of
from costream.training.sequence_trainer import SequenceTrainer, TrainResult
from costream.training.skeleton.linear_probe import disable_probe, fit_probe
from costream.training.skeleton.motion_augment import Augmenter, Variety
from costream.training.skeleton.motion_reader import read_motions
from costream.training.skeleton.motion_streams import StreamMaker
from costream.training.skeleton.motions import Motion, batch
from costream.training.skeleton.skeleton_training import SkeletonSupply, train_network
from costream.training.stream_calibration import StreamPredictions
from costream.training.training_loop import TrainingRun
from costream.weights_io.card import Card

STREAM_STEPS = 64
STREAMS = 12  # in a batch
# Steps of fine-tuning; three times as many from scratch
STEPS = 120
STEPS_PER_EXAMPLE = 6
MAX_STEPS = 400
EQUAL = 10  # examples per class at which network and linear probe have equal weight
CHECKS = 8  # streams to choose a timeline on
CHECK_STEPS = 256  # length of each
# Custom examples come from one place and few people: heading and side may distinguish classes.
VARIETY = Variety(mirror=0.0)
AS_THEY_ARE = Variety(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class SkeletonTrainer(SequenceTrainer):
    """Trainer of custom skeleton classes."""

    arguments: ClassVar[Mapping[str, Any]] = {"statistics": True}

    def check(self, card: Card, settings: TrainSettings) -> TrainSettings:
        """Raise ModelError for a network without an output for every step.

        UsageError for --fine-tune.
        """
        refuse_fine_tuning(card, settings, "skeleton networks are always trained completely")
        if card.arguments.get("padding") != "causal":
            raise untrainable_error(card)
        return super().check(card, settings)

    def fit(self, setup: TrainSetup, data: TrainingData, workspace: Workspace) -> TrainResult:
        """Train the network on streams made of the motions, with pauses as background.

        A linear probe on their statistics is fitted and combined with it: see ``LinearProbe``.
        """
        network, frontend, card, _ = setup
        settings = workspace.settings
        _, columns = split_columns(settings.columns)
        options = SourceOptions(
            layout=settings.layout, columns=columns, frame_rate_hz=settings.rate_hz
        )
        check_examples([*data.training, *data.validation], card, frontend, options)
        motions, checks = (
            read_motions(part, card, frontend, options) for part in (data.training, data.validation)
        )
        augmenter = Augmenter(frontend.layout, frontend.axes, VARIETY, {})
        maker = StreamMaker(motions, card.labels, augmenter, card.labels[0])
        steps = min(MAX_STEPS, STEPS + STEPS_PER_EXAMPLE * len(motions))
        steps *= 3 if settings.scratch else 1
        rate = 1e-2 if settings.scratch or settings.density < 1 else 1e-3
        schedule = Schedule(settings.steps or steps, STREAMS, rate=rate, smoothing=0.1)
        supplies = [SkeletonSupply(maker, STREAMS)]
        skeletons = cast(SkeletonNet, network)
        knows = bool(checks) and knows_all(card.labels, workspace)
        known = copy.deepcopy(skeletons).eval() if knows else None  # with its own probe
        probe = fit_probe(skeletons, frontend, supplies, schedule.smoothing, settings.seed)
        disable_probe(skeletons)
        adaptation = Adaptation(network, settings, schedule.steps)
        each = len(motions) / len({m.label for m in motions})
        share = each / (each + EQUAL)

        def validate(averaged: nn.Module) -> dict[str, float]:
            probe.join(cast(SkeletonNet, averaged), share)
            return figures(predict(averaged, frontend, checks), checks, card.labels)

        history = train_network(
            network,
            frontend,
            supplies,
            schedule,
            STREAM_STEPS,
            TrainingRun(settings.seed, workspace.checkpoint, adaptation),
            fixed_statistics=not settings.scratch,
            validate=validate if checks else None,
        )
        probe.join(skeletons, share)
        if known is not None:
            own = figures(predict(known, frontend, checks), checks, card.labels)
            history.insert(0, {"step": 0.0, **own})
            if is_best_untrained(history):
                network.load_state_dict(known.state_dict())
        adaptation.finish()
        if not checks:
            return TrainResult(history=history, adaptation=adaptation)
        return TrainResult(
            predict(network, frontend, checks),
            predict_streams(network, frontend, checks, card.labels, settings.seed),
            {CENTROID: _centroid(frontend, motions, checks, card.labels)},
            history,
            adaptation,
            reason=kept_reason(history, workspace.origin) if knows else "",
        )


def predict_streams(
    network: nn.Module,
    frontend: JointStreams,
    motions: Sequence[Motion],
    labels: Sequence[str],
    seed: int,
) -> list[StreamPredictions]:
    """Return predictions for streams of these motions, unaugmented, with pauses between them."""
    as_they_are = Augmenter(frontend.layout, frontend.axes, AS_THEY_ARE, {})
    maker = StreamMaker(motions, labels, as_they_are, labels[0])
    rng = np.random.default_rng(seed)
    streams = [maker.draw(CHECK_STEPS, rng) for _ in range(CHECKS)]
    rows = predict(network, frontend, [Motion("", "", "", s.joints) for s in streams])
    stride = int(getattr(network, "stride", 1))
    return [StreamPredictions(p, s.labels[::stride]) for p, s in zip(rows, streams, strict=True)]


@torch.inference_mode()
def predict(
    network: nn.Module, frontend: JointStreams, motions: Sequence[Motion]
) -> list[np.ndarray[Any, Any]]:
    """Return the probabilities [T, K] of every motion, as in a stream."""
    out = []
    for begin in range(0, len(motions), 32):
        batched = motions[begin : begin + 32]
        joints = batch([m.joints for m in batched]).to(device_of(frontend))
        rows = network(frontend(joints)).softmax(-1).cpu().numpy()
        stride = int(getattr(network, "stride", 1))
        out += [p[: -(-len(m.joints) // stride)] for p, m in zip(rows, batched, strict=True)]
    return out


def figures(
    probabilities: Sequence[np.ndarray[Any, Any]], motions: Sequence[Motion], labels: Sequence[str]
) -> dict[str, float]:
    """Return the mean cross entropy over motions, equally weighted, and their accuracy."""
    columns = [labels.index(m.label) for m in motions]
    surprise = [-np.log(p[:, k] + 1e-9).mean() for p, k in zip(probabilities, columns, strict=True)]
    right = [p.mean(0).argmax() == k for p, k in zip(probabilities, columns, strict=True)]
    return {LOSS: float(np.mean(surprise)), "validation_accuracy": float(np.mean(right))}


@torch.no_grad()
def _centroid(
    frontend: JointStreams,
    motions: Sequence[Motion],
    checks: Sequence[Motion],
    labels: Sequence[str],
) -> list[np.ndarray[Any, Any]]:
    every = [*motions, *checks]
    tokens = frontend(batch([m.joints for m in every]).to(device_of(frontend))).cpu()
    means = [row[: len(m.joints)].mean(0) for row, m in zip(tokens, every, strict=True)]
    rows = torch.stack(means).flatten(1).numpy()
    asked, truth = rows[len(motions) :], [labels.index(m.label) for m in motions]
    return nearest_centroid(rows[: len(motions)], truth, asked, len(labels))
