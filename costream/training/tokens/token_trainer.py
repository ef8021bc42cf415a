"""Trainer of networks on the tokens of a frontend: what video and sound have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from costream.evaluation.metrics.sequence_metrics import fuse
from costream.labels.recording import UNSCORED
from costream.models.adapters import WithFrontend
from costream.models.oad.linear import LinearClassifier
from costream.training.adaptation import Adaptation
from costream.training.base import (
    TrainingData,
    TrainSettings,
    TrainSetup,
    Workspace,
    is_plain,
    knows_all,
    untrainable_error,
)
from costream.training.early_stopping import kept_reason
from costream.training.feature_cache import FeatureCache
from costream.training.optim import Schedule
from costream.training.sequence_trainer import SequenceTrainer, TrainResult
from costream.training.stream_calibration import clips_alone
from costream.training.tokens.finetune import ClipSource, fine_tune
from costream.training.tokens.linear_head import (
    Clip,
    HeadFitter,
    fitted_bias,
    surprise,
    why_few,
)
from costream.training.tokens.token_streams import TokenStream, TokenStreams
from costream.training.tokens.token_training import fit_streams, predict_streams, standardise
from costream.training.training_loop import TrainingRun
from costream.training.verdict import SURE, chance_of, share_text

Probabilities = list[npt.NDArray[Any]]  # [T, K] of each example


@dataclass(frozen=True)
class EncodedChecks:
    """Validation examples as tokens of the frontend.

    ``streams``: the examples concatenated at random; empty without examples. ``predict`` returns
    a network's probabilities of each example.
    """

    streams: list[TokenStream]
    predict: Callable[[nn.Module], Probabilities]


@dataclass(frozen=True)
class EncodedData:
    """Examples as tokens of the frontend.

    ``supply``: streams to train on. ``tokens`` [N, D]: of the training examples, unchanged;
    ``standard`` [M, D]: those that the first layer of a new network standardises. ``baselines``
    returns the probabilities of each validation example by each baseline. ``clips`` and
    ``checked``: the training examples, with further ones of the background, and the validation
    examples, to fit linear heads.
    """

    supply: TokenStreams
    tokens: Tensor
    standard: Tensor
    checks: EncodedChecks
    baselines: Callable[[], dict[str, Probabilities]]
    clips: Sequence[Clip]
    checked: Sequence[Clip]


@dataclass(frozen=True)
class Clips:
    """What a frontend takes, to train it together with the network.

    ``products``: context of the frontend while it learns.
    """

    supply: ClipSource
    checks: Sequence[TokenStream]
    products: AbstractContextManager[Any] | None = None


class TokenTrainer(SequenceTrainer):
    """Trainer of a network on tokens that a frozen frontend has computed once.

    A linear head replaces the network if it is right more often on the validation examples. With
    ``fine_tune`` the frontend is trained together with the network instead.
    """

    joint: ClassVar[tuple[int, int]]  # steps of the joint training, and clips of each

    @abstractmethod
    def trains(self, network: nn.Module, frontend: Any) -> bool:
        """Return whether this trainer supports the network and the frontend."""

    @abstractmethod
    def encode(self, setup: TrainSetup, data: TrainingData, workspace: Workspace) -> EncodedData:
        """Return the examples as tokens. Raises SourceError, UsageError."""

    @abstractmethod
    def encode_checks(
        self, setup: TrainSetup, data: TrainingData, seed: int, cache: FeatureCache
    ) -> EncodedChecks:
        """Return the validation examples as tokens."""

    @abstractmethod
    def schedule(self, network: nn.Module, examples: int, settings: TrainSettings) -> Schedule:
        """Return the schedule of the training on tokens of this number of examples."""

    @abstractmethod
    def clips(self, setup: TrainSetup, data: TrainingData, seed: int, cache: FeatureCache) -> Clips:
        """Return what the frontend takes."""

    def fit(self, setup: TrainSetup, data: TrainingData, workspace: Workspace) -> TrainResult:
        """Train the network, with ``fine_tune`` the frontend too, and return the results.

        ModelError for a network or a frontend that this trainer does not support.
        """
        network, frontend, card, _ = setup
        settings, seed = workspace.settings, workspace.settings.seed
        if not self.trains(network, frontend):
            raise untrainable_error(card)
        frontend.eval().requires_grad_(settings.fine_tune)
        encoded = self.encode(setup, data, workspace)
        checks, examples = encoded.checks, len(data.training)
        is_new = not any(name.startswith("network.") for name in workspace.base.tensors)
        if settings.scratch or is_new:
            standardise(network, encoded.standard)
        schedule = self.schedule(network, examples, settings)
        joint = joint_schedule(settings, *self.joint)
        adaptation = begin_adaptation(network, frontend, settings, schedule.steps, joint)
        knows = knows_all(card.labels, workspace)
        history: list[dict[str, float]] = []
        if not teaches_itself(setup, workspace):
            run = TrainingRun(
                seed, workspace.checkpoint, None if settings.fine_tune else adaptation
            )
            spread = encoded.tokens.std(0)
            streams = checks.streams
            history = fit_streams(
                network, encoded.supply, schedule, run, streams, spread, initial=knows
            )
        baselines = encoded.baselines() if data.validation else {}
        if settings.fine_tune:
            clips = self.clips(setup, data, seed, workspace.cache)
            run = TrainingRun(seed, workspace.frontend_checkpoint, adaptation, "fine-tuning")
            further = fine_tune(
                network, frontend, clips.supply, joint, run, clips.checks, clips.products
            )
            history = continued(history, further)
        adaptation.finish()
        if settings.fine_tune:  # the frontend computes other tokens now
            checks = self.encode_checks(setup, data, seed, FeatureCache(None, card, frontend))
        if not data.validation:
            return TrainResult(history=history, adaptation=adaptation)
        if is_plain(settings) and not anticipates(network):
            choice = choose_head(
                network, encoded, len(card.labels), seed, is_new=is_new, knows=knows
            )
        else:
            choice = HeadChoice(network)
        scored = without_absent(checks.streams, encoded.clips, choice)
        reason = kept_reason(history, workspace.origin) if knows and choice.head is None else ""
        rows = checks.predict(choice.checked)
        known = [card.labels.index(example.label) for example in data.validation]
        return TrainResult(
            rows,
            predict_streams(choice.checked, scored),
            baselines,
            history,
            adaptation,
            setup if choice.head is None else with_head(setup, choice.head),
            choice.how,
            reason or choice.reason,
            alone=[] if choice.head is None else clips_alone(rows, known),
        )


def anticipates(network: nn.Module) -> bool:
    """Return whether a network also predicts later steps, which a linear head does not."""
    return any(name.startswith("anticipation_") for name, _ in network.named_parameters())


@dataclass(frozen=True)
class HeadChoice:
    """The network that is right most often, and why in words.

    ``checked``: as fitted to the training examples. ``head``: a linear head, fitted to the
    validation examples too; None: the network is kept.
    """

    checked: nn.Module
    head: LinearClassifier | None = None
    how: str = ""
    reason: str = ""


def choose_head(
    network: nn.Module,
    encoded: EncodedData,
    classes: int,
    seed: int,
    *,
    is_new: bool = False,
    knows: bool = False,
) -> HeadChoice:
    """Return the network, its biases fitted, or a linear head: the one right more often.

    Both are judged on validation examples; the kind of head is chosen by held-out groups of
    training examples. ``is_new``: the network began with random weights. Then it is only kept if
    it is surely better, because it stopped where these examples were right most often.
    """
    clips, checked = encoded.clips, encoded.checked
    labels, groups = [clip.label for clip in checked], [clip.group for clip in checked]
    empty = 0 not in labels and not any(clip.label == 0 for clip in clips)

    def answers(net: nn.Module) -> npt.NDArray[np.float64]:
        rows = fuse(encoded.checks.predict(net)).astype(np.float64)
        rows[:, 0] *= not empty
        return rows

    known = answers(network)
    before = int((known.argmax(1) == labels).sum())
    how, reason = "", ""
    layer = getattr(network, "head", None)
    bias = fitted_bias(list(known), labels, groups, seed)
    if bias is not None and isinstance(layer, nn.Linear):
        with torch.no_grad():
            layer.bias.add_(torch.from_numpy(bias).to(layer.bias))
        known = answers(network)
        after = int((known.argmax(1) == labels).sum())
        total = len(labels)
        how = f"Biases of the classes were fitted to the validation examples: {before} of {total}"
        how += f" right before, {after} after."
        reason = "it ranked the classes well, but its boundary was off and was moved"
        reason += f" ({share_text(before, total)} right before)"
        before = after
    fitter = HeadFitter(clips, classes, seed)
    held = fitter.held_out()
    kind = held.best()
    head = fitter.head(kind)
    found = answers(head)
    right = int((found.argmax(1) == labels).sum())
    kept = (right, -surprise(found, labels)) <= (before, -surprise(known, labels))
    if is_new:
        kept = chance_of(known.argmax(1) == labels, found.argmax(1) == labels) <= SURE
    elif knows:
        kept = chance_of(found.argmax(1) == labels, known.argmax(1) == labels) > SURE
    if kept:
        return HeadChoice(network, None, how, reason or why_few(held, kind, clips))
    everything = HeadFitter([*clips, *checked], classes, seed).head(kind)
    total = len(labels)
    how = (
        f"A linear head replaced the network: {kind}, chosen by held-out groups; {right} of"
        f" {total} validation examples right, the network {before}. After that it was fitted to"
        " all examples."
    )
    return HeadChoice(head, everything, how, why_few(held, kind, clips))


def with_head(setup: TrainSetup, head: LinearClassifier) -> TrainSetup:
    """Return the setup with a linear head as its network."""
    card = setup.card
    arguments = {
        "input_width": head.input_width,
        "num_classes": len(card.labels),
        "window": head.window,
        "unit": head.unit,
        "changes": head.changes,
        "spread": head.spread,
    }
    delay_s = (head.window - 1) / 2 / card.rate_hz
    card = replace(card, architecture="linear", arguments=arguments, delay_s=delay_s)
    return setup._replace(network=head, card=card)


def without_absent(
    streams: Sequence[TokenStream], clips: Sequence[Clip], choice: HeadChoice
) -> list[TokenStream]:
    """Return streams in which still frames are not scored, if a linear head has no background."""
    if choice.head is None or any(clip.label == 0 for clip in clips):
        return list(streams)
    return [
        replace(stream, labels=np.where(stream.labels == 0, UNSCORED, stream.labels))
        for stream in streams
    ]


def joint_schedule(settings: TrainSettings, steps: int, batch: int) -> Schedule:
    """Return the schedule of a joint training: ``steps`` of ``batch`` clips unless settings differ.

    A network that is adapted or pruned learns faster and longer.
    """
    adapts, prunes = settings.adapter != "none", settings.density < 1
    rate = 3e-3 if adapts else 1e-3 if prunes else 3e-4
    default = steps * 3 // 2 if adapts or prunes else steps
    return Schedule(settings.steps or default, batch, rate=rate, smoothing=0.1)


def begin_adaptation(
    network: nn.Module, frontend: nn.Module, settings: TrainSettings, steps: int, joint: Schedule
) -> Adaptation:
    """Return the adapters and pruning of a network, or with ``fine_tune`` of its frontend too.

    ``steps``: of the training of the network alone; ``joint``: of both.
    """
    if settings.fine_tune:
        return Adaptation(WithFrontend(network, frontend), settings, joint.steps)
    return Adaptation(network, settings, steps)


def teaches_itself(setup: TrainSetup, workspace: Workspace) -> bool:
    """Return whether the base weights have these labels and are pruned together with the frontend.

    Then the network is not trained alone before: see ``Teacher``.
    """
    settings = workspace.settings
    prunes = bool(settings.fine_tune) and settings.density < 1 and not settings.scratch
    return prunes and setup.card.labels == workspace.base.card.labels


def continued(
    history: list[dict[str, float]], further: Sequence[dict[str, float]]
) -> list[dict[str, float]]:
    """Return a history followed by that of a later training, with its steps counted on."""
    before = history[-1]["step"] if history else 0
    return history + [{**row, "step": before + row["step"]} for row in further]
