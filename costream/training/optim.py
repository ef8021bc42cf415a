"""AdamW with a one-cycle schedule, averaged weights, and what is frozen in a training."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from costream.models.devices import has_fast_bfloat16
from costream.training.checkpoint import SavedState, Stateful, TrainingCheckpoint

AVERAGE_DECAY = 0.99  # of the running mean of the weights


@dataclass(frozen=True)
class Schedule:
    """Length and learning rate of a training."""

    steps: int
    batch: int  # moments or clips of each sampler per step
    rate: float = 2e-3  # peak of a one-cycle cosine
    decay: float = 0.02
    smoothing: float = 0.03  # of the labels
    seconds: float = 0.0  # of wall time that the steps are spread over; 0: as long as they take
    clip: float | None = 1.0  # largest norm of the gradients

    def optimizer(
        self, modules: nn.Module
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        """Return AdamW and its one-cycle schedule."""
        optimizer = adamw(modules, self.rate, self.decay)
        cycle = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.rate, self.steps, pct_start=0.15
        )
        return optimizer, cycle


def adamw(module: nn.Module, rate: float, decay: float) -> torch.optim.AdamW:
    """Return AdamW with weight decay for matrices only."""
    parameters = list(module.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate)


@torch.no_grad()
def update_average(average: dict[str, Tensor], network: nn.Module, share: float) -> None:
    """Move averaged weights by ``share`` towards the weights of a network, in place."""
    for name, value in network.state_dict().items():
        if value.dtype.is_floating_point:
            average[name].lerp_(value, share)
        else:
            average[name].copy_(value)


class Average:
    """Running mean of a network's weights and statistics, with a faster decay at the start."""

    def __init__(self, network: nn.Module) -> None:
        self.weights = {k: v.clone() for k, v in network.state_dict().items()}
        self._count = 0

    def update(self, network: nn.Module) -> None:
        """Update the mean with the weights of this step."""
        self._count += 1
        update_average(self.weights, network, max(1 - AVERAGE_DECAY, 9 / (self._count + 9)))

    def state(self) -> SavedState:
        """Return the mean and its number of steps, for a checkpoint."""
        return self.weights, self._count

    def restore(self, tensors: dict[str, Tensor], value: Any) -> None:
        """Restore the state from a checkpoint."""
        for name, tensor in tensors.items():
            self.weights[name].copy_(tensor)
        self._count = value


class Optimizer:
    """The optimizer of a schedule: iterate over its steps and call ``step`` in each.

    With a ``partial``, training resumes from that checkpoint and updates it; ``parts`` are further
    state that changes from step to step. With ``schedule.seconds`` the steps are spread evenly over
    that time, and as many gradient steps are taken as there is time for.
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
        self._optimizer, self._cycle = schedule.optimizer(self._modules)
        self._clip = schedule.clip
        self._steps, self._title, self._partial = schedule.steps, title, partial
        self._seconds = schedule.seconds
        # The state stored in checkpoints.
        self.parts: dict[str, Stateful] = {"learning": self, **(parts or {})}
        self._loss = torch.zeros(())

    def __iter__(self) -> Iterator[int]:
        first = 0 if self._partial is None else self._partial.restore(self.parts)
        self._bar = tqdm(
            self._places(first) if self._seconds else range(first, self._steps),
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

    def _places(self, first: int) -> Iterator[int]:
        """Yield each step at its time, from ``first`` on."""
        began_s = time.monotonic() - self._seconds * first / self._steps
        place = first
        while place < self._steps:
            self._cycle.last_epoch = place - 1  # the next gradient step advances it to ``place``
            yield place
            place = int(self._steps * (time.monotonic() - began_s) / self._seconds)

    @property
    def loss(self) -> float:
        """Loss of the latest step."""
        return float(self._loss)

    def step(self, loss: Tensor) -> None:
        """Take one gradient step on ``loss``."""
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.apply(loss)

    def apply(self, loss: Tensor) -> None:
        """Take one step with the gradients of ``loss`` that the parameters hold."""
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self._modules.parameters(), self._clip)
        self._optimizer.step()
        self._cycle.step()
        self._loss = loss.detach()
        if not self._bar.disable:
            self._bar.set_postfix_str(f"{self.loss:.2f}", refresh=False)

    def state(self) -> SavedState:
        """Return the weights and the state of optimizer and schedule."""
        tensors = {f"weights.{k}": v for k, v in self._modules.state_dict().items()}
        state = self._optimizer.state_dict()
        for number, moments in state["state"].items():
            tensors |= {f"moments.{number}.{k}": v for k, v in moments.items()}
        return tensors, [state["param_groups"], self._cycle.state_dict()]

    def restore(self, tensors: dict[str, Tensor], value: Any) -> None:
        """Restore the state returned by ``state``."""
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


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's parameters and buffers, the CPU for one without."""
    held = next(itertools.chain(module.parameters(), module.buffers()), None)
    return torch.device("cpu") if held is None else held.device


def fastest_autocast() -> torch.autocast:
    """Return an autocast context for the CPU's fastest products: bfloat16 or float32."""
    return torch.autocast("cpu", torch.bfloat16, enabled=has_fast_bfloat16())


def freeze_batchnorm(module: nn.Module) -> None:
    """Fix the BatchNorm statistics of a module, so that it is trained as it will be used."""
    for part in module.modules():
        if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)):
            part.eval()


def remove_dropout(module: nn.Module) -> None:
    """Disable the dropout of a module, in place."""
    for part in module.modules():
        name = "p" if isinstance(part, nn.Dropout) else "dropout"
        if isinstance(getattr(part, name, None), float):
            setattr(part, name, 0.0)
