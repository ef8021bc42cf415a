"""Several networks on one frontend: what they listen to is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from costream.errors import ModelError
from costream.models.base import ModelHead
from costream.models.streaming import StreamingModel
from costream.nn.state import State


class JointOutput(NamedTuple):
    """Logits of all networks in a row, [..., K1 + K2 + ...]."""

    logits: Tensor
    anticipation: None = None


@dataclass
class JointState(State):
    """What each of the networks keeps of each stream."""

    parts: tuple[State, ...]


class JointNetwork(nn.Module):
    """Networks that take the same tokens, side by side; see ``models.streaming.Network``."""

    delay = 0

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.window = max(int(cast(Any, n).window) for n in networks)

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of all when each computes its window anew."""
        return sum(int(n.dense_macs) for n in self._parts)

    def count_macs(self) -> int:
        """Multiply-accumulates of a step of all."""
        return sum(int(n.count_macs()) for n in self._parts)

    def init_state(self, batch_size: int = 1) -> JointState:
        """Give the state of streams that have seen nothing."""
        return JointState(tuple(n.init_state(batch_size) for n in self._parts))

    def warmup(self, state: JointState, ago: int = 0) -> tuple[bool, ...]:
        """Say for each stream whether a window is not yet full, or was not, steps ``ago``."""
        each = [n.warmup(s, ago) for n, s in zip(self._parts, state.parts, strict=True)]
        return tuple(any(flags) for flags in zip(*each, strict=True))

    def forward_step(self, x: Tensor, state: JointState) -> JointOutput:
        """Take one token [B, D] of every stream."""
        parts = zip(self._parts, state.parts, strict=True)
        return JointOutput(torch.cat([n.forward_step(x, s).logits for n, s in parts], -1))

    def forward_steps(self, x: Tensor, state: JointState) -> JointOutput:
        """Take T tokens [B, T, D] of every stream."""
        parts = zip(self._parts, state.parts, strict=True)
        return JointOutput(torch.cat([n.forward_steps(x, s).logits for n, s in parts], -1))

    @property
    def _parts(self) -> Sequence[Any]:
        return cast(Sequence[Any], self.networks)


def join(models: Sequence[StreamingModel]) -> StreamingModel:
    """Give one model with the heads of several that have the same frontend, and that once.

    Its card is that of the first with the labels of all, whose names may repeat. Raises
    ModelError when the frontends differ, a model is named twice or gives no output each step.
    """
    first = models[0]
    names = [model.card.name for model in models]
    joined = ",".join(names)
    if len(set(names)) < len(names):
        raise ModelError("a model is named twice", where=joined)
    for model in models[1:]:
        if not _same_frontend(first, model):
            raise ModelError(
                f"{model.card.name} does not stand on the frontend of {first.card.name}",
                where=joined,
                hint="run them one after another, into folders of their own",
            )
    if any(model.sound is None for model in models):
        raise ModelError("only models for sound run side by side", where=joined)
    heads, begin = [], 0
    for model in models:
        end = begin + len(model.card.labels)
        heads.append(ModelHead(model.card, model.weights_sha256, slice(begin, end)))
        begin = end
    labels = tuple(label for model in models for label in model.card.labels)
    return StreamingModel(
        replace(first.card, name=joined, labels=labels, background=None),
        JointNetwork([model.network for model in models]),
        first.frontend,
        weights_sha256=",".join(model.weights_sha256 for model in models),
        heads=heads,
        device=str(first.device),
        dtype=str(first.dtype).removeprefix("torch."),
    )


def _same_frontend(a: StreamingModel, b: StreamingModel) -> bool:
    if (a.card.frontend, a.card.rate_hz) != (b.card.frontend, b.card.rate_hz):
        return False
    if a.card.frontend is None or a.card.frontend_arguments != b.card.frontend_arguments:
        return False
    own, other = a.frontend.state_dict(), b.frontend.state_dict()
    return own.keys() == other.keys() and all(torch.equal(own[k], other[k]) for k in own)
