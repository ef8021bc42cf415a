"""Own classes of skeletons, see ``training.own``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from costream.evaluation.motions import Motion, batch
from costream.frontends.joints import JointStreams
from costream.labels.examples import Example
from costream.models.card import Card
from costream.sources.base import SourceOptions
from costream.training.family import Taught, TrainSettings, cannot_be_taught
from costream.training.loop import Schedule
from costream.training.recordings import read_motions
from costream.training.skeleton_augment import Augmenter, Variety
from costream.training.skeleton_loop import Supply, train_network
from costream.training.skeleton_streams import StreamMaker

BACKGROUND = "background"
STREAM_STEPS = 64
STREAMS = 12  # in a batch
STEPS = 400  # of fine-tuning; from scratch it takes three times as many
# Own examples come from one place and few people: other headings and sides are not noise then.
VARIETY = Variety(mirror=0.0)


def labels(found: set[str], card: Card) -> tuple[str, ...]:
    """Give the labels, the background first: it is what lies between motions."""
    return (BACKGROUND, *sorted(found - {BACKGROUND}))


def check(card: Card, settings: TrainSettings) -> None:
    """Raise ModelError for a network that does not give an output for every step."""
    if card.arguments.get("padding") != "causal":
        raise cannot_be_taught(card)


def teach(
    network: nn.Module,
    frontend: Any,
    card: Card,
    examples: tuple[Sequence[Example], Sequence[Example]],
    settings: TrainSettings,
) -> Taught:
    """Train the network on streams made of the motions, with pauses as background."""
    options = SourceOptions(
        layout=settings.layout, columns=settings.columns, frame_rate_hz=settings.rate_hz
    )
    motions, checks = (read_motions(part, card, frontend, options) for part in examples)
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
    return Taught(predict(network, frontend, checks), card.timeline, "")


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
