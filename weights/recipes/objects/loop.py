"""Training loop of a detector: on labels and, at every place, on the outputs of a teacher."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.models.eventful.shuffle import ShuffleEmbedding
from costream.models.eventful.vitdet import ViTDet
from weights.recipes.objects.losses import batch_losses
from weights.recipes.objects.teacher import TeacherMaps
from weights.recipes.objects.views import ViewBatch

_TEACHER_WEIGHT = 0.5  # of the loss of its maps
_RARE = -4.5  # initial logit of rare events
_REPORT_S = 10.0  # interval of reports


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


def map_loss(predicted: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
    """Return the loss of logits against the teacher's probabilities, maps [B, h, w, K].

    Binary cross entropy, less the irreducible part, the teacher's entropy; divided by the sum over
    all places of the probability of the likeliest class.
    """
    total = predicted[0].new_zeros(())
    amount = predicted[0].new_zeros(())
    for logits, wanted in zip(predicted, teacher, strict=True):
        wanted = wanted.clamp(0, 1)
        each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        each = each - F.binary_cross_entropy(wanted, wanted, reduction="none")
        total = total + each.sum()
        amount = amount + wanted.amax(-1).sum()
    return total / (amount + len(predicted[0]))


class Views(Protocol):
    """Training views, see ``ViewMaker``."""

    def shape(self, rng: np.random.Generator) -> tuple[int, int]:
        """Return the width and height of views, drawn at random."""

    def batch(self, count: int, shape: tuple[int, int]) -> ViewBatch:
        """Return ``count`` views of a width and height."""


@dataclass(frozen=True)
class DetectorSchedule:
    """Length and learning rates of a training.

    ``seconds``: how long it takes in all, on whatever machine; None: ``steps`` steps. ``stem``: the
    learning rate of the layers from the teacher, relative to the other layers; at 0 they
    stay so.
    """

    steps: int
    seconds: float | None = None
    batch: int = 8
    rate: float = 1e-3  # peak of a cosine
    warm_up: float = 0.05  # share of the training
    decay: float = 0.05
    average: float = 0.998  # decay of the averaged weights
    stem: float = 0.0
    every_s: float = 60.0  # interval of checkpoints
    judge_s: float = 90.0  # interval of scores

    def rate_at(self, done: float) -> float:
        """Return the learning rate after a share of the training, 0 to 1."""
        if done < self.warm_up:
            return self.rate * max(0.01, done / self.warm_up)
        rest = (done - self.warm_up) / (1 - self.warm_up)
        return self.rate * (0.005 + 0.995 * 0.5 * (1 + math.cos(math.pi * min(1.0, rest))))


class DetectorTrainer:
    """A network with a head for the teacher's maps, their optimizer and the averaged weights.

    All are on the device of ``views``. ``groups``: the teacher's classes of each label.
    """

    def __init__(
        self,
        network: ViTDet,
        teacher: TeacherMaps,
        groups: Sequence[Sequence[int]],
        course: DetectorSchedule,
        device: torch.device,
    ) -> None:
        self.network, self.course, self.device = network.to(device), course, device
        self.maps = MapHead(network.backbone.dim, network.classes).to(device)
        self.step, self.elapsed = 0, 0.0
        self._teacher = teacher.to(device).eval()
        most = max(map(len, groups))
        rows = [[*g, *[g[0]] * (most - len(g))] for g in groups]
        self._groups = torch.tensor(rows, device=device)
        stem = network.embedding
        assert isinstance(stem, ShuffleEmbedding)
        self._stem = stem
        taken = nn.ModuleList(stem.pretrained()).requires_grad_(course.stem > 0)
        self._modules = nn.ModuleList([network, self.maps]).train()
        self._optimizer = self._make_optimizer(set(taken.parameters()))
        self.mean = copy.deepcopy(network).requires_grad_(False).eval()

    def _make_optimizer(self, taken: set[nn.Parameter]) -> torch.optim.AdamW:
        """Return AdamW, which decays matrices only."""
        groups = [
            {
                "params": [
                    p
                    for p in self._modules.parameters()
                    if p.requires_grad and (p in taken) == slow and (p.ndim > 1) == wide
                ],
                "weight_decay": self.course.decay if wide else 0.0,
                "share": self.course.stem if slow else 1.0,
            }
            for slow in (False, True)
            for wide in (False, True)
        ]
        groups = [group for group in groups if group["params"]]
        return torch.optim.AdamW(groups, lr=self.course.rate, fused=self.device.type == "cuda")

    @property
    def done(self) -> float:
        """Share of the training that is over, 0 to 1."""
        if self.course.seconds is None:
            return self.step / self.course.steps
        return self.elapsed / self.course.seconds

    def learn(self, batch: ViewBatch) -> Tensor:
        """Take one step; return the losses [3] of proposals, of the head and of the maps."""
        rate = self.course.rate_at(self.done)
        for group in self._optimizer.param_groups:
            group["lr"] = rate * group["share"]
        parts = self.losses(batch)
        self._optimizer.zero_grad(set_to_none=True)
        parts.sum().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._modules.parameters(), 2.0)
        self._optimizer.step()
        self.step += 1
        keep = min(self.course.average, self.step / (self.step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.mean.parameters()), list(self.network.parameters()), 1 - keep
            )
        return parts.detach()

    def losses(self, batch: ViewBatch) -> Tensor:
        """Return the losses [3] of proposals, of the head and of the teacher's maps."""
        pictures = batch.normalised()
        with torch.no_grad():
            seen = (self._teacher.stem if self.course.stem else self._stem).maps(pictures)
            scores = [x[..., self._groups].amax(-1) for x in self._teacher(seen)]
        own = self._stem.maps(pictures) if self.course.stem else seen
        tokens = self.network.backbone(self._stem.project(own))
        size = (pictures.shape[2], pictures.shape[3])
        proposing, telling = batch_losses(self.network, tokens, size, batch.boxes, batch.labels)
        watching = map_loss(self.maps(tokens), scores)
        return torch.stack([proposing, telling, _TEACHER_WEIGHT * watching])

    def save(self, path: Path) -> None:
        """Write everything needed to resume."""
        state = {
            "step": self.step,
            "elapsed": self.elapsed,
            "modules": self._modules.state_dict(),
            "mean": self.mean.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)

    def load(self, path: Path) -> None:
        """Resume from a checkpoint."""
        state = torch.load(path, weights_only=True, map_location=self.device)
        self._modules.load_state_dict(state["modules"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.mean.load_state_dict(state["mean"])
        self.step, self.elapsed = state["step"], state["elapsed"]


def take_step(learner: DetectorTrainer, views: Views, seed: int) -> Tensor:
    """Train on the views of the learner's next step; return the parts of the loss [3]."""
    rng = np.random.default_rng([seed, learner.step])
    torch.manual_seed(seed * 1_000_003 + learner.step)
    return learner.learn(views.batch(learner.course.batch, views.shape(rng)))


def train(
    learner: DetectorTrainer,
    views: Views,
    seed: int,
    checkpoint: Path,
    judge: Callable[[ViTDet], str],
    report: Callable[[str], None],
) -> ViTDet:
    """Train to the end of the course, from the checkpoint if it exists; return averaged weights.

    The views of a step depend only on the seed and its number, so a resumed training of a number of
    steps gives the same result as an uninterrupted one. ``judge``: returns the log line for the
    averaged weights, at the start and from time to time; ``report``: takes lines of progress.
    """
    if checkpoint.is_file():
        learner.load(checkpoint)
    course, first, begin = learner.course, learner.step, time.monotonic() - learner.elapsed
    report(f"begins at step {first}: {judge(learner.mean)}")
    started = saved = judged = told = time.monotonic()
    mean = torch.zeros(3, device=learner.device)
    while learner.done < 1:
        parts = take_step(learner, views, seed)
        mean = mean.lerp(parts, max(0.02, 1 / (learner.step - first)))
        now = time.monotonic()
        learner.elapsed = now - begin
        if now - told > _REPORT_S:
            losses = " ".join(f"{v:.4f}" for v in mean.tolist())
            pace = (learner.step - first) * course.batch / (now - started)
            left = learner.elapsed * (1 / max(learner.done, 1e-6) - 1)
            rate = course.rate_at(learner.done)
            report(
                f"{learner.elapsed:.0f} s, {left:.0f} s left: step {learner.step}, loss {losses},"
                f" {pace:.0f} views/s, rate {rate:.2e}"
            )
            told = now
        if now - judged > course.judge_s:
            report(f"{learner.elapsed:.0f} s: {judge(learner.mean)}")
            judged = now
        if now - saved > course.every_s:
            learner.save(checkpoint)
            saved = now
    learner.save(checkpoint)
    report(f"ends after {learner.elapsed:.0f} s at step {learner.step}")
    return learner.mean
