"""Training loops of frontend and temporal models on clips, and the optimizer."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from costream.frontends.tdn import TemporalDifferenceNet
from costream.runtime.machine import has_fast_bfloat16
from costream.training.augment import Sampler
from costream.training.optim import Remembered, Stateful, TrainingCheckpoint


@dataclass(frozen=True)
class Schedule:
    """Length and learning rate of a training."""

    steps: int
    batch: int  # moments or clips of each sampler per step
    rate: float = 2e-3  # peak of a one-cycle cosine
    decay: float = 0.02
    smoothing: float = 0.03  # of the labels
    settle: float = 0.85  # share of the steps after which BatchNorm statistics are fixed


def train_frontend(
    frontend: TemporalDifferenceNet,
    head: nn.Module,
    samplers: Sequence[Sampler],
    schedule: Schedule,
    seed: int,
    title: str,
) -> None:
    """Train a frontend with a linear layer on single moments: their label and person mask.

    Moments of many clips are more informative than one clip, whose frames are alike. Rendered
    video provides the masks.
    """
    rng, products = np.random.default_rng(seed), fastest_autocast()
    bar = Optimizer([frontend, head], schedule, title)
    for step in bar:
        if step == int(schedule.settle * schedule.steps):
            freeze_batchnorm(frontend)
        frames, targets, masks, known = moments(samplers, schedule.batch, frontend.lags, rng)
        with products:
            tokens, focus = frontend.forward_moments(frames)
        loss = soft_cross_entropy(head(tokens.float()), targets, schedule.smoothing)
        places = F.adaptive_avg_pool2d(masks[:, None], (focus.shape[1], focus.shape[2]))[:, 0]
        pixels = F.binary_cross_entropy_with_logits(focus[known].float(), places[known])
        bar.descend(loss + 2 * pixels)


def train(
    frontend: TemporalDifferenceNet,
    heads: Sequence[nn.Module],
    samplers: Sequence[Sampler],
    schedule: Schedule,
    seed: int,
    title: str,
) -> None:
    """Train a frontend and the temporal models on it jointly, on clips.

    Random starts in the table of positions and in the clips teach that any row can come first
    and that a window may be partly filled. BatchNorm statistics stay fixed.
    """
    rng, products = np.random.default_rng(seed), fastest_autocast()
    bar = Optimizer([frontend, *heads], schedule, title)
    freeze_batchnorm(frontend)
    for _ in bar:
        frames, targets = batch(samplers, schedule.batch, rng)
        with products:
            tokens = frontend(frames)
        losses = [
            soft_cross_entropy(logits(head, tokens.float(), rng), targets, schedule.smoothing)
            for head in heads
        ]
        bar.descend(torch.stack(losses).sum())


class Optimizer:
    """AdamW under a one-cycle schedule: iterate over its steps and call ``descend`` in each.

    With a ``partial``, training resumes from that checkpoint and updates it; ``parts`` are further
    state that changes from step to step.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        schedule: Schedule,
        title: str,
        partial: TrainingCheckpoint | None = None,
        parts: Mapping[str, Stateful] | None = None,
    ) -> None:
        self._modules = nn.ModuleList(modules).train()
        parameters = list(self._modules.parameters())
        groups = [  # weight decay for matrices only
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": schedule.decay},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=schedule.rate)
        self._cycle = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, schedule.rate, schedule.steps, pct_start=0.15
        )
        self._steps, self._title, self._partial = schedule.steps, title, partial
        # The state stored in checkpoints.
        self.parts: dict[str, Stateful] = {"learning": self, **(parts or {})}
        self.loss = 0.0  # of the latest step

    def __iter__(self) -> Iterator[int]:
        first = 0 if self._partial is None else self._partial.restore(self.parts)
        self._bar = tqdm(
            range(first, self._steps),
            desc=self._title,
            initial=first,
            total=self._steps,
            file=sys.stderr,
            disable=None,
            leave=False,
        )
        for step in self._bar:
            yield step
            if self._partial is not None:
                self._partial.note(step + 1, self.parts)
        self._modules.eval()

    def descend(self, loss: Tensor) -> None:
        """Take one gradient step on ``loss``."""
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._modules.parameters(), 1.0)
        self._optimizer.step()
        self._cycle.step()
        self.loss = float(loss.detach())
        self._bar.set_postfix_str(f"{self.loss:.2f}", refresh=False)

    def remembered(self) -> Remembered:
        """Return the weights and the state of optimizer and schedule."""
        tensors = {f"weights.{k}": v for k, v in self._modules.state_dict().items()}
        state = self._optimizer.state_dict()
        for number, moments in state["state"].items():
            tensors |= {f"moments.{number}.{k}": v for k, v in moments.items()}
        return tensors, [state["param_groups"], self._cycle.state_dict()]

    def recall(self, tensors: dict[str, Tensor], value: Any) -> None:
        """Restore the state returned by ``remembered``."""
        weights: dict[str, Tensor] = {}
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            kind, _, rest = name.partition(".")
            if kind == "weights":
                weights[rest] = tensor
            else:
                number, _, key = rest.partition(".")
                moments.setdefault(int(number), {})[key] = tensor
        groups, cycle = value
        self._modules.load_state_dict(weights)
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self._cycle.load_state_dict(cycle)


def moments(
    samplers: Sequence[Sampler], count: int, lags: Sequence[int], rng: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``count`` moments of each sampler.

    Frames [N, 1 + lags, 3, H, W], targets [N, K], masks [N, H, W] and which masks are known [N].
    """
    frames, targets, masks, known = [], [], [], []
    for sampler in samplers:
        for _ in range(count):
            pixels, target, mask = sampler.moment(rng, lags)
            frames.append(pixels)
            targets.append(target)
            known.append(mask is not None)
            masks.append(pixels.new_zeros(pixels.shape[2:]) if mask is None else mask)
    return torch.stack(frames), torch.stack(targets), torch.stack(masks), torch.tensor(known)


def batch(
    samplers: Sequence[Sampler], clips: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Return frames float32 [B, T, 3, H, W], 0..255, and targets [B, T, K]."""
    frames, targets = [], []
    for sampler in samplers:
        for _ in range(clips):
            pixels, target = sampler.draw(rng)
            frames.append(pixels)
            targets.append(target)
    return torch.stack(frames), torch.stack(targets)


def logits(head: nn.Module, tokens: Tensor, rng: np.random.Generator | None = None) -> Tensor:
    """Return the logits [B, T, K] of tokens [B, T, D]; ``rng``: positions start at random."""
    if isinstance(head, nn.Linear):
        return head(tokens)  # type: ignore[no-any-return]
    offset: int | Tensor = 0
    if rng is not None:
        offset = torch.from_numpy(rng.integers(0, 1 << 16, size=len(tokens)))
    return head(tokens, offset).logits  # type: ignore[no-any-return]


def soft_cross_entropy(scores: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Return the mean cross entropy of logits and target probabilities [..., K].

    All-zero targets are ignored.
    """
    counts = targets.sum(-1)
    smooth = (1 - smoothing) * targets + smoothing / targets.shape[-1]
    each = -(smooth * scores.log_softmax(-1)).sum(-1)
    return (each * counts).sum() / counts.sum().clamp(min=1)


def fastest_autocast() -> torch.autocast:
    """Return an autocast context for the CPU's fastest products: bfloat16 or float32."""
    return torch.autocast("cpu", torch.bfloat16, enabled=has_fast_bfloat16())


def freeze_batchnorm(module: nn.Module) -> None:
    """Fix the BatchNorm statistics of a module, so that it trains on as it will be used."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eval()
