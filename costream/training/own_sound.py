"""Own classes of sound on the frozen frontend of a model, see ``training.own``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.errors import UsageError
from costream.labels.examples import Example, spelling
from costream.models.card import Card, Timeline
from costream.models.oad import TokenClassifier
from costream.nn.encoder import Encoder
from costream.training.family import Taught, TrainSettings, cannot_be_taught
from costream.training.loop import Optimizer, Schedule
from costream.training.sound_baselines import linear
from costream.training.sound_recordings import Reader
from costream.training.sound_streams import TokenStream, TokenStreams
from costream.training.timeline import choose

log = logging.getLogger("costream")

SILENCE = "silence"
BACKGROUNDS = ("background", SILENCE, "none", "nothing")
VARIANTS = 4  # of each example, besides itself
QUIET, QUIET_STEPS = 6, 8  # stretches of silence, and their length
STREAM_STEPS = (16, 128)  # the shortest and the longest: windows are full only at times
STREAMS = 8  # in a batch
WINDOWS = 8  # steps of a stream that are learnt where each needs a window of its own
STEPS, PER_EXAMPLE, MOST = 60, 4, 600  # of fine-tuning; from scratch it takes twice as many
WATCH, PATIENCE = 20, 6  # steps between two looks at the validation examples; looks without gain
CHECKS = 8  # streams to validate with
THRESHOLDS = (0.5, 0.6, 0.4, 0.7, 0.3)  # the first of equally good ones


def labels(found: set[str], card: Card) -> tuple[str, ...]:
    """Give the labels, the background first.

    That is the class called as the model's own background, or else "background", "silence", "none"
    or "nothing"; without such a class silence is added.
    """
    for name in (card.background or SILENCE, *BACKGROUNDS):
        for label in sorted(found):
            if spelling(label) == spelling(name):
                log.info("%r is the background: it makes no segments", label)
                return (label, *sorted(found - {label}))
    return (SILENCE, *sorted(found))


def check(card: Card, settings: TrainSettings) -> None:
    """Raise UsageError for --fps."""
    if settings.rate_hz is not None:
        raise UsageError(f"the steps of {card.name} are blocks of sound", where="--fps")


def teach(
    network: nn.Module,
    frontend: Any,
    card: Card,
    examples: tuple[Sequence[Example], Sequence[Example]],
    settings: TrainSettings,
) -> Taught:
    """Train the network on streams made of the examples' tokens, which are computed once.

    The background is learnt from made-up silence, and from examples where it has some. ModelError
    for a network that is no classifier of tokens.
    """
    if not isinstance(network, TokenClassifier):
        raise cannot_be_taught(card)
    frontend.eval().requires_grad_(False)
    reader = Reader(card, frontend, VARIANTS, settings.seed)
    quiet = reader.silence(card.labels[0], QUIET, QUIET_STEPS)
    heard = [*reader.read(examples[0]), *quiet]
    checks = Reader(card, frontend, 0, settings.seed).read(examples[1])
    lag = max(0, round(card.delay_s * card.rate_hz) - 1)
    streams = TokenStreams(heard, card.labels, lag)
    rng = np.random.default_rng(settings.seed)
    watched = [
        TokenStreams([*checks, *quiet], card.labels, lag).draw(STREAM_STEPS[1], rng)
        for _ in range(CHECKS if checks else 0)
    ]
    if settings.scratch:
        standardise(network, torch.cat([h.tokens[0] for h in heard]))
    enough = min(MOST, STEPS + PER_EXAMPLE * len(examples[0])) * (2 if settings.scratch else 1)
    schedule = Schedule(settings.steps or enough, STREAMS, rate=1e-3, decay=0.05, smoothing=0.1)
    descend(network, streams, schedule, settings.seed, watched)
    if not checks:
        return Taught([], card.timeline, "")
    return Taught(
        predict(network, [h.tokens[0] for h in checks]),
        _timeline(network, watched, card),
        "When to stop, and the thresholds of segments, were chosen on the validation examples: the"
        " figures are a little too good.",
        {"linear on mean tokens": linear(heard, checks, card.labels)},
    )


def descend(
    network: TokenClassifier,
    streams: TokenStreams,
    schedule: Schedule,
    seed: int,
    watched: Sequence[TokenStream] = (),
) -> None:
    """Train the network; it ends with the weights that did best on the streams ``watched``.

    Without such it ends with the last ones.
    """
    rng = np.random.default_rng(seed)
    slides = isinstance(network.encoder, Encoder) and network.encoder.depth > 1
    counted = WINDOWS if slides else None
    best, since = float("inf"), 0
    kept: dict[str, Tensor] = {}
    optimizer = Optimizer([network], schedule, "training")
    for step in optimizer:
        length = int(rng.integers(STREAM_STEPS[0], STREAM_STEPS[1] + 1))
        tokens, labels = streams.batch(schedule.batch, length, rng)
        # Any row of the recycled positions may come first.
        offset = torch.from_numpy(rng.integers(0, 1 << 16, size=len(tokens)))
        logits = network(tokens, offset, counted).logits
        target = labels[:, -logits.shape[1] :].flatten()
        error = F.cross_entropy(logits.flatten(0, 1), target, label_smoothing=schedule.smoothing)
        optimizer.descend(error)
        if not watched or ((step + 1) % WATCH and step + 1 < schedule.steps):
            continue
        now, since = _surprise(network, watched), since + 1
        if now < best:
            best, since = now, 0
            kept = {k: v.clone() for k, v in network.state_dict().items()}
        if since == PATIENCE:
            break
    network.eval()
    if kept:
        network.load_state_dict(kept)


@torch.no_grad()
def standardise(network: TokenClassifier, tokens: Tensor) -> None:
    """Let a fresh network begin as if tokens [N, D] had mean 0 and spread 1 in each place."""
    layer = network.input_projection
    if layer is not None:
        spread = tokens.std(0)
        layer.weight.div_(spread.clamp(min=0.01 * float(spread.max())))
        layer.bias.sub_(layer.weight @ tokens.mean(0))


@torch.inference_mode()
def predict(network: TokenClassifier, tokens: Sequence[Tensor]) -> list[npt.NDArray[Any]]:
    """Give the probabilities [T, K] of tokens [T, D] that begin a stream."""
    return [network(x[None]).logits[0].softmax(-1).numpy() for x in tokens]


def _surprise(network: TokenClassifier, watched: Sequence[TokenStream]) -> float:
    """Give the mean cross entropy of streams."""
    network.eval()
    told = predict(network, [stream.tokens for stream in watched])
    network.train()
    of_labels = [p[np.arange(len(p)), s.labels] for p, s in zip(told, watched, strict=True)]
    return float(-np.log(np.concatenate(of_labels) + 1e-9).mean())


def _timeline(network: TokenClassifier, watched: Sequence[TokenStream], card: Card) -> Timeline:
    told = predict(network, [stream.tokens for stream in watched])
    return choose([(told, watched)], card.labels, card.rate_hz, THRESHOLDS)
