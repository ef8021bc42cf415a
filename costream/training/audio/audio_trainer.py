"""Trainer of custom sound classes, with a frozen or fine-tuned frontend."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.errors import UsageError
from costream.labels.examples import Example
from costream.labels.recording import BACKGROUNDS, SILENCE, UNSCORED
from costream.models.oad.cooadtr import TokenClassifier
from costream.training.audio.audio_reader import (
    LEAD,
    LEVELS_DB,
    AudioReader,
    EncodedAudio,
    gain,
    quiet,
)
from costream.training.base import (
    TrainingData,
    TrainSettings,
    TrainSetup,
    Workspace,
    refuse_fine_tuning,
)
from costream.training.baselines import CENTROID, logistic_regression, nearest_centroid
from costream.training.feature_cache import FeatureCache
from costream.training.optim import Schedule
from costream.training.tokens.linear_head import Clip
from costream.training.tokens.token_streams import TokenStream, TokenStreams
from costream.training.tokens.token_trainer import Clips, EncodedChecks, EncodedData, TokenTrainer
from costream.training.tokens.token_training import STREAM_STEPS, predict
from costream.weights_io.card import Card

log = logging.getLogger("costream")

VARIANTS = 4  # augmented versions of each example
QUIET = 6  # stretches of silence
QUIET_STEPS = 8  # length of each
STREAMS = 8  # in a batch
# Steps of fine-tuning; twice as many from scratch
STEPS = 120
STEPS_PER_EXAMPLE = 8
MAX_STEPS = 600
PENALTY = 1e-2  # L2 penalty, of the linear baseline
CHECKS = 8  # streams to validate with
# Joint training of frontend and network
JOINT_STEPS = 200
JOINT_STREAMS = 4  # per step
JOINT_STREAM_STEPS = 48  # length of a stream


class AudioTrainer(TokenTrainer):
    """Trainer of custom sound classes.

    The background is learnt from synthetic silence, and from its examples if there are any.
    """

    command = "listen"
    backgrounds = (SILENCE, *BACKGROUNDS)
    joint = (JOINT_STEPS, JOINT_STREAMS)

    def check(self, card: Card, settings: TrainSettings) -> TrainSettings:
        """Raise UsageError for --fps, and for --fine-tune of a spectrogram."""
        if card.frontend == "logmel":
            refuse_fine_tuning(card, settings, "it takes a spectrogram")
        if settings.rate_hz is not None:
            raise UsageError(f"the steps of {card.name} are blocks of audio", where="--fps")
        return super().check(card, settings)

    def trains(self, network: nn.Module, frontend: Any) -> bool:
        """Return whether the network classifies tokens."""
        return isinstance(network, TokenClassifier)

    def encode(self, setup: TrainSetup, data: TrainingData, workspace: Workspace) -> EncodedData:
        """Return the examples as tokens. Raises SourceError, UsageError."""
        card, seed = setup.card, workspace.settings.seed
        reader = AudioReader(card, setup.frontend, VARIANTS, seed, workspace.cache)
        reader.check([*data.training, *data.validation])
        silence = reader.silence(card.labels[0], QUIET, QUIET_STEPS)
        training = reader.read(data.training)
        unvaried = AudioReader(card, setup.frontend, 0, seed, workspace.cache)
        checks = unvaried.read(data.validation)
        labelled = [*training, *silence]
        return EncodedData(
            TokenStreams([views(h, card) for h in labelled]),
            torch.cat([h.tokens[0] for h in training]),
            torch.cat([h.tokens[0] for h in labelled]),
            _encoded_checks(checks, silence, card, seed),
            lambda: {
                CENTROID: _centroid(training, checks, card.labels),
                "linear on mean tokens": linear(labelled, checks, card.labels),
            },
            clips_of([*training, *silence], data.training, card.labels),
            clips_of(checks, data.validation, card.labels),
        )

    def encode_checks(
        self, setup: TrainSetup, data: TrainingData, seed: int, cache: FeatureCache
    ) -> EncodedChecks:
        """Return the validation examples as tokens."""
        reader = AudioReader(setup.card, setup.frontend, 0, seed, cache)
        checks = reader.read(data.validation)
        silence = reader.silence(setup.card.labels[0], QUIET, QUIET_STEPS)
        return _encoded_checks(checks, silence, setup.card, seed)

    def schedule(self, network: nn.Module, examples: int, settings: TrainSettings) -> Schedule:
        """Return the schedule of the training on tokens."""
        steps = min(MAX_STEPS, STEPS + STEPS_PER_EXAMPLE * examples) * (
            2 if settings.scratch else 1
        )
        return Schedule(settings.steps or steps, STREAMS, rate=1e-3, decay=0.05, smoothing=0.1)

    def clips(self, setup: TrainSetup, data: TrainingData, seed: int, cache: FeatureCache) -> Clips:
        """Return the samples of the examples, and silence."""
        _, frontend, card, _ = setup
        reader = AudioReader(card, frontend, 0, seed, cache)
        rng = np.random.default_rng(seed)
        waves = [quiet(rng, QUIET_STEPS * frontend.block) for _ in range(QUIET)]
        blocks = [torch.from_numpy(wave).view(QUIET_STEPS, -1) for wave in waves]
        silence = EncodedAudio(card.labels[0], tuple(blocks))
        training, checks = (
            [views(h, card) for h in (*reader.blocks(examples), silence)]
            for examples in (data.training, data.validation)
        )
        drawn = TokenStreams(checks)
        streams = [
            drawn.draw(STREAM_STEPS[1], rng) for _ in range(CHECKS if data.validation else 0)
        ]
        return Clips(Waves(TokenStreams(training)), streams)


def _encoded_checks(
    checks: Sequence[EncodedAudio], silence: Sequence[EncodedAudio], card: Card, seed: int
) -> EncodedChecks:
    streams = validation_streams(checks, silence, card, seed)
    return EncodedChecks(streams, lambda network: predict(network, [h.tokens[0] for h in checks]))


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
        blocks, labels = self._streams.batch(count, JOINT_STREAM_STEPS, rng)
        flat = blocks.flatten(1)
        for row in flat:
            row.copy_(row.roll(int(rng.integers(blocks.shape[2]))))
            row.mul_(gain(rng.uniform(*LEVELS_DB)))
        return flat.view(blocks.shape), labels


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


def clips_of(
    encoded: Sequence[EncodedAudio], examples: Sequence[Example], labels: Sequence[str]
) -> list[Clip]:
    """Return examples, for linear heads; what follows the ``examples`` is silence."""
    groups = [example.group for example in examples]
    groups += [f"silence {k}" for k in range(len(encoded) - len(examples))]
    return [
        Clip(h.tokens[0], np.arange(len(h.tokens[0])), labels.index(h.label), group)
        for h, group in zip(encoded, groups, strict=True)
    ]


def _centroid(
    training: Sequence[EncodedAudio], checks: Sequence[EncodedAudio], labels: Sequence[str]
) -> list[npt.NDArray[Any]]:
    rows, check_rows = (
        torch.stack([h.tokens[0].mean(0) for h in examples]) for examples in (training, checks)
    )
    numbers = [labels.index(h.label) for h in training]
    return nearest_centroid(rows.numpy(), numbers, check_rows.numpy(), len(labels))


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
