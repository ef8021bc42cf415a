"""A model that knows the classes of labelled clips already, and how often it is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.labels.examples import Example
from costream.models.build import build
from costream.models.catalogue import list_models, read_whole
from costream.models.compatibility import card_kind
from costream.training.auto.frontends import FoundJoints, clips_by
from costream.training.base import TrainSettings, TrainSetup, base_rows
from costream.training.tokens.token_training import classifies_tokens, predict
from costream.training.video.video_trainer import with_new_head
from costream.weights_io.card import Card
from costream.weights_io.file import Weights, read_card

_MOST = 0.5  # of the labels, more of which a model must know


def model_that_knows(labels: Sequence[str], kind: str) -> Weights | None:
    """Return the installed model of a ``kind`` of source that knows most ``labels`` by name.

    None if none knows more than half of them. The first label, the background, does not count, and
    models with a classifier of one layer only do not either: their training begins anew.
    """
    cards = [(e.name, read_card(e.path)) for e in list_models() if e.path is not None]
    found = [(known_events(labels, card), name) for name, card in cards if _fits(card, kind)]
    most, name = max(found, key=lambda pair: pair[0], default=(0, ""))
    if most <= _MOST * (len(labels) - 1):
        return None
    base = read_whole(name)
    return base if with_new_head(base) is base else None


def known_events(labels: Sequence[str], card: Card) -> int:
    """Return how many ``labels``, besides the first one, the background, a model has by name."""
    return sum(row is not None for row in base_rows(labels, card)[1:])


def answers_of(
    base: Weights, labels: Sequence[str], examples: Sequence[Example], settings: TrainSettings
) -> npt.NDArray[np.float64] | None:
    """Return a model's mean probabilities [N, K] of ``labels`` for the examples.

    Those of labels that it does not know are 0. None for a model that is not asked for each step of
    video or sound. Raises SourceError, and UsageError for what cannot be used.
    """
    network: Any
    network, frontend = build(base.card, base.tensors)
    if frontend is None or not classifies_tokens(network):
        return None
    for part in (network, frontend):
        part.to(settings.device).eval().requires_grad_(False)
    setup = TrainSetup(network, frontend, replace(base.card, labels=tuple(labels)), frontend)
    clips = clips_by(examples, setup, settings, FoundJoints())
    streams = {id(clip.tokens): clip.tokens for clip in clips}
    said = dict(zip(streams, predict(network, list(streams.values())), strict=True))
    rows = base_rows(labels, base.card)
    known = [k for k, row in enumerate(rows) if row is not None]
    out = np.zeros((len(clips), len(labels)))
    for answer, clip in zip(out, clips, strict=True):
        answer[known] = said[id(clip.tokens)][clip.steps].mean(0)[[rows[k] for k in known]]
    return out


def _fits(card: Card, kind: str) -> bool:
    return bool(card.labels) and not card.finds_objects and card_kind(card) == kind
