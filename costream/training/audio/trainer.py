"""Trainer of custom sound classes, with a frozen or fine-tuned frontend."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.core.errors import UsageError
from costream.labels.recording import BACKGROUNDS, SILENCE, UNSCORED
from costream.models.oad.cooadtr import TokenClassifier
from costream.training.adapting import Adaptation
from costream.training.audio.examples import LEAD, LEVELS_DB, AudioReader, EncodedAudio, gain, quiet
from costream.training.base import (
    Student,
    TrainingData,
    TrainSettings,
    Workspace,
    refuse_fine_tuning,
    untrainable_error,
)
from costream.training.baselines import CENTROID, logistic_regression, nearest_centroid
from costream.training.feature_cache import FeatureCache
from costream.training.optim import Schedule
from costream.training.sequences import SequenceTrainer, TrainResult
from costream.training.tokens.finetune import (
    begin_adaptation,
    continued,
    fine_tune,
    is_trained,
    joint_schedule,
)
from costream.training.tokens.streams import TokenStream, TokenStreams
from costream.training.tokens.trainer import (
    STREAM_STEPS,
    fit_streams,
    predict,
    predict_streams,
    standardise,
)
from costream.weights_io.card import Card

log = logging.getLogger("costream")

VARIANTS = 4  # augmented versions of each example
QUIET, QUIET_STEPS = 6, 8  # stretches of silence, and their length
STREAMS = 8  # in a batch
STEPS, PER_EXAMPLE, MOST = 120, 8, 600  # of fine-tuning; twice as many from scratch
PENALTY = 1e-2  # L2 penalty, of the linear baseline
CHECKS = 8  # streams to validate with
# Joint fine-tuning of frontend and network: steps, streams per step, and their length.
FINE_STEPS, FINE_STREAMS, FINE_LENGTH = 200, 4, 48


class AudioTrainer(SequenceTrainer):
    """Trainer of custom sound classes."""

    command = "listen"
    backgrounds = (SILENCE, *BACKGROUNDS)

    def check(self, card: Card, settings: TrainSettings) -> TrainSettings:
        """Raise UsageError for --fps, and for --fine-tune of a spectrogram."""
        if card.frontend == "logmel":
            refuse_fine_tuning(card, settings, "it takes a spectrogram")
        if settings.rate_hz is not None:
            raise UsageError(f"the steps of {card.name} are blocks of audio", where="--fps")
        return super().check(card, settings)

    def fit(self, student: Student, data: TrainingData, workspace: Workspace) -> TrainResult:
        """Train the network on streams made of the examples' tokens, which are computed once.

        With ``fine_tune`` the frontend is then trained with it on samples. The background is learnt
        from synthetic silence, and from its examples if there are any. ModelError for a network
        that does not classify tokens.
        """
        network, frontend, card, _ = student
        settings = workspace.settings
        if not isinstance(network, TokenClassifier):
            raise untrainable_error(card)
        frontend.eval().requires_grad_(settings.fine_tune)
        reader = AudioReader(card, frontend, VARIANTS, settings.seed, workspace.cache)
        reader.check([*data.training, *data.validation])
        silence = reader.silence(card.labels[0], QUIET, QUIET_STEPS)
        training = reader.read(data.training)
        unvaried = AudioReader(card, frontend, 0, settings.seed, workspace.cache)
        checks = unvaried.read(data.validation)
        streams = TokenStreams([views(h, card) for h in (*training, *silence)])
        validation = validation_streams(checks, silence, card, settings.seed)
        spread = torch.cat([h.tokens[0] for h in training]).std(0)
        if settings.scratch:
            standardise(network, torch.cat([h.tokens[0] for h in (*training, *silence)]))
        enough = min(MOST, STEPS + PER_EXAMPLE * len(training)) * (2 if settings.scratch else 1)
        schedule = Schedule(settings.steps or enough, STREAMS, rate=1e-3, decay=0.05, smoothing=0.1)
        joint = joint_schedule(settings, FINE_STEPS, FINE_STREAMS)
        adaptation = begin_adaptation(network, frontend, settings, schedule.steps, joint)
        history: list[dict[str, float]] = []
        if not is_trained(card, workspace):
            history = fit_streams(
                *(network, streams, schedule, settings.seed, validation),
                *(workspace.checkpoint, spread),
                adaptation=None if settings.fine_tune else adaptation,
            )
        simple = {}
        if checks:
            simple[CENTROID] = _centroid(training, checks, card.labels)
            simple["linear on mean tokens"] = linear([*training, *silence], checks, card.labels)
        if settings.fine_tune:
            further = fine_tuned(student, data, workspace, joint, adaptation)
            history = continued(history, further)
        adaptation.finish()
        if settings.fine_tune:
            unkept = FeatureCache(None, card, frontend)
            unvaried = AudioReader(card, frontend, 0, settings.seed, unkept)
            checks = unvaried.read(data.validation)
            silence = unvaried.silence(card.labels[0], QUIET, QUIET_STEPS)
            validation = validation_streams(checks, silence, card, settings.seed)
        if not checks:
            return TrainResult(history=history, adaptation=adaptation)
        return TrainResult(
            predict(network, [h.tokens[0] for h in checks]),
            predict_streams(network, validation),
            simple,
            history,
            adaptation,
        )


def validation_streams(
    checks: Sequence[EncodedAudio], silence: Sequence[EncodedAudio], card: Card, seed: int
) -> list[TokenStream]:
    """Return validation streams made of these examples and silence; empty without examples."""
    checked = TokenStreams([views(h, card) for h in (*checks, *silence)])
    rng = np.random.default_rng(seed)
    return [checked.draw(STREAM_STEPS[1], rng) for _ in range(CHECKS if checks else 0)]


class Waves:
    """Draws streams of blocks of samples, at random levels and block boundaries."""

    def __init__(self, streams: TokenStreams) -> None:
        self._streams = streams

    def batch(self, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return a batch: blocks [B, T, block] and labels int64 [B, T]."""
        blocks, labels = self._streams.batch(count, FINE_LENGTH, rng)
        flat = blocks.flatten(1)
        for row in flat:
            row.copy_(row.roll(int(rng.integers(blocks.shape[2]))))
            row.mul_(gain(rng.uniform(*LEVELS_DB)))
        return flat.view(blocks.shape), labels


def fine_tuned(
    student: Student,
    data: TrainingData,
    workspace: Workspace,
    schedule: Schedule,
    adaptation: Adaptation,
) -> list[dict[str, float]]:
    """Train the network and the frontend together and return the history."""
    network, frontend, card, _ = student
    seed, partial = workspace.settings.seed, workspace.frontend_checkpoint
    reader = AudioReader(card, frontend, 0, seed, workspace.cache)
    rng = np.random.default_rng(seed)
    calm = (quiet(rng, QUIET_STEPS * frontend.block) for _ in range(QUIET))
    still = [torch.from_numpy(wave).view(QUIET_STEPS, -1) for wave in calm]
    silence = EncodedAudio(card.labels[0], tuple(still))
    training, checks = (
        [views(h, card) for h in (*reader.blocks(some), silence)]
        for some in (data.training, data.validation)
    )
    drawn = TokenStreams(checks)
    few = [drawn.draw(STREAM_STEPS[1], rng) for _ in range(CHECKS if data.validation else 0)]
    waves = Waves(TokenStreams(training))
    return fine_tune(network, frontend, waves, schedule, seed, few, partial, adaptation)


def views(training: EncodedAudio, card: Card) -> list[TokenStream]:
    """Return an example and its variants as streams, with their label at every step.

    The first steps of a variant, at most half of them, are UNSCORED: they still contain the sound
    before it, which may be of any class.
    """
    label = card.labels.index(training.label)
    streams = [TokenStream(x, np.full(len(x), label)) for x in training.tokens]
    for varied in streams[1:]:
        varied.labels[: min(LEAD - 1, len(varied.labels) // 2)] = UNSCORED
    return streams


def _centroid(
    training: Sequence[EncodedAudio], checks: Sequence[EncodedAudio], labels: Sequence[str]
) -> list[npt.NDArray[Any]]:
    rows, asked = (torch.stack([h.tokens[0].mean(0) for h in some]) for some in (training, checks))
    known = [labels.index(h.label) for h in training]
    return nearest_centroid(rows.numpy(), known, asked.numpy(), len(labels))


def linear(
    training: Sequence[EncodedAudio], checks: Sequence[EncodedAudio], labels: Sequence[str]
) -> list[npt.NDArray[Any]]:
    """Return the probabilities [1, K] of a linear classifier for each check's mean token.

    It is fitted to the mean tokens of the examples ``training`` and of their variants.
    """
    rows = torch.stack([tokens.mean(0) for h in training for tokens in h.tokens])
    target = torch.tensor([labels.index(h.label) for h in training for _ in h.tokens])
    centre, spread = rows.mean(0), rows.std(0) + 1e-6
    weight, bias = logistic_regression(
        (rows - centre) / spread, len(labels), lambda y: F.cross_entropy(y, target), PENALTY
    )
    means = torch.stack([h.tokens[0].mean(0) for h in checks])
    probabilities = F.linear((means - centre) / spread, weight, bias).softmax(-1)
    return [row[None].numpy() for row in probabilities]
