"""Training of skeleton networks on streams, with every step supervised."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.labels.recording import UNSCORED
from costream.models.skeleton.joints import JointStreams
from costream.training.optim import Average, Schedule, device_of, fastest_autocast
from costream.training.skeleton.motion_streams import StreamMaker
from costream.training.skeleton.motions import batch
from costream.training.training_loop import Stopping, TrainingLoop, TrainingRun

VALIDATE_EVERY = 40  # steps between validations
PATIENCE = 5  # validations without improvement


@dataclass(frozen=True)
class SkeletonSupply:
    """A source of streams, and its number of streams in each batch."""

    maker: StreamMaker
    streams: int


def train_network(
    network: nn.Module,
    frontend: JointStreams,
    supplies: Sequence[SkeletonSupply],
    schedule: Schedule,
    steps: int,
    run: TrainingRun,
    fixed_statistics: bool = False,
    validate: Callable[[nn.Module], dict[str, float]] | None = None,
) -> list[dict[str, float]]:
    """Train ``network`` on streams of ``steps`` steps, keep averaged weights, return the history.

    The frontend prepares the streams step by step, as in a run. Every step is supervised, the
    first ones of a motion with less weight. ``fixed_statistics``: freeze the BatchNorm statistics,
    for fine-tuning. With ``validate``, which validates the averaged network, the best averages are
    kept; see ``EarlyStopping``.
    """
    rng, products = np.random.default_rng(run.seed), fastest_autocast()
    average, stride = Average(network), int(getattr(network, "stride", 1))

    def validate_average() -> dict[str, float]:
        if validate is None:
            return {}
        averaged = copy.deepcopy(network)
        averaged.load_state_dict(average.weights)
        return validate(averaged.eval())

    def stream_loss() -> Tensor:
        tokens, labels, weights = draw(frontend, supplies, steps, rng)
        with products:
            logits = network(tokens)
        return loss(logits.float(), labels[:, ::stride], weights[:, ::stride], schedule.smoothing)

    return TrainingLoop(
        network,
        stream_loss,
        schedule,
        rng,
        run,
        Stopping(validate_average, VALIDATE_EVERY, PATIENCE),
        run.phases,
        average,
        fixed=network if fixed_statistics else None,
    ).fit()


def draw(
    frontend: JointStreams,
    supplies: Sequence[SkeletonSupply],
    steps: int,
    rng: np.random.Generator,
    batches: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return batches as one: tokens [B, T, P, V, C], labels int64 [B, T], weights [B, T]."""
    sources = [s for s in supplies for _ in range(s.streams)] * batches
    streams = [s.maker.draw(steps, rng) for s in sources]
    device = device_of(frontend)
    with torch.no_grad():
        tokens = frontend(batch([s.joints for s in streams]).to(device))
    labels = torch.from_numpy(np.stack([s.labels for s in streams])).to(device)
    weights = torch.from_numpy(np.stack([s.weights for s in streams])).to(device)
    return tokens, labels, weights


def loss(logits: Tensor, labels: Tensor, weights: Tensor, smoothing: float) -> Tensor:
    """Return the weighted mean cross entropy of logits [B, T, K], without UNSCORED steps."""
    each = F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=UNSCORED,
        label_smoothing=smoothing,
        reduction="none",
    )
    weights = (weights * (labels != UNSCORED)).flatten()
    return (each * weights).sum() / weights.sum().clamp(min=1e-6)
