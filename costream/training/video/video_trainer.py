"""Trainer of custom video classes, with a frozen or fine-tuned frontend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from costream.core.errors import UsageError
from costream.labels.examples import Example
from costream.labels.recording import BACKGROUND, UNSCORED
from costream.models.build import build
from costream.models.compatibility import card_kind
from costream.models.spec import MODELS, architectures, model_spec
from costream.training.base import (
    TrainingData,
    TrainSettings,
    TrainSetup,
    Workspace,
    refuse_fine_tuning,
)
from costream.training.baselines import CENTROID, nearest_centroid
from costream.training.feature_cache import FeatureCache
from costream.training.open_examples import check_examples
from costream.training.optim import Schedule, device_of, fastest_autocast
from costream.training.tokens.linear_head import Clip
from costream.training.tokens.token_streams import TokenStream, TokenStreams
from costream.training.tokens.token_trainer import Clips, EncodedChecks, EncodedData, TokenTrainer
from costream.training.tokens.token_training import STREAM_STEPS, classifies_tokens, predict, slides
from costream.training.video.pieces import Pieces, read_pieces
from costream.training.video.video_reader import EncodedVideo, VideoReader, of_pictures, options_of
from costream.weights_io.card import Card
from costream.weights_io.file import Weights

VIEWS = 4  # augmented views of each training recording
FEW_VIEWS = 1  # where the frontend takes long
LONG_MACS = 100_000_000  # of a frame, from which it does
CHECKED_VIEWS = 1  # of each validation recording
VARIED = 4.0  # relative to the differences within a class; harmful from scratch
STREAMS = 8  # in a batch; half as many if each step has a separate window
STEPS = 600  # of a training without examples
STEPS_PER_EXAMPLE = 12
MAX_STEPS = 1200
CHECKS = 8  # streams to validate with
# Joint training of frontend and network
JOINT_STEPS = 100
JOINT_PIECES = 4  # per step
JOINT_CHECKS = 12  # pieces to validate with
# Of the network on top of a frozen one: a continual transformer of one block.
HEAD = {"embed_dim": 192, "num_heads": 4, "feedforward": 384, "window": 32}


def with_new_head(base: Weights) -> Weights:
    """Return base weights in which a new network follows the features of a classifier.

    The network is a ``cooadtr`` without weights. It replaces a linear classifier of video; a
    classifier of videos becomes its frontend. Other base weights are returned unchanged.
    """
    kind, card = base.card.architecture, base.card
    if kind == "linear" and card_kind(card) == "video":
        width = card.arguments["input_width"]
        tensors = {k: v for k, v in base.tensors.items() if k.startswith("frontend.")}
    elif kind in architectures() and hasattr(MODELS.load(kind), "as_frontend"):
        network: Any = build(card, base.tensors)[0]
        name, front = network.as_frontend()
        width = front.token_width
        card = replace(card, frontend=name, frontend_arguments=front.arguments)
        tensors = {f"frontend.{key}": value for key, value in front.state_dict().items()}
    else:
        return base
    card = replace(
        card,
        task=model_spec("cooadtr").task,
        architecture="cooadtr",
        arguments={"input_width": width, "num_classes": 2, **HEAD},
        labels=(BACKGROUND, "other"),
        background=BACKGROUND,
        delay_s=0.0,
    )
    return replace(base, card=card, tensors=tensors)


class VideoTrainer(TokenTrainer):
    """Trainer of custom video classes."""

    joint = (JOINT_STEPS, JOINT_PIECES)

    def remedy(self, card: Card, settings: TrainSettings) -> str:
        """Return what to do for a better result: also --fine-tune, where that is possible."""
        more = super().remedy(card, settings)
        if settings.fine_tune or card.frontend == "audiovisual":
            return more
        return f"{more}, or use --fine-tune"

    def check(self, card: Card, settings: TrainSettings) -> TrainSettings:
        """Raise UsageError for --fps, and for --fine-tune of an audiovisual frontend."""
        if card.frontend == "audiovisual":
            refuse_fine_tuning(
                card, settings, "only video frontends without audio can be fine-tuned"
            )
        if settings.rate_hz is not None:
            raise UsageError(f"{card.name} takes {card.rate_hz:g} frames per second", where="--fps")
        return super().check(card, settings)

    def trains(self, network: nn.Module, frontend: Any) -> bool:
        """Return whether the network classifies tokens and the frontend processes videos."""
        return classifies_tokens(network) and hasattr(of_pictures(frontend), "forward_steps")

    def encode(self, setup: TrainSetup, data: TrainingData, workspace: Workspace) -> EncodedData:
        """Return the recordings as tokens. Raises SourceError, UsageError."""
        _, frontend, card, _ = setup
        settings, cache = workspace.settings, workspace.cache
        examples = [*data.training, *data.validation]
        check_examples(examples, card, frontend, options_of(frontend))
        views = VIEWS if frontend.count_macs() < LONG_MACS else FEW_VIEWS
        reader = VideoReader(card, frontend, views, settings.seed, cache)
        encoded = reader.read(data.training)
        reader = VideoReader(card, frontend, CHECKED_VIEWS, settings.seed, cache)
        checked = reader.read(data.validation)
        still = still_label(data, card)
        varied = 0.0 if settings.scratch else VARIED
        tokens = torch.cat([s.tokens[0] for s in encoded])
        return EncodedData(
            TokenStreams([s.streams(card.labels, still) for s in encoded], varied=varied),
            tokens,
            tokens,
            _encoded_checks(checked, card, still, settings.seed),
            lambda: {CENTROID: _centroid(encoded, checked, card.labels)},
            clips_of(encoded, card.labels),
            clips_of(checked, card.labels),
        )

    def encode_checks(
        self, setup: TrainSetup, data: TrainingData, seed: int, cache: FeatureCache
    ) -> EncodedChecks:
        """Return the validation recordings as tokens."""
        reader = VideoReader(setup.card, setup.frontend, CHECKED_VIEWS, seed, cache)
        checked = reader.read(data.validation)
        return _encoded_checks(checked, setup.card, still_label(data, setup.card), seed)

    def schedule(self, network: nn.Module, examples: int, settings: TrainSettings) -> Schedule:
        """Return the schedule of the training on tokens."""
        steps = settings.steps or min(MAX_STEPS, STEPS + STEPS_PER_EXAMPLE * examples)
        batch = STREAMS // 2 if slides(network) else STREAMS
        return Schedule(steps, batch, rate=1e-3, decay=0.05, smoothing=0.1)

    def clips(self, setup: TrainSetup, data: TrainingData, seed: int, cache: FeatureCache) -> Clips:
        """Return pieces of the recordings as frames."""
        _, frontend, card, _ = setup
        training, checks = (
            read_pieces(card, frontend, examples, card.labels, seed)
            for examples in (data.training, data.validation)
        )
        chosen = np.random.default_rng(seed).permutation(len(checks))[:JOINT_CHECKS]
        still = still_label(data, card)
        pieces = Pieces(training, frontend.box, still, device_of(frontend))
        return Clips(pieces, [checks[k].stream() for k in chosen], fastest_autocast())


def still_label(data: TrainingData, card: Card) -> int:
    """Return the label of still frames before and after clips.

    Without examples of the background these frames are its examples.
    """
    return UNSCORED if any(e.label == card.labels[0] for e in data.training) else 0


def _encoded_checks(
    checked: Sequence[EncodedVideo], card: Card, still: int, seed: int
) -> EncodedChecks:
    streams = validation_streams(checked, card, still, seed)
    return EncodedChecks(streams, lambda network: answers(network, checked))


def validation_streams(
    checked: Sequence[EncodedVideo], card: Card, still: int, seed: int
) -> list[TokenStream]:
    """Return validation streams made of these recordings; empty without recordings."""
    if not checked:
        return []
    streams = TokenStreams([s.streams(card.labels, still) for s in checked])
    rng = np.random.default_rng(seed)
    return [streams.draw(STREAM_STEPS[1], rng) for _ in range(CHECKS)]


def answers(network: nn.Module, recordings: Sequence[EncodedVideo]) -> list[npt.NDArray[Any]]:
    """Return the probabilities [T, K] of every example, in reading order.

    The stream begins with the example's recording.
    """
    probabilities = predict(network, [encoded.tokens[0] for encoded in recordings])
    by_source = {
        s.examples[0].source: rows for s, rows in zip(recordings, probabilities, strict=True)
    }
    return [
        by_source[example.source][encoded.steps(example)] for encoded, example in listed(recordings)
    ]


def listed(recordings: Sequence[EncodedVideo]) -> list[tuple[EncodedVideo, Example]]:
    """Return every example with its recording, in reading order."""
    rows = {p: (s, e) for s in recordings for p, e in zip(s.places, s.examples, strict=True)}
    return [rows[place] for place in sorted(rows)]


def clips_of(recordings: Sequence[EncodedVideo], labels: Sequence[str]) -> list[Clip]:
    """Return every example of recordings, in reading order, for linear heads."""
    return [
        Clip(s.tokens[0], s.steps(e), labels.index(e.label), e.group) for s, e in listed(recordings)
    ]


def _centroid(
    encoded: Sequence[EncodedVideo], checked: Sequence[EncodedVideo], labels: Sequence[str]
) -> list[npt.NDArray[Any]]:
    rows, check_rows = (
        np.stack([s.tokens[0][torch.from_numpy(s.steps(e))].mean(0).numpy() for s, e in pairs])
        for pairs in (listed(encoded), listed(checked))
    )
    numbers = [labels.index(example.label) for _, example in listed(encoded)]
    return nearest_centroid(rows, numbers, check_rows, len(labels))
