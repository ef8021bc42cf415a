"""Training loop of a detector: on labels and, at every place, on the outputs of a teacher."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from costream.models.eventful.shuffle import ShuffleEmbedding
from costream.models.eventful.vitdet import ViTDet
from costream.training.objects.losses import detector_losses
from costream.training.optim import adamw, update_average
from weights.recipes.objects.views import ViewBatch, Views

_TEACHER_WEIGHT = 0.5  # of the loss of its maps
_RARE = -4.5  # initial logit of rare events


class MapHead(nn.Module):
    """Head that predicts the teacher's maps at strides 8, 16 and 32; discarded after training.

    ``dim``: width of the tokens. ``width``: values at each place.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fine = nn.Linear(dim, 4 * width)
        self.middle = nn.Linear(dim, width)
        self.coarse = nn.Linear(dim, width)
        for layer in (self.fine, self.middle, self.coarse):
            nn.init.constant_(layer.bias, _RARE)

    def forward(self, tokens: Tensor) -> list[Tensor]:
        """Return logits [B, h', w', width] at three strides for tokens [B, h, w, D]."""
        x = self.norm(tokens)
        batch, height, width, _ = x.shape
        fine = self.fine(x).view(batch, height, width, 2, 2, -1).transpose(2, 3)
        pooled = F.avg_pool2d(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
        return [
            fine.reshape(batch, 2 * height, 2 * width, -1),
            self.middle(x),
            self.coarse(pooled),
        ]


def map_loss(said: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
    """Return the loss of logits against the teacher's probabilities, maps [B, h, w, K].

    Binary cross entropy, less the irreducible part, the teacher's entropy; divided by the sum over
    all places of the probability of the likeliest class.
    """
    total = torch.zeros(())
    amount = torch.zeros(())
    for logits, wanted in zip(said, teacher, strict=True):
        wanted = wanted.clamp(0, 1)
        each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        each = each - F.binary_cross_entropy(wanted, wanted, reduction="none")
        total = total + each.sum()
        amount = amount + wanted.amax(-1).sum()
    return total / (amount + len(said[0]))


@dataclass(frozen=True)
class DetectorSchedule:
    """Length and learning rates of a training."""

    steps: int
    batch: int = 8
    rate: float = 1e-3  # peak of a cosine
    warm_up: int = 100  # steps
    decay: float = 0.05
    average: float = 0.998  # decay of the averaged weights
    every_s: float = 60.0  # interval of checkpoints

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step."""
        if step < self.warm_up:
            return self.rate * (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return self.rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


class DetectorTrainer:
    """A network with a head for the teacher's maps, their optimizer and the averaged weights.

    What the network's stem has from the teacher stays as it is.
    """

    def __init__(self, network: ViTDet, course: DetectorSchedule) -> None:
        self.network, self.course = network, course
        self.maps = MapHead(network.backbone.dim, network.classes)
        self.mean = {k: v.detach().clone() for k, v in network.state_dict().items()}
        self.step = 0
        stem = network.embedding
        assert isinstance(stem, ShuffleEmbedding)
        self._stem = stem
        nn.ModuleList(stem.pretrained()).requires_grad_(False)
        modules = nn.ModuleList([network, self.maps]).train()
        self._optimizer = adamw(modules, course.rate, course.decay)
        self._modules = modules

    def learn(self, batch: ViewBatch) -> Tensor:
        """Take one step; return the losses [3] of proposals, of the head and of the maps."""
        for group in self._optimizer.param_groups:
            group["lr"] = self.course.rate_at(self.step)
        parts = self.losses(batch)
        self._optimizer.zero_grad(set_to_none=True)
        parts.sum().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._modules.parameters(), 2.0)
        self._optimizer.step()
        self.step += 1
        keep = min(self.course.average, self.step / (self.step + 10))
        update_average(self.mean, self.network, 1 - keep)
        return parts.detach()

    def losses(self, batch: ViewBatch) -> Tensor:
        """Return the losses [3] of proposals, of the head and of the teacher's maps."""
        tokens = self.network.backbone(self._stem.project(batch.features))
        proposing, telling = detector_losses(
            self.network, tokens, batch.size, batch.boxes, batch.labels
        )
        watching = map_loss(self.maps(tokens), batch.scores)
        return torch.stack([proposing, telling, _TEACHER_WEIGHT * watching])

    def save(self, path: Path) -> None:
        """Write everything needed to resume."""
        state = {
            "step": self.step,
            "modules": self._modules.state_dict(),
            "mean": self.mean,
            "optimizer": self._optimizer.state_dict(),
        }
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)

    def load(self, path: Path) -> None:
        """Resume from a checkpoint."""
        state = torch.load(path, weights_only=True)
        self._modules.load_state_dict(state["modules"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.mean, self.step = state["mean"], state["step"]

    def finished(self) -> ViTDet:
        """Return the network with the averaged weights."""
        self.network.load_state_dict(self.mean)
        return self.network.eval()


def take_step(learner: DetectorTrainer, supply: Views, seed: int) -> Tensor:
    """Train on the views of the learner's next step; return the parts of the loss [3]."""
    rng = np.random.default_rng([seed, learner.step])
    torch.manual_seed(seed * 1_000_003 + learner.step)
    return learner.learn(supply.batch(learner.course.batch, rng))


def train(learner: DetectorTrainer, supply: Views, seed: int, checkpoint: Path) -> ViTDet:
    """Train to the end of the course, from the checkpoint if it exists; return the network.

    The views of a step depend only on the seed and its number, so a resumed training gives the
    same result as an uninterrupted one.
    """
    if checkpoint.is_file():
        learner.load(checkpoint)
    bar = tqdm(
        range(learner.step, learner.course.steps),
        "objects",
        file=sys.stderr,
        mininterval=10,
        ncols=100,
    )
    saved, mean = time.monotonic(), torch.zeros(3)
    for _ in bar:
        mean = mean.lerp(take_step(learner, supply, seed), 0.02)
        bar.set_postfix_str(" ".join(f"{v:.3f}" for v in mean.tolist()), refresh=False)
        if time.monotonic() - saved > learner.course.every_s:
            learner.save(checkpoint)
            saved = time.monotonic()
    learner.save(checkpoint)
    return learner.finished()
