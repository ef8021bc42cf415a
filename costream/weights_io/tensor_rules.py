"""Key maps: rules that rename the tensors of a checkpoint to ours and check their shapes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.core.formatting import listed
from costream.weights_io.card import Timeline

EVENTFUL_PAPER = "https://arxiv.org/abs/2308.13494"
BATCH_NORM = ("weight", "bias", "running_mean", "running_var")
Make: TypeAlias = Callable[[Sequence[Tensor]], Tensor]
COUNTER = "num_batches_tracked"  # of a batch normalisation, unused in evaluation


def rows(parts: Sequence[Tensor]) -> Tensor:
    """Return the tensors concatenated along the rows."""
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0]


def matrix(parts: Sequence[Tensor]) -> Tensor:
    """Return the weight of a pointwise convolution as that of a linear layer."""
    return parts[0].flatten(1)


@dataclass(frozen=True)
class TensorRule:
    """Map entry for one of our tensors: its source tensors and their required shape."""

    ours: str
    theirs: tuple[str, ...]
    shape: tuple[int, ...]
    make: Make = rows


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
    frontend_tensors: dict[str, Tensor] = field(default_factory=dict)
    rate_hz: float | None = None  # steps per second, where the training data determine it
    limits: str = ""  # limitations of the network, for the card
    delay_steps: float = 0.0  # delay of an output relative to the events it describes
    timeline: Timeline = field(default_factory=Timeline)


@dataclass(frozen=True)
class ImportedFrontend:
    """Foreign checkpoints converted to the frontend of a network."""

    name: str
    arguments: dict[str, Any]
    tensors: dict[str, Tensor]
    token_width: int
    description: str  # for the card


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


def rename(name: str, patterns: Iterable[tuple[str, str]]) -> str | None:
    """Return a name with the first pattern that its start matches replaced, None without a match.

    ``patterns``: regular expressions and their replacements.
    """
    for pattern, ours in patterns:
        renamed, count = re.subn(f"^{pattern}", ours, name)
        if count:
            return renamed
    return None


def rename_rules(
    tensors: Mapping[str, Tensor],
    ours: Callable[[str], str | None],
    make: Callable[[str], Make] = lambda _: rows,
) -> list[TensorRule]:
    """Return the rules of the tensors that have a name of ``ours``; ``make``: by that name.

    Their shapes are checked when the network is built.
    """
    names = {ours(name): name for name in tensors}
    return [
        TensorRule(target, (name,), tuple(tensors[name].shape), make(target))
        for target, name in names.items()
        if target is not None
    ]


def with_counters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add the counters of batch normalisations, which checkpoints before torch 0.4.1 lack."""
    names = [name for name in tensors if name.endswith("running_var")]
    counters = {name.replace("running_var", COUNTER): torch.tensor(0) for name in names}
    return {**counters, **tensors}


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


def normed_convolution(
    ours: str, conv: str, norm: str, shape: tuple[int, ...], stored: tuple[int, ...] | None = None
) -> list[TensorRule]:
    """Return the rules of a convolution without bias and the batch norm after it, to be folded.

    ``conv`` and ``norm``: their names; ``stored``: shape of the weights there, if another one.
    """
    return [
        TensorRule(f"{ours}.weight", (f"{conv}.weight",), stored or shape),
        *(TensorRule(f"{ours}.norm.{end}", (f"{norm}.{end}",), shape[:1]) for end in BATCH_NORM),
    ]


def fold_norm(
    ours: str, named: Mapping[str, Tensor], epsilon: float, factor: Tensor | float = 1.0
) -> dict[str, Tensor]:
    """Return weight and bias of a ``normed_convolution``, its norm and a factor folded in.

    They are computed in double precision.
    """
    gamma, beta, mean, variance = (named[f"{ours}.norm.{end}"].double() for end in BATCH_NORM)
    scale = gamma / (variance + epsilon).sqrt()
    weight = named[f"{ours}.weight"].double()
    weight = weight * (scale * factor).view(-1, *[1] * (weight.dim() - 1))
    bias = (beta - mean * scale) * factor
    return {f"{ours}.weight": weight.float(), f"{ours}.bias": bias.float()}


def shape_of(tensors: Mapping[str, Tensor], name: str, dims: int) -> tuple[int, ...]:
    """Return the shape of a tensor; ModelError unless it exists and has ``dims`` dimensions."""
    if name not in tensors:
        raise ModelError(f"the checkpoint does not fit: missing: {name}")
    shape = tuple(tensors[name].shape)
    if len(shape) != dims:
        raise ModelError(f"the checkpoint does not fit: {name} is {shape}, not {dims}-dimensional")
    return shape
