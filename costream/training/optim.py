"""Optimizer, early stopping and checkpoints of a training.

A checkpoint file is safetensors and written atomically, so the last one written is always complete.
A resumed training gives, bit for bit, the result of an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from costream.core.errors import UsageError
from costream.core.processor import has_fast_bfloat16
from costream.weights_io.file import write_whole

log = logging.getLogger("costream")
AVERAGE = 0.99  # decay of the running mean of the weights, which is what is kept
EVERY_S = 0.5  # least time between two writes, seconds
SHARE = 30  # least time between two writes, relative to the duration of the last one
SavedState = tuple[dict[str, Tensor], Any]  # tensors by name, and a JSON value


class Stateful(Protocol):
    """A part of the training state that a checkpoint stores."""

    def state(self) -> SavedState:
        """Return the state; tensors need not be copies."""

    def restore(self, tensors: dict[str, Tensor], value: Any) -> None:
        """Restore a state that ``state`` returned."""


class RandomState:
    """The random state of a training: a NumPy generator and PyTorch's global one."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def state(self) -> SavedState:
        """Return the states of the generators, also of that of a GPU in use."""
        states = {"torch": torch.get_rng_state()}
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            states["cuda"] = torch.cuda.get_rng_state()
        return states, self._rng.bit_generator.state

    def restore(self, tensors: dict[str, Tensor], value: Any) -> None:
        """Restore the states of the generators."""
        torch.set_rng_state(tensors["torch"])
        if "cuda" in tensors:
            torch.cuda.set_rng_state(tensors["cuda"])
        self._rng.bit_generator.state = value


class TrainingCheckpoint:
    """The checkpoint file ``OUTPUT.partial`` of a training.

    ``identity`` holds the options and data of the training as JSON values; a checkpoint of another
    training cannot be resumed. With ``overwrite`` such a file, or one that is not a checkpoint, is
    replaced; without it both raise UsageError.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], overwrite: bool) -> None:
        text = json.dumps(identity, sort_keys=True, default=str)
        self._path, self._digest = path, hashlib.sha256(text.encode()).hexdigest()
        self._written_s, self._took_s = time.monotonic(), 0.0
        self._found: dict[str, Tensor] = {}
        self._values: dict[str, Any] = {}
        if path.exists():
            self._read(overwrite)

    @property
    def path(self) -> Path:
        """Path of the file, which is first written after about a second of training."""
        return self._path

    def restore(self, parts: Mapping[str, Stateful]) -> int:
        """Restore ``parts`` from the file; return the number of steps done, 0 without a file."""
        if not self._values:
            return 0
        steps = int(self._values["steps"])
        for name, part in parts.items():
            head = f"{name}/"
            own = {k.removeprefix(head): v for k, v in self._found.items() if k.startswith(head)}
            part.restore(own, self._values["parts"][name])
        log.info("resuming after step %d (%s)", steps, self._path)
        return steps

    def note(self, steps: int, parts: Mapping[str, Stateful]) -> None:
        """Write the state of ``parts`` after ``steps`` steps if it is due. Raises OutputError."""
        began_s = time.monotonic()
        if began_s - self._written_s < max(EVERY_S, SHARE * self._took_s):
            return
        self.write(steps, parts)
        self._written_s = time.monotonic()
        self._took_s = self._written_s - began_s

    def write(self, steps: int, parts: Mapping[str, Stateful]) -> None:
        """Write the state of ``parts`` after ``steps`` steps. Raises OutputError."""
        from safetensors.torch import save

        tensors: dict[str, Tensor] = {}
        values: dict[str, Any] = {}
        for name, part in parts.items():
            own, values[name] = part.state()
            # Tensors may share memory (weights and the best ones so far), which the format forbids.
            copies = {k: v.detach().to("cpu", copy=True) for k, v in own.items()}
            tensors |= {f"{name}/{k}": v.contiguous() for k, v in copies.items()}
        state = json.dumps({"steps": steps, "parts": values})
        write_whole(self._path, [save(tensors, {"identity": self._digest, "state": state})])

    def remove(self) -> None:
        """Delete the file after the training is complete."""
        self._path.unlink(missing_ok=True)
        for left in self._path.parent.glob(f".{self._path.name}.*.part"):
            left.unlink(missing_ok=True)  # left by runs killed while writing

    def _read(self, overwrite: bool) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self._path, "pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("identity") == self._digest:
                    self._values = json.loads(metadata["state"])
                    self._found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                    return
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            if not overwrite:
                raise UsageError(
                    f"cannot be read ({error})", where=self._path, hint="--overwrite starts over"
                ) from error
        if not overwrite:
            raise UsageError(
                "checkpoint of a training with other options or data",
                where=self._path,
                hint="give the same ones to resume, or --overwrite to start over",
            )


LOSS = "validation_loss"  # key of the criterion; smaller is better


class EarlyStopping:
    """Early stopping: validates every ``every`` steps and after the last one.

    ``validate`` returns the validation figures, among them ``LOSS``, or none without validation
    examples. ``weights`` returns the weights to keep if they are the best so far.
    """

    def __init__(
        self,
        validate: Callable[[], dict[str, float]],
        weights: Callable[[], Mapping[str, Tensor]],
        steps: int,
        every: int,
        patience: int,
    ) -> None:
        self._validate, self._weights = validate, weights
        self._steps, self._every, self._patience = steps, every, patience
        self._total, self._count = 0.0, 0  # of the losses since the last validation
        self._since = 0  # validations without improvement
        # Of each validation: step, mean loss since the last one, figures.
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Tensor] = {}  # empty until a validation gave LOSS

    def begin(self) -> None:
        """Validate before the first step: the initial weights may remain the best."""
        figures = self._validate()
        if LOSS in figures:
            self.history.append({"step": 0.0, **figures})
            self.best = {k: v.detach().clone() for k, v in self._weights().items()}

    def update(self, steps: int, loss: float) -> bool:
        """Record the loss of step number ``steps``; return whether to stop after it."""
        self._total, self._count = self._total + loss, self._count + 1
        if steps % self._every and steps < self._steps:
            return False
        figures = self._validate()
        least = min((row[LOSS] for row in self.history if LOSS in row), default=float("inf"))
        row = {"step": float(steps), "loss": self._total / self._count, **figures}
        self.history.append(row)
        self._total, self._count = 0.0, 0
        if LOSS not in figures:
            return False
        self._since += 1
        if figures[LOSS] < least:
            self._since = 0
            self.best = {k: v.detach().clone() for k, v in self._weights().items()}
        return self._since == self._patience

    def state(self) -> SavedState:
        """Return the state for a checkpoint."""
        return self.best, [self._total, self._count, self._since, self.history]

    def restore(self, tensors: dict[str, Tensor], value: Any) -> None:
        """Restore a state that ``state`` returned."""
        self._total, self._count, self._since, self.history = value
        self.best = dict(tensors)


@dataclass(frozen=True)
class Schedule:
    """Length and learning rate of a training."""

    steps: int
    batch: int  # moments or clips of each sampler per step
    rate: float = 2e-3  # peak of a one-cycle cosine
    decay: float = 0.02
    smoothing: float = 0.03  # of the labels
    seconds: float = 0.0  # of wall time that the steps are spread over; 0: as long as they take


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
    """Move averaged weights by ``share`` towards those of a network, in place."""
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
        update_average(self.weights, network, max(1 - AVERAGE, 9 / (self._count + 9)))

    def state(self) -> SavedState:
        """Return the mean and its number of steps, for a checkpoint."""
        return self.weights, self._count

    def restore(self, tensors: dict[str, Tensor], value: Any) -> None:
        """Restore the state from a checkpoint."""
        for name, tensor in tensors.items():
            self.weights[name].copy_(tensor)
        self._count = value


class Optimizer:
    """AdamW under a one-cycle schedule: iterate over its steps and call ``step`` in each.

    With a ``partial``, training resumes from that checkpoint and updates it; ``parts`` are further
    state that changes from step to step. With ``schedule.seconds`` a step is a place in that time,
    in which as many gradient steps are taken as it has room for.
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
        self._optimizer = adamw(self._modules, schedule.rate, schedule.decay)
        self._cycle = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, schedule.rate, schedule.steps, pct_start=0.15
        )
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
        """Yield the steps at whose time it is, from ``first`` on."""
        began_s = time.monotonic() - self._seconds * first / self._steps
        place = first
        while place < self._steps:
            self._cycle.last_epoch = place - 1  # the next gradient step goes on to ``place``
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
        """Take one gradient step with the gradients of ``loss``, which the parameters have."""
        nn.utils.clip_grad_norm_(self._modules.parameters(), 1.0)
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
    """Fix the BatchNorm statistics of a module, so that it trains on as it will be used."""
    for part in module.modules():
        if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)):
            part.eval()


def remove_dropout(module: nn.Module) -> None:
    """Make a module drop nothing in training, in place."""
    for part in module.modules():
        name = "p" if isinstance(part, nn.Dropout) else "dropout"
        if isinstance(getattr(part, name, None), float):
            setattr(part, name, 0.0)
