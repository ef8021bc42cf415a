"""Key maps: rules that rename the tensors of a checkpoint to ours and check their shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from costream.errors import ModelError
from costream.formatting import listed


def _rows(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0]


@dataclass(frozen=True)
class TensorRule:
    """Map entry for one of our tensors: its source tensors and their required shape."""

    ours: str
    theirs: tuple[str, ...]
    shape: tuple[int, ...]
    make: Callable[[Sequence[Tensor]], Tensor] = _rows  # default: concatenates along the rows


@dataclass(frozen=True)
class ImportedNetwork:
    """A foreign checkpoint under the names and arguments of one of our architectures."""

    architecture: str
    arguments: dict[str, Any]
    tensors: dict[str, Tensor]
    num_classes: int | None  # None: an encoder without classifier
    labels: tuple[str, ...] | None = None  # when the checkpoint names its classes
    paper: str = ""
    task: str = "online action detection"
    frontend: str | None = None
    frontend_arguments: dict[str, Any] = field(default_factory=dict)
    rate_hz: float | None = None  # steps per second, where the training data determine it
    limits: str = ""  # limitations of the network, for the card
    delay_steps: float = 0.0  # delay of an output relative to the events it describes


@dataclass(frozen=True)
class ImportedFrontend:
    """Foreign checkpoints converted to the frontend of a network."""

    name: str
    arguments: dict[str, Any]
    tensors: dict[str, Tensor]
    token_width: int
    what: str  # description for the card


def apply(
    rules: Iterable[TensorRule], tensors: Mapping[str, Tensor], unused: Iterable[str] = ()
) -> dict[str, Tensor]:
    """Return ``tensors`` renamed by ``rules``; those in ``unused`` are optional and dropped.

    Raises ModelError that names the tensors that are missing, left over or of another shape.
    """
    rules = list(rules)
    wanted = {name: rule.shape for rule in rules for name in rule.theirs}
    missing = sorted(wanted.keys() - tensors.keys())
    left = sorted(tensors.keys() - wanted.keys() - set(unused))
    if missing or left:
        parts = [f"missing: {listed(missing)}"] if missing else []
        parts += [f"left over: {listed(left)}"] if left else []
        raise ModelError(f"the checkpoint does not fit: {'; '.join(parts)}")
    wrong = [
        f"{name} is {tuple(tensors[name].shape)}, not {shape}"
        for name, shape in wanted.items()
        if tuple(tensors[name].shape) != shape
    ]
    if wrong:
        raise ModelError(f"the checkpoint does not fit: {listed(wrong)}")
    return {
        rule.ours: rule.make([tensors[name] for name in rule.theirs]).contiguous() for rule in rules
    }


def linear(
    ours: str, theirs: str, rows: int, columns: int, *, bias: bool = True
) -> list[TensorRule]:
    """Return the rules of a linear layer."""
    rules = [TensorRule(f"{ours}.weight", (f"{theirs}.weight",), (rows, columns))]
    if bias:
        rules.append(TensorRule(f"{ours}.bias", (f"{theirs}.bias",), (rows,)))
    return rules


def norm(ours: str, theirs: str, width: int) -> list[TensorRule]:
    """Return the rules of a layer norm."""
    return [TensorRule(f"{ours}.{p}", (f"{theirs}.{p}",), (width,)) for p in ("weight", "bias")]


def shape_of(tensors: Mapping[str, Tensor], name: str, dims: int) -> tuple[int, ...]:
    """Return the shape of a tensor; ModelError unless it exists and has ``dims`` dimensions."""
    if name not in tensors:
        raise ModelError(f"the checkpoint does not fit: missing: {name}")
    shape = tuple(tensors[name].shape)
    if len(shape) != dims:
        raise ModelError(f"the checkpoint does not fit: {name} is {shape}, not {dims}-dimensional")
    return shape
