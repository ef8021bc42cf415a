"""Own classes of video, on the frontend of a model as it is or fine-tuned; see ``training.own``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from costream.errors import UsageError
from costream.labels.examples import Example
from costream.models.card import Card
from costream.training.clips import UNSCORED
from costream.training.family import (
    Desk,
    Taught,
    TrainSettings,
    background_first,
    cannot_be_taught,
    refuse_fine_tuning,
)
from costream.training.feature_cache import FeatureCache
from costream.training.fine_tuning import fine_tune
from costream.training.loop import Schedule
from costream.training.own_baselines import CENTROID, nearest_centroid
from costream.training.own_tokens import (
    STREAM_STEPS,
    classifies_tokens,
    descend,
    predict,
    slides,
    standardise,
    tell,
)
from costream.training.partial import Partial
from costream.training.picture_pieces import Pieces, read_pieces
from costream.training.token_streams import TokenStream, TokenStreams
from costream.training.video_recordings import Reader, Seen, of_pictures

ARGUMENTS: Mapping[str, Any] = {}
BACKGROUND = "background"
VIEWS, CHECKED_VIEWS = 4, 1  # of each recording, besides itself
VARIED = 4.0  # times as much as recordings of a class differ; not from scratch, which it hinders
STREAMS = 8  # in a batch; half as many where each step has a window of its own
STEPS, PER_EXAMPLE, MOST = 600, 12, 1200
CHECKS = 8  # streams to validate with
# Of frontend and network together: steps, pieces in each and to validate with.
FINE_STEPS, FINE_PIECES, FINE_CHECKS = 100, 4, 12


def labels(found: set[str], card: Card) -> tuple[str, ...]:
    """Give the labels, the background first.

    That is the class called as the model's own background, or else "background", "none" or
    "nothing"; without such a class it is added.
    """
    names = (card.background or BACKGROUND, BACKGROUND, "none", "nothing")
    return background_first(found, names, card.background or BACKGROUND)


def check(card: Card, settings: TrainSettings) -> None:
    """Raise UsageError for --fps, and for --fine-tune of a frontend that hears."""
    if card.frontend == "audiovisual":
        refuse_fine_tuning(card, settings, "that learns from pictures alone")
    if settings.rate_hz is not None:
        raise UsageError(f"{card.name} takes {card.rate_hz:g} pictures a second", where="--fps")


def teach(
    network: nn.Module,
    frontend: Any,
    card: Card,
    examples: tuple[Sequence[Example], Sequence[Example]],
    settings: TrainSettings,
    desk: Desk,
) -> Taught:
    """Train the network on streams made of the recordings' tokens, which are computed once.

    And then, where it was asked for, with the frontend on pictures. Where no example is of the
    background, pictures that stand still are: what is seen before and after a clip. ModelError for
    a network that is no classifier of tokens.
    """
    if not classifies_tokens(network) or not hasattr(of_pictures(frontend), "forward_steps"):
        raise cannot_be_taught(card)
    frontend.eval().requires_grad_(False)
    training, checks = examples
    seen = Reader(card, frontend, VIEWS, settings.seed, desk.cache).read(training)
    checked = Reader(card, frontend, CHECKED_VIEWS, settings.seed, desk.cache).read(checks)
    still = UNSCORED if any(e.label == card.labels[0] for e in training) else 0
    varied = 0.0 if settings.scratch else VARIED
    supply = TokenStreams([s.streams(card.labels, still) for s in seen], varied=varied)
    watched = to_watch(checked, card, still, settings.seed)
    tokens = torch.cat([s.tokens[0] for s in seen])
    spread = tokens.std(0)
    if settings.scratch:
        standardise(network, tokens)
    enough = min(MOST, STEPS + PER_EXAMPLE * len(training))
    batch = STREAMS // 2 if slides(network) else STREAMS
    schedule = Schedule(settings.steps or enough, batch, rate=1e-3, decay=0.05, smoothing=0.1)
    history = descend(network, supply, schedule, settings.seed, watched, desk.partial, spread)
    simple = {CENTROID: _centroid(seen, checked, card.labels)} if checks else {}
    if settings.fine_tune:
        further = fine_tuned(network, frontend, card, examples, still, settings, desk.second)
        before = history[-1]["step"] if history else 0
        history += [{**row, "step": before + row["step"]} for row in further]
        unkept = FeatureCache(None, card, frontend)
        checked = Reader(card, frontend, CHECKED_VIEWS, settings.seed, unkept).read(checks)
        watched = to_watch(checked, card, still, settings.seed)
    if not checks:
        return Taught(history=history)
    return Taught(answers(network, checked), tell(network, watched), simple, history)


def to_watch(checked: Sequence[Seen], card: Card, still: int, seed: int) -> list[TokenStream]:
    """Give streams to validate with, made of these recordings; none where there are none."""
    if not checked:
        return []
    streams = TokenStreams([s.streams(card.labels, still) for s in checked])
    rng = np.random.default_rng(seed)
    return [streams.draw(STREAM_STEPS[1], rng) for _ in range(CHECKS)]


def fine_tuned(
    network: nn.Module,
    frontend: Any,
    card: Card,
    examples: tuple[Sequence[Example], Sequence[Example]],
    still: int,
    settings: TrainSettings,
    partial: Partial,
) -> list[dict[str, float]]:
    """Train the network and the frontend together; gives what was seen on the way."""
    seed = settings.seed
    training, checks = (read_pieces(card, frontend, e, card.labels, seed) for e in examples)
    few = [checks[k] for k in np.random.default_rng(seed).permutation(len(checks))[:FINE_CHECKS]]
    schedule = Schedule(settings.steps or FINE_STEPS, FINE_PIECES, rate=3e-4, smoothing=0.1)
    pieces = Pieces(training, frontend.box, still)
    return fine_tune(network, frontend, pieces, schedule, seed, few, partial)


def answers(network: nn.Module, recordings: Sequence[Seen]) -> list[npt.NDArray[Any]]:
    """Give the probabilities [T, K] of every example, in the order they were read in.

    As a stream gives them that began with its recording.
    """
    told = predict(network, [seen.tokens[0] for seen in recordings])
    by_source = {s.examples[0].source: rows for s, rows in zip(recordings, told, strict=True)}
    return [by_source[example.source][seen.steps(example)] for seen, example in listed(recordings)]


def listed(recordings: Sequence[Seen]) -> list[tuple[Seen, Example]]:
    """Give every example with its recording, in the order they were read in."""
    rows = {p: (s, e) for s in recordings for p, e in zip(s.places, s.examples, strict=True)}
    return [rows[place] for place in sorted(rows)]


def _centroid(
    seen: Sequence[Seen], checked: Sequence[Seen], labels: Sequence[str]
) -> list[npt.NDArray[Any]]:
    rows, asked = (
        np.stack([s.tokens[0][torch.from_numpy(s.steps(e))].mean(0).numpy() for s, e in pairs])
        for pairs in (listed(seen), listed(checked))
    )
    known = [labels.index(example.label) for _, example in listed(seen)]
    return nearest_centroid(rows, known, asked, len(labels))
