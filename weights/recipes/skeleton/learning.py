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
from costream.training.optim import Optimizer, SavedState, Schedule, Stateful, TrainingCheckpoint
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
    parts: dict[str, Stateful] = {"chance": _Chance(chance), "average": average}
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
    """Copy the weights of a file where names agree, and those of the same labels.

    A network for pictures gets those of one for space without depth. In a wider network further
    channels get what the first ones have, and give these nothing: it begins with the same output.
    """
    stored = read_weights(path)
    own = network.state_dict()
    tensors = {name.removeprefix("network."): tensor for name, tensor in stored.tensors.items()}
    if network.channels < int(stored.card.arguments["channels"]):
        tensors |= _without_depth(tensors, network.joints)
    labelled = ("fc.weight", "fc.bias", "reading.weight")
    found = {k: _widened(v, own[k]) for k, v in tensors.items() if k in own and k not in labelled}
    known = {label: k for k, label in enumerate(stored.card.labels)}
    both = [(k, known[label]) for k, label in enumerate(labels) if label in known]
    for name in labelled:
        if name in tensors:
            found[name] = own[name].clone()
            for new, old in both:
                found[name][new] = _widened(tensors[name][old][None], own[name][new][None])[0]
    network.load_state_dict(own | found)


def _widened(tensor: Tensor, own: Tensor) -> Tensor:
    """Return ``own`` with ``tensor`` in its first rows and columns, beside which there are zeros.

    What does not fit stays ``own``.
    """
    if tensor.dim() != own.dim() or any(
        a > b for a, b in zip(tensor.shape, own.shape, strict=True)
    ):
        return own
    out = own.clone()
    if tensor.dim() > 1:
        out[: len(tensor), tensor.shape[1] :] = 0
    out[tuple(slice(size) for size in tensor.shape)] = tensor
    return out


def _without_depth(tensors: dict[str, Tensor], joints: int) -> dict[str, Tensor]:
    """Return the first layers for joint, bone and motion in x and y; in pictures x is turned."""
    kept = [0, 1, 3, 4, 6, 7]
    out = {}
    for name in ("weight", "bias", "running_mean", "running_var"):
        rows = tensors[f"data_bn.{name}"].view(joints, -1)[:, kept].clone()
        if name in ("weight", "running_mean"):
            rows[:, 0::2] *= -1
        out[f"data_bn.{name}"] = rows.flatten()
    for name, tensor in tensors.items():
        if name.startswith("layers.layer1.gcn.") and name.endswith("weight") and tensor.ndim == 4:
            out[name] = tensor[:, kept]
    return out
