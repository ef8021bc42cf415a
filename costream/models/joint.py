"""Several networks that share a frontend, or a part of one, which is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.models.audio.joined import JoinedSound
from costream.models.base import ModelHead
from costream.models.streaming import StreamingModel
from costream.nn.state import State
from costream.weights_io.licences import terms_of


class JointOutput(NamedTuple):
    """Concatenated logits of all networks, [..., K1 + K2 + ...]."""

    logits: Tensor
    anticipation: None = None


@dataclass
class JointState(State):
    """States of all networks."""

    parts: tuple[State, ...]


class JointNetwork(nn.Module):
    """Networks that take the same tokens, in parallel; see ``models.base.Network``.

    ``columns``: of the tokens, which each network takes; default: all.
    """

    delay = 0

    def __init__(
        self, networks: Sequence[nn.Module], columns: Sequence[slice] | None = None
    ) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.columns = tuple(columns or (slice(None),) * len(networks))
        self.window = max(int(cast(Any, n).window) for n in networks)

    @property
    def exact(self) -> bool:
        """Whether the outputs of all networks equal a recomputation of their windows."""
        return all(getattr(n, "exact", False) for n in self._parts)

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of all networks when each recomputes its window."""
        return sum(int(n.dense_macs) for n in self._parts)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step of all networks."""
        return sum(int(n.count_macs()) for n in self._parts)

    def init_state(self, batch_size: int = 1) -> JointState:
        """Return the initial state of a batch of streams."""
        return JointState(tuple(n.init_state(batch_size) for n in self._parts))

    def warmup(self, state: JointState, ago: int = 0) -> tuple[bool, ...]:
        """Return for each stream whether a window is not full, or was not ``ago`` steps before."""
        warmups = [n.warmup(s, ago) for n, s in zip(self._parts, state.parts, strict=True)]
        return tuple(any(flags) for flags in zip(*warmups, strict=True))

    def forward_step(self, x: Tensor, state: JointState) -> JointOutput:
        """Take one token [B, D] of every stream, return the logits of all networks."""
        parts = zip(self._parts, state.parts, self.columns, strict=True)
        each = [n.forward_step(x[..., own], s).logits for n, s, own in parts]
        return JointOutput(torch.cat(each, -1))

    def forward_steps(self, x: Tensor, state: JointState) -> JointOutput:
        """Take T tokens [B, T, D] of every stream, return the logits of all networks."""
        parts = zip(self._parts, state.parts, self.columns, strict=True)
        each = [n.forward_steps(x[..., own], s).logits for n, s, own in parts]
        return JointOutput(torch.cat(each, -1))

    @property
    def _parts(self) -> Sequence[Any]:
        return cast(Sequence[Any], self.networks)


def combine_models(models: Sequence[StreamingModel]) -> StreamingModel:
    """Return one model with the heads of several models of sound that have the same frontend.

    A frontend may also be a part of that of another model (``JoinedSound``). The card is that of
    the first model with the labels of all, which may repeat. Raises ModelError if the frontends
    differ or a model is named twice.
    """
    first = models[0]
    names = [model.info.card.name for model in models]
    joined = ",".join(names)
    if len(set(names)) < len(names):
        raise ModelError("a model is named twice", where=joined)
    whole = max(models, key=lambda model: len(_frontends(model)))
    columns = []
    for model in models:
        found = _columns(whole, model)
        if found is None:
            raise ModelError(
                f"{model.info.card.name} does not share the frontend of {whole.info.card.name}",
                where=joined,
                hint="run them one after another, with different output folders",
            )
        columns.append(found)
    heads, begin = [], 0
    for model in models:
        end = begin + len(model.info.card.labels)
        heads.append(ModelHead(model.info.card, model.info.weights_sha256, slice(begin, end)))
        begin = end
    labels = tuple(label for model in models for label in model.info.card.labels)
    _share_memory([model.network for model in models])
    return StreamingModel(
        replace(
            first.info.card,
            name=joined,
            labels=labels,
            background=None,
            frontend=whole.info.card.frontend,
            frontend_arguments=whole.info.card.frontend_arguments,
            **terms_of(model.info.card for model in models),
        ),
        JointNetwork([model.network for model in models], columns),
        whole.frontend,
        weights_sha256=",".join(model.info.weights_sha256 for model in models),
        heads=heads,
        device=str(first.device),
        dtype=str(first.dtype).removeprefix("torch."),
    )


def _share_memory(networks: Sequence[nn.Module]) -> None:
    """Store tensors of the same name and with equal numbers once, as adapters have many."""
    earlier: list[dict[str, Tensor]] = []
    for network in networks:
        tensors = network.state_dict(keep_vars=True)
        for name, tensor in tensors.items():
            for other in earlier:
                found = other.get(name)
                if found is None or found.stride() != tensor.stride():
                    continue
                if found.dtype == tensor.dtype and torch.equal(found, tensor):
                    tensor.data = found.data
        earlier.append(tensors)


class _Tokens(NamedTuple):
    """A frontend, or a part of one, and which columns of the tokens are its."""

    about: tuple[str | None, dict[str, Any]]  # its name and arguments
    module: nn.Module
    columns: slice


def _frontends(model: StreamingModel) -> list[_Tokens]:
    """Return the frontend of a model, and its parts."""
    card, module = model.info.card, model.frontend
    found = [_Tokens((card.frontend, card.frontend_arguments), module, slice(None))]
    if isinstance(module, JoinedSound):
        arguments = card.frontend_arguments["parts"]
        found += [
            _Tokens((name, arguments[name]), module.parts[name], columns)
            for name, columns in module.columns().items()
        ]
    return found


def _columns(whole: StreamingModel, model: StreamingModel) -> slice | None:
    """Return the columns of the tokens of ``whole`` that are those of a model; None: none are."""
    own = _frontends(model)[0]
    if own.module is None or whole.info.card.rate_hz != model.info.card.rate_hz:
        return None
    for found in _frontends(whole):
        if found.about == own.about and _equal(found.module, own.module):
            return found.columns
    return None


def _equal(a: nn.Module, b: nn.Module) -> bool:
    one, two = a.state_dict(), b.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)
