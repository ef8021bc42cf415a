"""Training of a skeleton network on streams of all sets."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from costream.checkpoints.file import read_weights
from costream.models.skeleton.network import SkeletonNet
from costream.training.optim import Optimizer, SavedState, Schedule, TrainingCheckpoint
from costream.training.skeleton.loop import Average, loss
from weights.recipes.skeleton.clips import clip_logits
from weights.recipes.skeleton.streams import StreamBatch, StreamBatches

log = logging.getLogger("costream")
REPORT = 50  # steps between two lines of progress
Tokens = Callable[[StreamBatch, torch.Generator], Tensor]  # -> [B, T, 1, V, C]


class _Chance:
    """The generator of the streams, as a part of checkpoints."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def state(self) -> SavedState:
        return {"streams": self._generator.get_state()}, None

    def restore(self, tensors: dict[str, Tensor], value: Any) -> None:
        self._generator.set_state(tensors["streams"])


def learn(
    network: SkeletonNet,
    streams: StreamBatches,
    tokens: Tokens,
    schedule: Schedule,
    length: int,
    seed: int,
    title: str,
    partial: TrainingCheckpoint | None = None,
) -> None:
    """Train ``network`` on batches of streams of ``length`` steps; it gets the averaged weights.

    Every output is scored, the first ones of a motion with less weight. Progress goes to the log.
    """
    chance = torch.Generator().manual_seed(seed)
    average, stride = Average(network), network.stride
    parts = {"chance": _Chance(chance), "average": average}
    optimizer = Optimizer([network], schedule, title, partial, parts)
    began, first, total = time.monotonic(), -1, 0.0
    for step in optimizer:
        first = step if first < 0 else first
        batch = streams.draw(schedule.batch, length, chance)
        logits = clip_logits(network, tokens(batch, chance))
        labels, weights = batch.labels[:, ::stride], batch.weights[:, ::stride]
        optimizer.step(loss(logits, labels, weights, schedule.smoothing))
        average.update(network)
        total += optimizer.loss
        if (step + 1) % REPORT == 0:
            took = (time.monotonic() - began) / (step + 1 - first)
            left = (schedule.steps - step - 1) * took / 60
            log.info("%s: step %d, loss %.3f, %.0f min left", title, step + 1, total / REPORT, left)
            total = 0.0
    if partial is not None:
        partial.write(schedule.steps, optimizer.parts)
    network.load_state_dict(average.weights)
    network.eval()


def start_from(network: SkeletonNet, labels: list[str], path: Path) -> None:
    """Copy the weights of a file where names and shapes agree, and those of the same labels."""
    stored = read_weights(path)
    own = network.state_dict()
    found = {k: v for k, v in stored.tensors.items() if k in own and v.shape == own[k].shape}
    known = {label: k for k, label in enumerate(stored.card.labels)}
    both = [(k, known[label]) for k, label in enumerate(labels) if label in known]
    for name in ("fc.weight", "fc.bias", "reading.weight"):
        if name in own and name in stored.tensors and both:
            new, old = zip(*both, strict=True)
            rows = own[name].clone()
            rows[list(new)] = stored.tensors[name][list(old)].to(rows.dtype)
            found[name] = rows
    network.load_state_dict(own | found)
