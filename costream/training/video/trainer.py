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
from costream.models.spec import MODELS, architectures, model_spec
from costream.training.adapting import Adaptation
from costream.training.base import (
    Student,
    TrainingData,
    TrainSettings,
    Workspace,
    refuse_fine_tuning,
    untrainable_error,
)
from costream.training.baselines import CENTROID, nearest_centroid
from costream.training.examples import check_examples
from costream.training.feature_cache import FeatureCache
from costream.training.optim import Schedule, device_of, fastest_autocast
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
    classifies_tokens,
    fit_streams,
    predict,
    predict_streams,
    slides,
    standardise,
)
from costream.training.video.examples import EncodedVideo, VideoReader, of_pictures, options_of
from costream.training.video.pieces import Pieces, read_pieces
from costream.weights_io.card import Card
from costream.weights_io.file import Weights

VIEWS, CHECKED_VIEWS = 4, 1  # augmented views of each recording
VARIED = 4.0  # relative to the differences within a class; harmful from scratch
STREAMS = 8  # in a batch; half as many if each step has its own window
STEPS, PER_EXAMPLE, MOST = 600, 12, 1200
CHECKS = 8  # streams to validate with
# Joint fine-tuning of frontend and network: steps, pieces per step and for validation.
FINE_STEPS, FINE_PIECES, FINE_CHECKS = 100, 4, 12


# Of the network on top of a frozen one: a continual transformer of one block.
HEAD = {"embed_dim": 192, "num_heads": 4, "feedforward": 384, "window": 32}


def with_new_head(base: Weights) -> Weights:
    """Return the base weights of a network that can serve as a frontend: that, and no network.

    Its classifier is replaced by a ``cooadtr`` without weights; other base weights stay.
    """
    kind = base.card.architecture
    if kind not in architectures() or not hasattr(MODELS.load(kind), "as_frontend"):
        return base
    network: Any = build(base.card, base.tensors)[0]
    name, front = network.as_frontend()
    card = replace(
        base.card,
        task=model_spec("cooadtr").task,
        architecture="cooadtr",
        arguments={"input_width": front.token_width, "num_classes": 2, **HEAD},
        labels=(BACKGROUND, "other"),
        background=BACKGROUND,
        frontend=name,
        frontend_arguments=front.arguments,
        delay_s=0.0,
    )
    tensors = {f"frontend.{key}": value for key, value in front.state_dict().items()}
    return replace(base, card=card, tensors=tensors)


class VideoTrainer(SequenceTrainer):
    """Trainer of custom video classes."""

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

    def fit(self, student: Student, data: TrainingData, workspace: Workspace) -> TrainResult:
        """Train the network on streams made of the recordings' tokens, which are computed once.

        With ``fine_tune`` the frontend is then trained with it on frames. Without examples of the
        background, still frames before and after clips stand for it. ModelError for a network that
        does not classify tokens.
        """
        network, frontend, card, _ = student
        settings = workspace.settings
        if not classifies_tokens(network) or not hasattr(of_pictures(frontend), "forward_steps"):
            raise untrainable_error(card)
        frontend.eval().requires_grad_(settings.fine_tune)
        training, checks = data.training, data.validation
        check_examples([*training, *checks], card, frontend, options_of(frontend))
        encoded = VideoReader(card, frontend, VIEWS, settings.seed, workspace.cache).read(training)
        checked = VideoReader(card, frontend, CHECKED_VIEWS, settings.seed, workspace.cache).read(
            checks
        )
        still = UNSCORED if any(e.label == card.labels[0] for e in training) else 0
        varied = 0.0 if settings.scratch else VARIED
        supply = TokenStreams([s.streams(card.labels, still) for s in encoded], varied=varied)
        validation = validation_streams(checked, card, still, settings.seed)
        tokens = torch.cat([s.tokens[0] for s in encoded])
        spread = tokens.std(0)
        fresh = not any(name.startswith("network.") for name in workspace.base.tensors)
        if settings.scratch or fresh:
            standardise(network, tokens)
        enough = min(MOST, STEPS + PER_EXAMPLE * len(training))
        batch = STREAMS // 2 if slides(network) else STREAMS
        schedule = Schedule(settings.steps or enough, batch, rate=1e-3, decay=0.05, smoothing=0.1)
        joint = joint_schedule(settings, FINE_STEPS, FINE_PIECES)
        adaptation = begin_adaptation(network, frontend, settings, schedule.steps, joint)
        history: list[dict[str, float]] = []
        if not is_trained(card, workspace):
            history = fit_streams(
                *(network, supply, schedule, settings.seed, validation),
                *(workspace.checkpoint, spread),
                adaptation=None if settings.fine_tune else adaptation,
            )
        simple = {CENTROID: _centroid(encoded, checked, card.labels)} if checks else {}
        if settings.fine_tune:
            further = fine_tuned(student, data, still, workspace, joint, adaptation)
            history = continued(history, further)
        adaptation.finish()
        if settings.fine_tune:
            unkept = FeatureCache(None, card, frontend)
            checked = VideoReader(card, frontend, CHECKED_VIEWS, settings.seed, unkept).read(checks)
            validation = validation_streams(checked, card, still, settings.seed)
        if not checks:
            return TrainResult(history=history, adaptation=adaptation)
        return TrainResult(
            answers(network, checked),
            predict_streams(network, validation),
            simple,
            history,
            adaptation,
        )


def validation_streams(
    checked: Sequence[EncodedVideo], card: Card, still: int, seed: int
) -> list[TokenStream]:
    """Return validation streams made of these recordings; empty without recordings."""
    if not checked:
        return []
    streams = TokenStreams([s.streams(card.labels, still) for s in checked])
    rng = np.random.default_rng(seed)
    return [streams.draw(STREAM_STEPS[1], rng) for _ in range(CHECKS)]


def fine_tuned(
    student: Student,
    data: TrainingData,
    still: int,
    workspace: Workspace,
    schedule: Schedule,
    adaptation: Adaptation,
) -> list[dict[str, float]]:
    """Train the network and the frontend together and return the history."""
    network, frontend, card, _ = student
    seed, partial = workspace.settings.seed, workspace.frontend_checkpoint
    training, checks = (
        read_pieces(card, frontend, examples, card.labels, seed)
        for examples in (data.training, data.validation)
    )
    some = np.random.default_rng(seed).permutation(len(checks))[:FINE_CHECKS]
    few = [checks[k].stream() for k in some]
    pieces = Pieces(training, frontend.box, still, device_of(frontend))
    given = schedule, seed, few, partial, adaptation, fastest_autocast()
    return fine_tune(network, frontend, pieces, *given)


def answers(network: nn.Module, recordings: Sequence[EncodedVideo]) -> list[npt.NDArray[Any]]:
    """Return the probabilities [T, K] of every example, in reading order.

    They are those of a stream that begins with the example's recording.
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


def _centroid(
    encoded: Sequence[EncodedVideo], checked: Sequence[EncodedVideo], labels: Sequence[str]
) -> list[npt.NDArray[Any]]:
    rows, asked = (
        np.stack([s.tokens[0][torch.from_numpy(s.steps(e))].mean(0).numpy() for s, e in pairs])
        for pairs in (listed(encoded), listed(checked))
    )
    known = [labels.index(example.label) for _, example in listed(encoded)]
    return nearest_centroid(rows, known, asked, len(labels))
